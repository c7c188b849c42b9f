"""What is asked of the model at a pause, and what its answers come to."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assistant.completeness import SMOLLM2, as_sentence
from assistant.items import Message, Role
from assistant.language import EngineLanguageModel
from audio.endpoint import SemanticEndpointer
from dspark import SamplingParams

END = 0
logs = st.floats(-30, 0)


@pytest.mark.parametrize(
    ("heard", "judged"),
    [
        ("Turn on the lamp.", "turn on the lamp."),
        ("Turn on the lamp", "turn on the lamp."),
        ("What's the time?", "what's the time?"),
        ("Hello? Are you there", "hello are you there."),
        ("If the reader will excuse me...", "if the reader will excuse me."),
        ("Well, it's 5 %!", "well it's 5 %."),
        ("...", ""),
        ("", ""),
    ],
)
def test_the_recognisers_marks_are_not_judged_but_for_a_question(heard: str, judged: str) -> None:
    assert as_sentence(heard) == judged


@given(logs, logs, logs)
def test_the_likelier_an_end_the_more_complete(sentence: float, turn: float, less: float) -> None:
    words = "turn on the lamp."
    full = SMOLLM2.probability(words, sentence=sentence, turn=turn)
    assert 0 < full < 1
    assert SMOLLM2.probability(words, sentence=min(sentence, less), turn=turn) <= full
    assert SMOLLM2.probability(words, sentence=sentence, turn=min(turn, less)) <= full
    assert SMOLLM2.probability("hello there.", sentence=sentence, turn=turn) < full


def test_a_whole_request_is_hardly_doubted_though_more_is_expected() -> None:
    unlikely = math.log(0.0005)
    told = SMOLLM2.probability("I like the lamp.", sentence=-1.0, turn=unlikely)
    asked = SMOLLM2.probability("Turn on the lamp.", sentence=-1.0, turn=unlikely)
    broken_off = SMOLLM2.probability("Turn on the.", sentence=-6.0, turn=unlikely)
    endpointer = SemanticEndpointer()
    waits_ms = [endpointer.silence_needed_ms("", each) for each in (asked, told, broken_off)]
    assert waits_ms[0] == pytest.approx(450, abs=5)
    assert waits_ms[0] + 300 < waits_ms[1] < waits_ms[2]


class Letters:
    """One token a character; code 0 ends a message."""

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        return [ord(c) for m in messages for c in m["content"]]

    def unfinished_chat(self, messages: Sequence[dict[str, str]]) -> tuple[list[int], int]:
        return self.chat(messages), END

    def beginning_with(self, marks: str) -> frozenset[int]:
        return frozenset(map(ord, marks))


@dataclass
class FakeEngine:
    """Says the same of everything."""

    asked: list[str] = field(default_factory=list)

    async def score(
        self, prompt: Sequence[int], groups: Sequence[Collection[int]], *, last: int
    ) -> tuple[tuple[float, ...], ...]:
        self.asked.append("".join(map(chr, prompt)))
        assert last == 2
        assert list(groups[0]) == [END]
        assert {END, ord("."), ord("?")} <= set(groups[1])
        # Of the last word: ends the turn, ends the sentence. Of the mark: the same.
        return ((math.log(0.001), math.log(0.4)), (math.log(0.3), math.log(0.9)))


def judge(engine: FakeEngine, *messages: Message) -> float | None:
    language = EngineLanguageModel(
        engine,  # type: ignore[arg-type]
        Letters(),  # type: ignore[arg-type]
        SamplingParams(max_new_tokens=20),
        context_tokens=100,
    )
    return asyncio.run(language.turn_end(messages))


def test_the_sentence_is_judged_by_its_last_word_and_the_turn_by_its_mark() -> None:
    engine = FakeEngine()
    found = judge(engine, Message(Role.SYSTEM, "S"), Message(Role.USER, "What is that thing?"))
    assert engine.asked == ["Swhat is that thing?"]
    expected = SMOLLM2.probability("a b c", sentence=math.log(0.4), turn=math.log(0.3))
    assert found == pytest.approx(expected)


def test_nothing_is_asked_about_no_words() -> None:
    engine = FakeEngine()
    assert judge(engine, Message(Role.USER, " ... ")) is None
    assert engine.asked == []


def test_a_long_conversation_is_judged_by_its_end() -> None:
    engine = FakeEngine()
    talk = [Message(Role.USER, "x" * 40), Message(Role.ASSISTANT, "y" * 40)]
    judge(engine, *talk, Message(Role.USER, "What is it?"))
    assert engine.asked == ["what is it?"]
