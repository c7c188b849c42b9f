"""An answer ends before a stop string, and nothing of the string is ever given out."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models

from dspark import Engine, InvalidSampling, SamplingParams, Target, TokenizerError, load_target
from dspark.drafters import Anchor, Draft
from dspark.stop_strings import StopStrings
from dspark.tokenizer import Detokenizer, Tokenizer

VOCAB = 64
BYTES_OF_E_ACUTE = ("Ã", "©")  # as byte-level vocabularies write them
PIECES = ("a", "b", "c", "ab", "bc", "ca", "abc", "cab", *BYTES_OF_E_ACUTE, "a" + "Ã", "©" + "b")
Write = Callable[..., Path]


def byte_level(pieces: Sequence[str]) -> tokenizers.Tokenizer:
    """A tokenizer whose token ids are places in `pieces`."""
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    core = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=pieces[0]))
    core.decoder = decoders.ByteLevel()
    return core


TOKENIZER = Tokenizer(byte_level(PIECES), {}, None)


def is_whole(text: str) -> bool:
    return not text.endswith("\N{REPLACEMENT CHARACTER}")


def reference(
    tokenizer: Tokenizer, answer: Sequence[int], stop: Sequence[str]
) -> tuple[list[int], bool]:
    """By decoding everything again: the tokens before the first stop string, if there is one."""
    for length in range(1, len(answer) + 1):
        text = tokenizer.decode(answer[:length])
        starts = [text.find(string) for string in stop if string in text]
        if is_whole(text) and starts:
            before = [
                kept
                for kept in range(length)
                if is_whole(part := tokenizer.decode(answer[:kept])) and len(part) <= min(starts)
            ]
            return list(answer[: max(before)]), True
    return list(answer), False


def watch(
    tokenizer: Tokenizer, answer: Sequence[int], stop: Sequence[str]
) -> tuple[list[list[int]], bool]:
    """What is given out after each token, and at the end."""
    strings = StopStrings(stop, Detokenizer(tokenizer))
    given_out = []
    for token in answer:
        given_out.append(strings.feed(token))
        if strings.found:
            return given_out, True
    return [*given_out, strings.flush()], False


answers = st.lists(st.integers(0, len(PIECES) - 1), max_size=25)
stops = st.lists(st.text("abcé", min_size=1, max_size=4), min_size=1, max_size=3)


@given(answers, stops)
def test_what_is_given_out_is_what_decoding_everything_again_leaves(
    answer: list[int], stop: list[str]
) -> None:
    given_out, found = watch(TOKENIZER, answer, stop)
    assert ([token for each in given_out for token in each], found) == reference(
        TOKENIZER, answer, stop
    )


@given(answers, stops)
def test_nothing_is_held_back_without_need(answer: list[int], stop: list[str]) -> None:
    given_out, found = watch(TOKENIZER, answer, stop)
    steps = given_out if found else given_out[:-1]
    for length in range(1, len(steps) + (not found)):
        text = TOKENIZER.decode(answer[:length])
        so_far = [token for each in steps[:length] for token in each]
        held = text[len(TOKENIZER.decode(so_far)) :]
        if not held or not is_whole(text):
            continue
        # The first token held back reaches into a text that begins a stop string.
        first = next(
            n for n in range(1, length + 1) if is_whole(TOKENIZER.decode(answer[: len(so_far) + n]))
        )
        end = len(TOKENIZER.decode(answer[: len(so_far) + first])) - len(text) + len(held)
        beginnings = [s for s in range(end) if any(x.startswith(held[s:]) for x in stop)]
        assert beginnings, f"{held!r} was held back for {stop}"


def test_a_beginning_that_comes_to_nothing_is_given_out_late_and_whole() -> None:
    a, b, c = (PIECES.index(piece) for piece in "abc")
    assert watch(TOKENIZER, [c, a, b, b, a], ["abc"]) == ([[c], [], [], [a, b, b], [], [a]], False)


def test_a_stop_string_ends_inside_a_token_and_begins_inside_another() -> None:
    ca, bc, c = (PIECES.index(piece) for piece in ("ca", "bc", "c"))
    assert watch(TOKENIZER, [c, ca, bc], ["ab"]) == ([[c], [], []], True)


def test_of_two_stop_strings_that_end_together_the_longer_counts() -> None:
    a, b, c = (PIECES.index(piece) for piece in "abc")
    assert watch(TOKENIZER, [c, a, b, c], ["bc", "abc"]) == ([[c], [], [], []], True)


def test_a_stop_string_may_begin_with_part_of_a_character() -> None:
    a, first, second = (PIECES.index(piece) for piece in ("a", *BYTES_OF_E_ACUTE))
    assert watch(TOKENIZER, [a, first, second], ["é"]) == ([[a], [], []], True)
    assert watch(TOKENIZER, [a, first, second], ["ü"]) == ([[a], [], [first, second], []], False)


# --- in the engine -------------------------------------------------------------------------------

PROMPT = [5, 9, 2, 33, 60]
ANSWER = 60
BLOCK = 4
MODEL_PIECES = [
    *("abc"[index % 3] + "ab"[index // 3 % 2] * (index % 2) for index in range(VOCAB)),
]


def params(**settings: object) -> SamplingParams:
    bias = {1: float("-inf")}
    return SamplingParams(max_new_tokens=ANSWER, logit_bias=bias, **settings)  # type: ignore[arg-type]


class Oracle:
    """Drafts a known answer, with every fifth token wrong."""

    taps: Sequence[int] = ()
    block_size = BLOCK

    def __init__(self, answer: Sequence[int]) -> None:
        self._answer = answer

    def new_cache(self, slots: int, context_tokens: int) -> None:
        return None

    def extend(self, cache: object, slot: int, start: int, features: object) -> None:
        raise AssertionError("it asked for no features")

    def draft(self, cache: object, anchors: Sequence[Anchor]) -> list[Draft]:
        done = len(anchors[0].sampler.answer)
        known = list(enumerate(self._answer))[done : done + BLOCK]
        tokens = tuple((token + (place % 5 == 0)) % VOCAB for place, token in known)
        return [Draft(tokens, confidence=(0.8,) * len(tokens))]


@pytest.fixture
def speaking_target(write_model: Write) -> Target:
    """The tiny model with a tokenizer."""
    folder = write_model()
    pieces = [f"{piece}\N{ZERO WIDTH SPACE}{n}" for n, piece in enumerate(MODEL_PIECES)]
    core = byte_level(pieces)
    core.decoder = decoders.Sequence(
        [decoders.Replace(tokenizers.Regex("\N{ZERO WIDTH SPACE}\\d+"), ""), decoders.Fuse()]
    )
    core.save(str(folder / "tokenizer.json"))
    return load_target(folder)


@pytest.mark.parametrize("drafted", [False, True])
def test_the_engine_gives_what_decoding_everything_again_leaves(
    drafted: bool, speaking_target: Target
) -> None:
    target, rng = speaking_target, random.Random(2)
    with Engine(target, context_tokens=128) as plain:
        whole = plain.generate(PROMPT, params()).token_ids
    text = target.tokenizer.decode(whole)
    ended_inside_a_block = 0
    with Engine(target, Oracle(whole) if drafted else None, context_tokens=128) as engine:
        for _ in range(40):
            start = rng.randrange(len(text))
            stop = (text[start : start + rng.randint(1, 5)], "cccccccc")
            expected, found = reference(target.tokenizer, whole, stop)
            result = engine.generate(PROMPT, params(stop=stop))
            assert list(result.token_ids) == expected
            assert result.finish_reason == ("stop" if found else "length")
            assert not any(string in target.tokenizer.decode(result.token_ids) for string in stop)
            last = result.steps[-1]
            ended_inside_a_block += len(last.committed) < last.accepted
    assert (ended_inside_a_block > 0) == drafted


def test_held_back_tokens_come_when_the_answer_ends_otherwise(speaking_target: Target) -> None:
    with Engine(speaking_target, context_tokens=128) as engine:
        whole = engine.generate(PROMPT, params()).token_ids
        text = speaking_target.tokenizer.decode(whole)
        never = text + "and more"
        result = engine.generate(PROMPT, params(stop=(never,)))
        assert (result.token_ids, result.finish_reason) == (whole, "length")
        assert [step.committed for step in result.steps[:-1]] == [()] * (ANSWER - 1)
        stop = next(token for token in whole[5:] if token not in whole[:5])
        result = engine.generate(PROMPT, params(stop=(never,), stop_token_ids=frozenset({stop})))
        assert (result.token_ids, result.finish_reason) == (whole[: whole.index(stop)], "stop")


@pytest.mark.parametrize("stop", ["abc", ("",), ("a", "")])
def test_what_is_no_tuple_of_texts_is_refused(stop: object) -> None:
    with pytest.raises(InvalidSampling, match="a tuple of texts"):
        SamplingParams(stop=stop)  # type: ignore[arg-type]


def test_a_model_without_a_tokenizer_has_no_stop_strings(engine: Engine) -> None:
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        engine.submit(PROMPT, SamplingParams(stop=("a",)))
