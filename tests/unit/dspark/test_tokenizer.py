"""Text survives the way to tokens and back, also when the tokens arrive one by one."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, processors

from dspark import Tokenizer, TokenizerError

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def new_core() -> tokenizers.Tokenizer:
    """Byte-level BPE with little more than the bytes, so that characters span several tokens."""
    core = tokenizers.Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(["hello there, how are you, 日本 日本"], trainer)
    return core


def new_tokenizer(template: str | None = CHATML) -> Tokenizer:
    return Tokenizer(new_core(), {"bos_token": "<s>", "eos_token": "<|im_end|>"}, template)


TOKENIZER = new_tokenizer()


def metaspace_tokenizer() -> Tokenizer:
    """SentencePiece style: a word's first token carries the space that comes before it."""
    vocab = {"<unk>": 0, "▁": 1} | {c: i for i, c in enumerate("abcdefghijklmnopqrstuvwxyz", 2)}
    core = tokenizers.Tokenizer(models.BPE(vocab, [], unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    return Tokenizer(core, {}, None)


whole_characters = st.text(st.characters(codec="utf-8", exclude_characters=REPLACEMENT))


@given(whole_characters, st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None)
def test_streamed_text_is_the_whole_text_in_whole_characters(text: str, random: Random) -> None:
    tokens = TOKENIZER.encode(text)
    detokenizer = TOKENIZER.detokenizer()
    pieces = []
    while tokens:
        count = random.randint(1, 4)
        pieces.append(detokenizer.feed(tokens[:count]))
        tokens = tokens[count:]
    assert "".join(pieces) == text
    assert detokenizer.flush() == ""


@given(st.lists(st.integers(0, 290), max_size=40))
@settings(max_examples=300, deadline=None)
def test_any_tokens_stream_to_what_they_decode_to(tokens: list[int]) -> None:
    detokenizer = TOKENIZER.detokenizer()
    streamed = "".join(detokenizer.feed([token]) for token in tokens) + detokenizer.flush()
    assert streamed == TOKENIZER.decode(tokens)


def test_a_character_is_held_back_until_it_is_whole() -> None:
    detokenizer = TOKENIZER.detokenizer()
    tokens = TOKENIZER.encode("🙂")
    assert len(tokens) > 1
    assert [detokenizer.feed([token]) for token in tokens] == [""] * (len(tokens) - 1) + ["🙂"]


def test_an_unfinished_character_comes_out_at_the_end() -> None:
    detokenizer = TOKENIZER.detokenizer()
    assert detokenizer.feed(TOKENIZER.encode("a🙂")[:-1]) == ""
    assert detokenizer.flush() == f"a{REPLACEMENT}"
    assert detokenizer.flush() == ""


def test_spaces_between_words_are_kept_when_words_arrive_alone() -> None:
    tokenizer = metaspace_tokenizer()
    detokenizer = tokenizer.detokenizer()
    text = "the sky is blue"
    assert "".join(detokenizer.feed([token]) for token in tokenizer.encode(text)) == text


def test_special_tokens_are_not_text() -> None:
    assert TOKENIZER.decode(TOKENIZER.encode("<|im_start|>hello<|im_end|>")) == "hello"
    assert TOKENIZER.detokenizer().feed(TOKENIZER.encode("hello<|im_end|>")) == "hello"


def test_a_chat_becomes_the_templates_prompt() -> None:
    messages = [{"role": "user", "content": "hello"}]
    text = "<|im_start|>user\nhello<|im_end|>\n"
    assert TOKENIZER.chat(messages, False) == TOKENIZER.encode(text)
    assert TOKENIZER.chat(messages) == TOKENIZER.encode(f"{text}<|im_start|>assistant\n")


def test_a_message_that_may_go_on_is_the_chat_without_its_end() -> None:
    messages = [{"role": "user", "content": "hello"}, {"role": "user", "content": " hello the "}]
    prompt, end = TOKENIZER.unfinished_chat(messages)
    begun = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>user\nhello the"
    assert prompt == TOKENIZER.encode(begun)
    assert [end] == TOKENIZER.encode("<|im_end|>")


def test_a_template_that_ends_no_message_is_an_error() -> None:
    endless = new_tokenizer("{{ messages[0].content }}")
    with pytest.raises(TokenizerError, match="where a message ends"):
        endless.unfinished_chat([{"role": "user", "content": "hello"}])


def test_tokens_are_found_by_how_their_text_begins() -> None:
    assert TOKENIZER.beginning_with(",") >= set(TOKENIZER.encode(","))
    texts = [TOKENIZER.decode([token]) for token in TOKENIZER.beginning_with(",y")]
    assert {text.strip()[0] for text in texts} == {",", "y"}


def test_encoding_adds_what_the_tokenizer_adds_and_a_chat_does_not() -> None:
    core = new_core()
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", core.token_to_id("<s>"))]
    )
    tokenizer = Tokenizer(core, {"bos_token": "<s>"}, "{{ bos_token }}{{ messages[0].content }}")
    begin, hello = core.token_to_id("<s>"), TOKENIZER.encode("hello")
    assert tokenizer.encode("hello") == [begin, *hello]
    assert tokenizer.encode("hello", special_tokens=False) == hello
    assert tokenizer.chat([{"role": "user", "content": "hello"}]) == [begin, *hello]


def test_the_stop_token_is_the_configured_end() -> None:
    (stop,) = TOKENIZER.stop_token_ids
    assert TOKENIZER.encode("<|im_end|>") == [stop]


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        (None, "no chat template"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% if %}", "cannot be compiled"),
        ("{{ messages.append(1) }}", "refuses these messages"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "refuses these messages"),
    ],
)
def test_a_template_that_is_missing_broken_or_hostile_is_an_error(
    template: str | None, complaint: str
) -> None:
    with pytest.raises(TokenizerError, match=complaint):
        new_tokenizer(template).chat([{"role": "user", "content": "hello"}])


@pytest.mark.parametrize("where", ["config", "named", "file"])
def test_the_template_is_found_wherever_checkpoints_keep_it(where: str, tmp_path: Path) -> None:
    new_core().save(str(tmp_path / "tokenizer.json"))
    config: dict[str, object] = {"eos_token": {"content": "<|im_end|>"}, "bos_token": None}
    if where == "config":
        config["chat_template"] = CHATML
    elif where == "named":
        tools = {"name": "tool_use", "template": "tools"}
        config["chat_template"] = [tools, {"name": "default", "template": CHATML}]
    else:
        (tmp_path / "chat_template.jinja").write_text(CHATML)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_folder(tmp_path)
    messages = [{"role": "user", "content": "hello"}]
    assert tokenizer.chat(messages) == TOKENIZER.chat(messages)
    assert tokenizer.stop_token_ids == TOKENIZER.stop_token_ids


def test_a_checkpoint_without_tokenizer_says_so(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="no tokenizer"):
        Tokenizer.from_folder(tmp_path)


def test_a_damaged_tokenizer_says_so(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match="fetch it again"):
        Tokenizer.from_folder(tmp_path)
