"""When a turn is over by what was said, in virtual time: judgements in time, late, and never."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from assistant.effects import SpeechStopped
from assistant.events import TurnEndJudged
from assistant.settings import Settings, TurnDetection
from audio.endpoint import SemanticEndpointer
from tests.timing.world import WINDOW_S, Pace, Speech, World, acknowledged, finished

SEMANTIC = SemanticEndpointer(shortest_ms=320, doubtful_ms=1100, longest_ms=1500, unjudged_ms=500)
SETTINGS = acknowledged(Settings(turn_detection=TurnDetection(semantic=SEMANTIC, pause_ms=160)))
QUICK = Pace(transcript_s=0.05, judgement_s=0.02, first_text_s=0.1, encode_s=0.1)
LIGHT = Speech(1.0, 2.0, "turn on the light")
REPLY = "Of course, here you are. Anything else?"


def world(
    *speeches: Speech,
    judge: Callable[[str], float | None] = lambda words: 0.99,
    pace: Pace = QUICK,
    settings: Settings = SETTINGS,
    broken: frozenset[str] = frozenset(),
) -> World:
    played = World(settings, speeches=speeches, replies=(REPLY,), pace=pace, broken=broken)
    played.completeness = judge
    return played


def waited_s(played: World) -> list[float]:
    """From the end of each speech to the endpoint of its turn."""
    played.run(until_s=15)
    waits = [turn.timeline.endpoint_wait_ms for turn in played.turns]
    return [wait / 1000 for wait in waits if wait is not None]


@pytest.mark.parametrize(("completeness", "silence_s"), [(0.99, 0.32), (0.5, 1.1), (None, 0.5)])
def test_the_silence_that_ends_a_turn_depends_on_the_words(
    completeness: float | None, silence_s: float
) -> None:
    played = world(LIGHT, judge=lambda words: completeness)
    assert waited_s(played) == [pytest.approx(silence_s, abs=WINDOW_S)]


def test_a_judgement_that_comes_late_ends_the_turn_at_once() -> None:
    late = world(LIGHT, pace=replace(QUICK, judgement_s=0.26))
    (wait_s,) = waited_s(late)
    assert len(late.judged) == 1
    # Not at the window after it: nothing more is to be waited for.
    assert wait_s == pytest.approx(0.16 + 0.26, abs=WINDOW_S)
    assert late.when(SpeechStopped)[0] % WINDOW_S > 1e-6


@pytest.mark.parametrize("broken", ["judge_hangs", "asr_hangs"])
def test_without_a_judgement_silence_ends_the_turn(broken: str) -> None:
    played = world(LIGHT, broken=frozenset({broken}))
    played.run(until_s=4)
    stopped_s = played.when(SpeechStopped)[0]
    assert stopped_s == pytest.approx(2.0 + 0.5, abs=WINDOW_S)


def test_a_judgement_of_words_that_were_added_to_does_not_count() -> None:
    """The model finds "turn on" complete, but says so only when the user speaks again."""
    added = Speech(2.4, 3.0, "and off")
    played = world(
        Speech(1.0, 2.0, "turn on"),
        added,
        judge=lambda words: 0.5 if "off" in words else 0.99,
        pace=replace(QUICK, judgement_s=0.3),
    )
    assert waited_s(played) == [pytest.approx(1.1, abs=WINDOW_S)]
    assert [turn.transcript for turn in played.turns] == ["turn on and off"]


def test_judgements_that_change_places_are_told_apart() -> None:
    played = world(LIGHT, Speech(2.3, 3.0, "please"), judge=lambda words: 0.5)
    played.run(until_s=3.2)
    first, second = played.judged
    played.feed(TurnEndJudged(second.turn_id, second.attempt, 0.5))
    played.feed(TurnEndJudged(first.turn_id, first.attempt, 1.0))
    assert waited_s(played) == [pytest.approx(1.1, abs=WINDOW_S)]


def test_digits_are_waited_for_however_complete_they_sound() -> None:
    played = world(Speech(1.0, 2.0, "it is 5551 2345"), Speech(3.2, 4.0, "6789"))
    assert waited_s(played) == [pytest.approx(1.5, abs=WINDOW_S)]
    assert [turn.transcript for turn in played.turns] == ["it is 5551 2345 6789"]


def test_the_model_is_asked_once_about_the_same_words() -> None:
    played = world(LIGHT)
    played.run(until_s=10)
    assert len(played.judged) == 1
    assert [(str(m.role), m.text) for m in played.judged[0].messages] == [
        ("user", "turn on the light")
    ]


def test_where_silence_ends_turns_nobody_is_asked() -> None:
    played = world(LIGHT, settings=acknowledged(Settings(turn_detection=TurnDetection())))
    assert waited_s(played) == [pytest.approx(0.5, abs=WINDOW_S)]
    assert played.judged == []


def test_words_are_judged_where_no_answer_is_begun_at_pauses() -> None:
    detection = TurnDetection(semantic=SEMANTIC, pause_ms=None)
    played = world(LIGHT, settings=acknowledged(Settings(turn_detection=detection)))
    assert waited_s(played) == [pytest.approx(0.32, abs=WINDOW_S)]
    assert [prompt.speculative for prompt in played.prompts] == [False]


# -- whoever goes on before anything was heard of the answer reopens the turn ----------------------

GOES_ON = "and the heating"


@pytest.mark.parametrize("after_s", [0.40, 0.50, 0.60])
@pytest.mark.parametrize("first_text_s", [0.02, 0.3, 2.0])
def test_whoever_goes_on_in_time_gets_one_answer_to_all_of_it(
    after_s: float, first_text_s: float
) -> None:
    """Also while the answer is prepared, written, or spoken but not yet heard."""
    more = Speech(2.0 + after_s, 3.5, GOES_ON)
    slow = replace(QUICK, first_text_s=first_text_s, encode_s=0.6)
    played = world(LIGHT, more, pace=slow)
    played.run(until_s=15)
    assert played.said == [("user", f"turn on the light {GOES_ON}"), ("assistant", REPLY)]
    assert played.judged[-1].messages[-1].text == f"turn on the light {GOES_ON}"
    assert [turn.outcome for turn in played.turns] == ["interrupted", "done"]
    assert sum(bool(turn.heard) for turn in played.turns) == 1


def test_whoever_goes_on_while_the_words_are_recognised_gets_one_answer_too() -> None:
    more = Speech(2.6, 3.5, GOES_ON)
    played = world(LIGHT, more, pace=replace(QUICK, transcript_s=1.5))
    played.run(until_s=15)
    assert played.said == [("user", f"turn on the light {GOES_ON}"), ("assistant", REPLY)]
    assert len(finished(played)) == 1


def test_whoever_has_heard_some_of_the_answer_interrupts_it() -> None:
    played = world(LIGHT, Speech(3.6, 4.5, GOES_ON))
    played.run(until_s=15)
    roles = [role for role, _ in played.said]
    assert roles == ["user", "assistant", "user", "assistant"]
    assert played.said[2] == ("user", GOES_ON)
