"""A small language, targets that speak it, and plans that take seconds."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import models, pre_tokenizers

from dspark.training.dialogues import DialogueSettings
from dspark.training.fit import FitSettings
from dspark.training.pipeline import Plan
from dspark.training.shape import DrafterShape

PHRASES, WORDS = 6, 5
SPECIAL = ("<unk>", "<user>", "<assistant>", "<end>")
UNKNOWN, USER, ASSISTANT, END = range(len(SPECIAL))
VOCAB = len(SPECIAL) + PHRASES * WORDS + 6  # and a few tokens that nobody ever says
LONGEST_REQUEST = 20
TARGET_STEPS = 150

TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}> {{ message.content }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def answer(rng: random.Random) -> list[int]:
    """A few phrases in any order; within a phrase each word follows from the one before."""
    words: list[int] = []
    for _ in range(rng.randint(2, 4)):
        first = len(SPECIAL) + WORDS * rng.randrange(PHRASES)
        words += range(first, first + WORDS)
    return [*words, END]


def dialogue(rng: random.Random) -> list[int]:
    request = [UNKNOWN] * rng.randint(2, LONGEST_REQUEST)
    return [USER, *request, END, ASSISTANT, *answer(rng)]


def write_speaking_target(folder: Path, family: str) -> Path:
    """Train a tiny model of a family on the language, and save it as transformers does."""
    import transformers

    # Any: both configurations take these among dozens of keywords of other types.
    shape: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 256,
        "bos_token_id": None,
        "eos_token_id": END,
        "tie_word_embeddings": family == "llama",
    }
    torch.manual_seed(0)
    model: Any
    if family == "llama":
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape))
    else:
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**shape))
    rng = random.Random(0)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for step in range(TARGET_STEPS):
        texts = [dialogue(rng) for _ in range(32)]
        longest = max(map(len, texts))
        ids = torch.tensor([text + [END] * (longest - len(text)) for text in texts])
        labels = torch.tensor([text + [-100] * (longest - len(text)) for text in texts])
        optimizer.param_groups[0]["lr"] = 5e-3 * (1 - step / TARGET_STEPS)
        optimizer.zero_grad()
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
    model.save_pretrained(folder)

    names = [*SPECIAL, *(f"w{number}" for number in range(VOCAB - len(SPECIAL)))]
    vocabulary = {name: number for number, name in enumerate(names)}
    core = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL[UNKNOWN]))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.save(str(folder / "tokenizer.json"))
    config = {"eos_token": SPECIAL[END], "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def small_plan(folder: Path, target: Path, **changed: object) -> Plan:
    """A plan that takes seconds; keywords change the training."""
    fit: dict[str, object] = {
        "steps": 20,
        "dialogues_per_step": 4,
        "checkpoint_every": 8,
        "learning_rate": 5e-3,
        **changed,
    }
    return Plan(
        folder=folder,
        target=target,
        dtype="int8",  # in which nothing depends on who shares a step
        slots=4,
        wanted_dialogues=40,
        judged_dialogues=8,
        dialogues=DialogueSettings(max_new_tokens=24),
        shape=DrafterShape(layers=1, block=4, rank=8, draft_vocabulary=VOCAB - 4),
        fit=FitSettings(**fit),  # type: ignore[arg-type]  # a test's own keywords
    )
