"""What is hidden in the silence that ends a turn, in round numbers.

Recognition, the first token, the first clause and its first sound take a tenth of a second each,
and the turn ends after three tenths of silence. So a tenth has to be hidden in the speech itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from assistant.effects import (
    Confirm,
    Effect,
    Generate,
    Hasten,
    JudgeTurnEnd,
    Notice,
    Prefill,
    ResponseAudio,
    ResponseStarted,
    SpeechStarted,
    StopWork,
    Synthesise,
    Transcribe,
    TranscriptSoFar,
)
from assistant.settings import Settings, TurnDetection
from tests.timing.world import Pace, Speech, World, acknowledged

WINDOW = 80
"""5 ms: what is measured here must not drown in the 32 ms of the real windows."""
REPLY = "Of course, here you are. Anything else?"
CLAUSE_WORDS = 5
TENTHS = Pace(
    transcript_s=0.1, first_text_s=0.1, text_s=0.1 / CLAUSE_WORDS, encode_s=0.1, window_s=0.0
)
SPEECH_END_S = 2.0
LIGHT = Speech(1.0, SPEECH_END_S, "turn on the light")


def world(*speeches: Speech, speculate: bool = True, pace: Pace = TENTHS) -> World:
    pause_ms = 5 if speculate else None
    detection = TurnDetection(silence_ms=300, pause_ms=pause_ms)
    return World(
        acknowledged(Settings(turn_detection=detection)),
        speeches=speeches,
        replies=(REPLY,),
        pace=pace,
        window=WINDOW,
        microphone_until_s=6.0,
    )


def first_sound_s(played: World) -> float:
    played.run(until_s=10)
    return played.when(ResponseAudio)[0]


@pytest.mark.parametrize(("fade_s", "breath_s", "attempts"), [(0.1, 0.0, 1), (0.2, 0.1, 2)])
def test_the_first_sound_comes_with_the_end_of_the_turn(
    fade_s: float, breath_s: float, attempts: int
) -> None:
    """The words are known when the speech ends, by an attempt that has heard all of it or nearly.

    In the second case another attempt makes sure of them in the silence.
    """
    hit = world(replace(LIGHT, fade_s=fade_s, breath_s=breath_s))
    assert first_sound_s(hit) - SPEECH_END_S == pytest.approx(0.3, abs=0.01)
    (turn,) = hit.turns
    assert turn.speculation == "hit"
    assert turn.wasted_tokens == 0
    assert len(hit.attempts) == attempts


def test_words_that_are_known_a_tenth_late_cost_a_tenth() -> None:
    assert first_sound_s(world(LIGHT)) - SPEECH_END_S == pytest.approx(0.4, abs=0.01)


def test_without_foresight_it_all_adds_up() -> None:
    plain = world(LIGHT, speculate=False)
    assert first_sound_s(plain) - SPEECH_END_S == pytest.approx(0.3 + 0.1 + 0.1 + 0.1, abs=0.01)


@pytest.mark.parametrize("added", ["not", "please do not"])
def test_a_miss_costs_no_more_than_ten_milliseconds(added: str) -> None:
    more = Speech(SPEECH_END_S + 0.2, 3.0, added, fade_s=0.05)
    missed, plain = world(LIGHT, more), world(LIGHT, more, speculate=False)
    assert first_sound_s(missed) <= first_sound_s(plain) + 0.01
    assert missed.turns[0].transcript == f"turn on the light {added}"


def test_an_attempt_that_missed_the_last_word_is_not_answered() -> None:
    """The words are one "not" short when the answer is begun, and whole before the turn is over."""
    late = world(Speech(1.0, SPEECH_END_S, "do it or better not", fade_s=0.13))
    first_sound_s(late)
    said = [prompt.messages[-1].text for prompt in late.prompts]
    assert said == ["do it or better", "do it or better not"]
    (turn,) = late.turns
    assert turn.transcript == "do it or better not"
    assert late.said == [("user", "do it or better not"), ("assistant", REPLY)]


def test_the_same_words_spelt_otherwise_are_the_same_words() -> None:
    hit = world(replace(LIGHT, fade_s=0.2, breath_s=0.1))
    hit.respell = str.upper
    first_sound_s(hit)
    assert len(hit.prompts) == 1
    assert hit.turns[0].speculation == "hit"


# -- nothing can be noticed before the turn is over ---------------------------------------------

UNNOTICED = {Transcribe, Hasten, Prefill, JudgeTurnEnd, Generate, Synthesise, StopWork}
"""Work that only computes. Whatever acts on the world, as a tool does, is none of it."""
AFTER_THE_TURN = {Confirm}
WHILE_THE_USER_SPEAKS = {SpeechStarted, TranscriptSoFar}


def test_every_kind_of_work_says_whether_it_may_be_done_before_the_turn_is_over() -> None:
    """A new kind fails here until somebody has thought about it."""
    work = set(get_args(Effect)) - set(get_args(Notice))
    assert work == UNNOTICED | AFTER_THE_TURN


@pytest.mark.parametrize("fade_s", [0.0, 0.09, 0.15])
def test_before_the_turn_is_over_work_is_done_and_nothing_is_told(fade_s: float) -> None:
    hit = world(replace(LIGHT, fade_s=fade_s), pace=replace(TENTHS, transcript_s=0.02))
    hit.run(until_s=SPEECH_END_S + 0.295)
    assert hit.prompts and hit.spoken_chunks, "nothing was prepared"
    done = {type(effect) for _, effect in hit.effects}
    assert done <= UNNOTICED | WHILE_THE_USER_SPEAKS
    hit.run(until_s=SPEECH_END_S + 0.305)
    assert hit.of(ResponseStarted, ResponseAudio)
