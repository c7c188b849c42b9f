"""The embedded language model: what transformers generates from the same weights, and quickly."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from dspark import Engine, SamplingParams, Target, load_target
from dspark.checkpoint import Checkpoint
from dspark.compiled.weights import CompiledLinear
from dspark.drafters import Anchor, Draft
from dspark.int4 import GROUP, Int4Linear
from dspark.linear import Linear
from dspark.target import Span

pytestmark = pytest.mark.real

Tokens = tuple[int, ...]

NEW_TOKENS = 12
QUESTIONS = [
    "What is the capital of France?",
    "Why is the sky blue?",
    "Tell me a joke about computers.",
    "How long should I boil an egg?",
    "What is 17 plus 25?",
    "Give me three names for a cat.",
    "Who wrote Romeo and Juliet?",
    "What should I wear when it is 5 degrees outside?",
    "Translate good morning into Spanish.",
    "How far away is the moon?",
    "What does a stock market do?",
    "Suggest something for dinner with rice and eggs.",
    "What time zone is Tokyo in?",
    "How do I get coffee out of a white shirt?",
    "Is a tomato a fruit?",
    "What is the tallest mountain in the world?",
    "Can you recommend a good book?",
    "How do planes stay in the air?",
    "What year did the Titanic sink?",
    "Tell me something about café culture in Zürich.",
]


@pytest.fixture(scope="module")
def target(smollm2_gguf: Path) -> Target:
    return load_target(smollm2_gguf)


@pytest.fixture(scope="module")
def engine(target: Target) -> Iterator[Engine]:
    with Engine(target, slots=8, context_tokens=256) as engine:
        yield engine


@pytest.fixture(scope="module", params=["int8", "int4"])
def rough(request: pytest.FixtureRequest, smollm2_gguf: Path) -> Target:
    """The same in integers."""
    return load_target(smollm2_gguf, dtype=request.param)


@pytest.fixture(scope="module")
def reference(smollm2_gguf: Path) -> Any:
    """What transformers makes of the same file; its annotations are at odds with its use."""
    pytest.importorskip("accelerate")  # transformers reads GGUF only with it
    transformers = pytest.importorskip("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(
        smollm2_gguf.parent, gguf_file=smollm2_gguf.name, dtype=torch.float32
    )


def prompt(target: Target, question: str) -> tuple[int, ...]:
    return tuple(target.tokenizer.chat([{"role": "user", "content": question}]))


def answers(engine: Engine, questions: Sequence[str], tokens: int) -> dict[Tokens, Tokens]:
    """Greedy answers by their prompts, several at once."""
    params = SamplingParams(max_new_tokens=tokens)
    prompts = [prompt(engine.target, question) for question in questions]
    generations = {ids: engine.submit(ids, params) for ids in prompts}
    return {
        ids: tuple(token for step in generation for token in step.committed)
        for ids, generation in generations.items()
    }


@pytest.fixture(scope="module")
def said(engine: Engine) -> dict[Tokens, Tokens]:
    """What float32 answers."""
    return answers(engine, QUESTIONS[:6], 40)


def test_greedy_answers_are_those_of_transformers(engine: Engine, reference: Any) -> None:
    """It is shown our answers, and each token must be what it would have said then."""
    stops = engine.target.stop_token_ids
    for ids, answer in answers(engine, QUESTIONS, NEW_TOKENS).items():
        with torch.inference_mode():
            logits = reference(torch.tensor([[*ids, *answer]])).logits[0, len(ids) - 1 :]
        *expected, next_one = logits.argmax(-1).tolist()
        assert list(answer) == expected
        assert len(answer) == NEW_TOKENS or next_one in stops


def test_the_weights_are_those_that_transformers_reads_from_the_file(
    target: Target, reference: Any
) -> None:
    expected: Mapping[str, torch.Tensor] = reference.state_dict()
    checkpoint = Checkpoint(target.folder)
    for name, tensor in expected.items():
        if name != "lm_head.weight":
            assert torch.equal(checkpoint.tensor(name, tensor.shape), tensor), name


def test_numbers_are_cut_into_digits(target: Target) -> None:
    tokenizer = target.tokenizer
    assert [tokenizer.decode([token]) for token in tokenizer.encode("10945")] == [*"10945"]


def test_a_dialogues_next_turn_computes_only_what_is_new(engine: Engine) -> None:
    tokenizer = engine.target.tokenizer
    messages = [{"role": "user", "content": "Name a fruit."}]
    first = tokenizer.chat(messages)
    answer = engine.generate(first, SamplingParams(max_new_tokens=8)).token_ids
    messages += [
        {"role": "assistant", "content": tokenizer.decode(answer)},
        {"role": "user", "content": "And another?"},
    ]
    second = tokenizer.chat(messages)
    params = SamplingParams(max_new_tokens=NEW_TOKENS)
    generation = engine.submit(second, params)
    found = tuple(token for step in generation for token in step.committed)
    assert generation.cached_tokens >= len(first)
    with Engine(engine.target) as fresh:
        assert fresh.generate(second, params).token_ids == found


def test_integers_answer_like_float32(rough: Target, said: dict[Tokens, Tokens]) -> None:
    """Teacher-forced on float32's own answers; bfloat16 agrees on 97 % of such tokens."""
    agreeing = total = 0
    for ids, answer in said.items():
        span = Span(0, 0, [*ids, *answer], len(answer) + 1)
        with torch.inference_mode():
            logits = rough.forward([span], rough.new_cache(1, span.stop)).logits[0][:-1]
        agreeing += int((logits.argmax(-1) == torch.tensor(answer)).sum())
        total += len(answer)
    assert agreeing / total > 0.9


