"""Utterances on the sample clock: the same whatever the network did to the arrival times."""

from __future__ import annotations

from collections.abc import Container

import pytest

from assistant.events import INPUT_RATE_HZ, AudioAnalysed
from assistant.hearing import STALL_S, TAIL_MS, Hearing, Utterance
from assistant.settings import TurnDetection

WINDOW = 512
WINDOW_S = WINDOW / INPUT_RATE_HZ


def hear(
    hearing: Hearing,
    voiced: Container[int],
    windows: int,
    arrival_s: dict[int, float] | None = None,
) -> tuple[list[tuple[str, int]], Utterance | None]:
    """Feed windows that arrive on time unless told otherwise; return the changes, the utterance."""
    changes, utterance, latest_s = [], None, 0.0
    for window in range(windows):
        latest_s = max(latest_s, (arrival_s or {}).get(window, (window + 1) * WINDOW_S))
        probability = 0.95 if window in voiced else 0.02
        frame = AudioAnalysed(window * WINDOW, (window + 1) * WINDOW, probability)
        change = hearing.feed(frame, latest_s)
        if change:
            changes.append((change, window))
        if change == "stopped":
            utterance = hearing.take()
    return changes, utterance


def new_hearing(silence_ms: int = 500) -> Hearing:
    detection = TurnDetection(silence_ms=silence_ms, prefix_padding_ms=500, pause_ms=None)
    return Hearing(detection, min_speech_ms=90, max_utterance_s=60)


def test_an_utterance_has_its_lead_in_and_its_soft_ending() -> None:
    changes, utterance = hear(new_hearing(), range(40, 80), 120)
    assert changes[0] == ("started", 42)  # three windows of 32 ms make 90 ms of speech
    assert changes[1] == ("stopped", 79 + 16)  # 16 windows make 500 ms of silence
    assert utterance is not None
    assert utterance.start_sample == 40 * WINDOW - INPUT_RATE_HZ // 2
    assert utterance.end_sample == 80 * WINDOW + TAIL_MS * INPUT_RATE_HZ // 1000
    assert utterance.speech_start_s == pytest.approx(40 * WINDOW_S)
    assert utterance.speech_end_s == pytest.approx(80 * WINDOW_S)


def test_late_arrivals_do_not_move_the_end_of_speech() -> None:
    delayed = {window: (window + 1) * WINDOW_S + 0.2 for window in range(60, 90)}
    _, utterance = hear(new_hearing(), range(40, 80), 120, delayed)
    assert utterance is not None
    assert utterance.speech_end_s == pytest.approx(80 * WINDOW_S)


def test_a_burst_is_placed_as_if_it_had_been_spoken_until_now() -> None:
    at_once = dict.fromkeys(range(120), 50.0)
    _, utterance = hear(new_hearing(), range(40, 80), 120, at_once)
    assert utterance is not None
    assert utterance.speech_end_s == pytest.approx(50.0 - 16 * WINDOW_S)


def test_the_next_utterance_does_not_hear_the_last_one_again() -> None:
    hearing = new_hearing(silence_ms=200)
    hear(hearing, range(40, 60), 70)
    assert hearing.needed_from() >= 60 * WINDOW


def test_audio_that_stops_coming_has_a_deadline_only_in_an_utterance() -> None:
    hearing = new_hearing()
    hear(hearing, range(0), 10)
    assert hearing.stalls_s is None
    hear(hearing, range(0, 10), 10)
    assert hearing.stalls_s == pytest.approx(10 * WINDOW_S + STALL_S)


def test_an_utterance_cannot_go_on_for_ever() -> None:
    detection = TurnDetection(prefix_padding_ms=0, pause_ms=None)
    changes, _ = hear(Hearing(detection, 90, max_utterance_s=2.0), range(0, 1_000), 80)
    assert changes[1][0] == "stopped"
    assert changes[1][1] == pytest.approx(2.0 / WINDOW_S, abs=1)


def test_a_pause_is_told_once_and_so_is_its_end() -> None:
    hearing = Hearing(TurnDetection(pause_ms=160), 90, max_utterance_s=60)
    voiced = [*range(40, 60), *range(70, 80), *range(82, 90)]  # gaps of 320 ms and of 64 ms
    changes, _ = hear(hearing, voiced, 120)
    assert changes == [
        ("started", 42),
        ("paused", 64),  # five windows are 160 ms
        ("resumed", 70),
        ("paused", 94),
        ("stopped", 105),
    ]
