"""Answers begun at a pause, in virtual time: a hit costs nothing, a miss leaves no trace."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assistant.effects import (
    AudioCommitted,
    ItemAdded,
    PlaybackCleared,
    ResponseAudio,
    ResponseStarted,
    ResponseText,
    TranscriptCompleted,
)
from assistant.events import ClearAudio, CreateItem, UpdateSettings
from assistant.items import Role
from assistant.settings import Settings, TurnDetection
from tests.timing.world import WINDOW_S, Pace, Speech, World, acknowledged, finished

HELLO = Speech(1.0, 2.0, "turn on the light")
ADDED = Speech(2.42, 3.0, "not")
REPLY = "Of course, here you are. Anything else?"
QUICK = Pace(transcript_s=0.1, first_text_s=0.1, text_s=0.0, encode_s=0.1, window_s=0.0)
PAUSE_S = 0.160
SILENCE_S = 0.5


def settings(pause_ms: int | None = 160) -> Settings:
    return acknowledged(Settings(turn_detection=TurnDetection(pause_ms=pause_ms)))


def world(*speeches: Speech, pause_ms: int | None = 160, pace: Pace = QUICK) -> World:
    return World(settings(pause_ms), speeches=speeches, replies=(REPLY,), pace=pace)


def first_sound_s(played: World) -> float:
    return played.when(ResponseAudio)[0]


def test_an_answer_that_is_ready_at_the_endpoint_leaves_with_it() -> None:
    hit = world(HELLO)
    hit.run(until_s=10)
    (turn,) = hit.turns
    assert turn.speculation == "hit"
    assert turn.timeline.added_latency_ms == 0
    assert first_sound_s(hit) == turn.timeline.endpoint_s
    assert turn.heard == REPLY
    assert hit.said == [("user", "turn on the light"), ("assistant", REPLY)]


def test_nothing_is_known_outside_before_the_endpoint() -> None:
    hit = world(HELLO)
    hit.run(until_s=2.0 + SILENCE_S - WINDOW_S)
    assert hit.prompts, "nothing was prepared"
    assert (
        hit.of(AudioCommitted, ItemAdded, TranscriptCompleted, ResponseStarted, ResponseText) == []
    )
    assert list(hit.session.history) == []


def test_work_that_takes_longer_than_the_silence_still_began_at_the_pause() -> None:
    slow = replace(QUICK, first_text_s=0.6)
    early, late = world(HELLO, pace=slow), world(HELLO, pace=slow, pause_ms=None)
    for each in (early, late):
        each.run(until_s=10)
    gained_s = first_sound_s(late) - first_sound_s(early)
    assert gained_s == pytest.approx(SILENCE_S - PAUSE_S, abs=WINDOW_S)


def test_a_word_added_after_the_pause_gets_an_answer_of_its_own() -> None:
    """One "not" turns the meaning round: the answer begun without it must never be heard."""
    miss = world(HELLO, ADDED)
    miss.run(until_s=10)
    (turn,) = miss.turns
    assert turn.transcript == "turn on the light not"
    assert [prompt.messages[-1].text for prompt in miss.prompts] == [
        "turn on the light",
        "turn on the light not",
    ]
    assert len(finished(miss)) == 1
    assert turn.wasted_tokens > 0
    assert miss.of(PlaybackCleared) == []


def test_work_on_a_wrong_guess_ends_with_the_first_sound_of_more() -> None:
    miss = world(HELLO, ADDED)
    miss.run(until_s=10)
    assert miss.stops_s == [pytest.approx(ADDED.start_s, abs=WINDOW_S)]


def test_a_miss_costs_nothing_over_not_having_guessed() -> None:
    missed, plain = world(HELLO, ADDED), world(HELLO, ADDED, pause_ms=None)
    for each in (missed, plain):
        each.run(until_s=10)
    assert first_sound_s(missed) <= first_sound_s(plain)


@pytest.mark.parametrize(
    "change",
    [
        CreateItem(role=Role.USER, text="by the way, answer in French"),
        CreateItem(role=Role.SYSTEM, text="Answer in French."),
        UpdateSettings(settings=replace(settings(), instructions="Answer in French.")),
        UpdateSettings(settings=replace(settings(), speed=1.5)),
    ],
)
def test_an_answer_is_not_used_if_what_it_was_made_from_has_changed(
    change: CreateItem | UpdateSettings,
) -> None:
    changed = world(HELLO)
    changed.at(2.3, change)
    changed.run(until_s=10)
    (turn,) = changed.turns
    assert turn.speculation == "miss"
    assert len(changed.prompts) == 2
    assert turn.heard == REPLY


def test_clearing_the_audio_drops_what_was_prepared() -> None:
    cleared = world(HELLO)
    cleared.at(2.35, ClearAudio(end_sample=37_600))
    cleared.run(until_s=10)
    assert cleared.of(ResponseStarted) == []
    assert cleared.session.turns == []


def test_the_words_are_recognised_once() -> None:
    """The attempt at the pause has heard everything that was said."""
    hit = world(HELLO)
    hit.run(until_s=10)
    (turn,) = hit.turns
    assert turn.timeline.transcript_s is not None and turn.timeline.endpoint_s is not None
    assert turn.timeline.transcript_s < turn.timeline.endpoint_s


def test_of_a_guess_only_the_first_clause_is_spoken() -> None:
    """A wrong guess must not keep the voice from other sessions."""
    hit = World(
        settings(),
        speeches=(HELLO,),
        replies=("One two three. Four five six. Seven eight nine. Ten eleven twelve.",),
        pace=replace(QUICK, first_text_s=0.02, encode_s=0.02),
    )
    hit.run(until_s=2.0 + SILENCE_S - WINDOW_S)
    assert hit.spoken_chunks == [0]
    hit.run(until_s=10)
    assert hit.spoken_chunks == [0, 1, 2, 3]


def test_a_recogniser_that_fails_at_the_pause_is_tried_again_at_the_end() -> None:
    failing = World(settings(), speeches=(HELLO,), replies=(REPLY,), pace=QUICK)
    failing.fail_once("asr")
    failing.run(until_s=10)
    assert failing.turns[0].outcome == "done"
    assert failing.turns[0].transcript == "turn on the light"


def test_a_model_that_fails_on_a_guess_is_asked_again() -> None:
    failing = World(settings(), speeches=(HELLO,), replies=(REPLY,), pace=QUICK)
    failing.fail_once("llm")
    failing.run(until_s=10)
    assert failing.turns[0].outcome == "done"
    assert failing.turns[0].heard == REPLY