@pytest.mark.parametrize(
    ("kind", "rounding"),
    # torch keeps scales and offsets in bfloat16; compiled layers as the file does.
    [(Int4Linear, 2**-8), (CompiledLinear.in_int4, 2**-20)],
)
def test_four_bit_weights_are_those_of_the_file(
    kind: Callable[[torch.Tensor], Linear], rounding: float, target: Target
) -> None:
    name = "model.layers.3.mlp.down_proj.weight"
    config = target.decoder.config
    weight = Checkpoint(target.folder).tensor(name, (config.hidden_size, config.intermediate_size))
    found = kind(weight)(torch.eye(config.intermediate_size)).T
    largest = weight.view(len(weight), -1, GROUP).abs().amax(-1, keepdim=True)
    error = (found - weight).abs().view(len(weight), -1, GROUP)
    assert (error <= 2 * rounding * largest).all()


class HalfRight:
    """Drafts the known answers, with every third token wrong."""

    taps: Sequence[int] = ()
    block_size = 5

    def __init__(self, known: Mapping[tuple[int, ...], tuple[int, ...]]) -> None:
        self._known = known

    def new_cache(self, slots: int, context_tokens: int) -> None:
        return None

    def extend(self, cache: object, slot: int, start: int, features: torch.Tensor) -> None:
        """It reads no features."""

    def draft(self, cache: object, anchors: Sequence[Anchor]) -> list[Draft]:
        drafts = []
        for anchor in anchors:
            done = len(anchor.sampler.answer)
            right = self._known[tuple(anchor.sampler.prompt)][done : done + self.block_size]
            tokens = tuple(
                (token + 1) % 1000 if (done + index) % 3 == 2 else token
                for index, token in enumerate(right)
            )
            drafts.append(Draft(tokens, confidence=(0.6,) * len(tokens)))
        return drafts


def test_integer_answers_are_the_same_bits_with_drafts_and_in_company(rough: Target) -> None:
    params = SamplingParams(max_new_tokens=30)
    prompts = [prompt(rough, question) for question in QUESTIONS[:8]]
    with Engine(rough) as plain:
        known = {ids: plain.generate(ids, params).token_ids for ids in prompts}
    with Engine(rough, HalfRight(known)) as engine:
        generations = [engine.submit(ids, params) for ids in prompts]
        for ids, generation in zip(prompts, generations, strict=True):
            steps = list(generation)
            assert tuple(token for step in steps for token in step.committed) == known[ids]
            assert any(step.accepted > 0 for step in steps)


def test_loading_imports_neither_transformers_nor_the_gguf_reader(
    target: Target, smollm2_gguf: Path
) -> None:
    script = (
        "import sys; from dspark import load_target; "
        f"load_target({str(smollm2_gguf)!r}).tokenizer.encode('hello'); "
        "print(sorted({'transformers', 'gguf', 'huggingface_hub'} & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
