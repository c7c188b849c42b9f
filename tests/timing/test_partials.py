"""The words of somebody who is still speaking, in virtual time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from assistant.effects import (
    SpeechStopped,
    TranscriptCompleted,
    TranscriptSoFar,
    UtteranceDiscarded,
)
from assistant.settings import Settings, TurnDetection
from tests.timing.world import WINDOW_S, Pace, Speech, World, acknowledged

QUICK = Pace(transcript_s=0.1, first_text_s=0.1, text_s=0.0, encode_s=0.1, window_s=0.0)
LIGHT = Speech(1.0, 2.0, "turn on the light", fade_s=0.06)
SENTENCES = [" ".join(f"word{10 * n + k}" for k in range(10)) for n in range(18)]


def world(*speeches: Speech, pace: Pace = QUICK, until_s: float = 20.0) -> World:
    settings = acknowledged(Settings(turn_detection=TurnDetection(pause_ms=96)))
    return World(settings, speeches=speeches, pace=pace, microphone_until_s=until_s)


def so_far(played: World) -> list[TranscriptSoFar]:
    return [n for n in played.of(TranscriptSoFar) if isinstance(n, TranscriptSoFar)]


def completed(played: World) -> list[str]:
    return [n.text for n in played.of(TranscriptCompleted) if isinstance(n, TranscriptCompleted)]


def test_words_are_shown_while_they_are_said() -> None:
    played = world(Speech(1.0, 9.0, "one two three four five six seven eight"))
    played.run(until_s=9.0)
    shown = so_far(played)
    assert [notice.stable.split()[-1:] for notice in shown] == [[], ["two"], ["four"]]
    assert shown[-1].tentative == "five six"
    assert played.of(SpeechStopped) == []


def test_no_attempt_begins_after_the_end_of_speech_that_fades() -> None:
    played = world(LIGHT)
    played.run(until_s=10)
    assert [work.kind for _, work in played.attempts] == ["partial"]
    assert played.attempts[0][0] < 2.0 + WINDOW_S
    assert completed(played) == ["turn on the light"]


def test_speech_that_stops_at_once_is_recognised_at_the_first_sign_of_silence() -> None:
    played = world(replace(LIGHT, fade_s=0.0))
    played.run(until_s=10)
    assert [work.kind for _, work in played.attempts] == ["pause"]
    assert played.attempts[0][0] == pytest.approx(2.0, abs=2 * WINDOW_S)


def test_words_that_arrive_after_the_endpoint_are_waited_for_and_not_asked_for_again() -> None:
    slow = replace(QUICK, transcript_s=0.8)
    played = world(LIGHT, pace=slow)
    played.run(until_s=10)
    assert len(played.attempts) == 1
    assert completed(played) == ["turn on the light"]


@pytest.mark.parametrize("transcript_s", [0.1, 0.6])
def test_an_attempt_that_fails_is_made_up_for_by_one_at_the_end(transcript_s: float) -> None:
    played = world(LIGHT, pace=replace(QUICK, transcript_s=transcript_s))
    played.fail_once("asr")
    played.run(until_s=10)
    assert [work.kind for _, work in played.attempts] == ["partial", "final"]
    assert played.turns[0].outcome == "done"


@pytest.mark.parametrize("seed", range(10))
def test_attempts_that_fail_or_never_come_back_cost_no_words(seed: int) -> None:
    speech = Speech(1.0, 9.0, "one two three four five six", fade_s=0.06)
    played = World(
        acknowledged(),
        speeches=(speech, replace(speech, start_s=9.3, end_s=11.0)),
        pace=replace(QUICK, transcript_s=0.5, jitter=2.0),
        flaky=0.5,
        seed=seed,
    )
    played.run(until_s=20)
    assert completed(played) == [f"{speech.text} {speech.text}"]


def test_words_that_were_not_there_at_first_are_looked_for_at_the_end() -> None:
    """A "yes" may end so early that the first attempt hears nothing."""
    played = world(Speech(1.0, 1.2, ""))
    played.run(until_s=5)
    assert [work.kind for _, work in played.attempts] == ["pause", "final"]
    assert len(played.of(UtteranceDiscarded)) == 1


def test_a_minute_is_recognised_whole_from_windows_of_seconds() -> None:
    """The speaker draws breath for 0.2 s between sentences of 3 s."""
    sentences = [Speech(1 + 3.2 * n, 4 + 3.2 * n, text) for n, text in enumerate(SENTENCES)]
    played = world(*sentences, until_s=65.0)
    played.run(until_s=70)
    assert completed(played) == [" ".join(SENTENCES)]
    lengths_s = [(work.end_sample - work.start_sample) / 16_000 for _, work in played.attempts]
    assert max(lengths_s) <= 20


def test_a_minute_without_a_breath_is_recognised_as_well() -> None:
    played = world(Speech(1.0, 61.0, " ".join(SENTENCES)), until_s=65.0)
    played.run(until_s=70)
    assert completed(played) == [" ".join(SENTENCES)]
    lengths_s = [(work.end_sample - work.start_sample) / 16_000 for _, work in played.attempts]
    assert max(lengths_s) <= 27


def test_at_most_one_partial_is_on_its_way() -> None:
    slow = replace(QUICK, transcript_s=1.5)
    played = world(Speech(1.0, 13.0, "one two three four five six"), pace=slow)
    played.run(until_s=13.0)
    asked_s = [moment for moment, _ in played.attempts]
    assert len(asked_s) >= 3
    assert all(later - earlier >= 1.5 for earlier, later in pairwise(asked_s))


def test_the_prompt_is_prefilled_with_words_that_are_settled() -> None:
    played = world(Speech(1.0, 9.0, "one two three four five six seven eight"))
    played.run(until_s=9.0)
    said = [prefill.messages[-1:] for prefill in played.prefills]
    assert said[0] == ()
    assert [messages[-1].text for messages in said[1:]] == ["one two", "one two three four"]


def test_a_decoder_that_loops_at_the_end_loses_nothing_that_was_heard_twice() -> None:
    played = world(Speech(1.0, 9.0, "one two three four five six seven eight"))
    played.at(9.0, lambda: setattr(played, "respell", lambda text: ""))
    played.run(until_s=15)
    assert completed(played) == ["one two three four"]
