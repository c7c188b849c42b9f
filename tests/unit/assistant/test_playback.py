"""Audio between its synthesis and the ear: nothing lost, never too far ahead."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assistant.playback import FRAME_MS, Playback

RATE_HZ = 1_000
LEAD_MS = 400
FRAME = FRAME_MS  # at 1 kHz a sample is a millisecond


def ramp(start: int, length: int) -> np.ndarray:
    return np.arange(start, start + length, dtype=np.float32)


def drain(playback: Playback, now: float) -> list[tuple[int, np.ndarray]]:
    frames = []
    while (frame := playback.take(now)) is not None:
        frames.append(frame)
    return frames


@given(
    blocks=st.lists(st.integers(0, 300), max_size=12),
    steps=st.lists(st.floats(0, 0.5), max_size=30),
    lead_ms=st.sampled_from([100, LEAD_MS, None]),
    acknowledged=st.booleans(),
)
def test_every_sample_leaves_once_in_order_and_not_too_early(
    blocks: list[int], steps: list[float], lead_ms: int | None, acknowledged: bool
) -> None:
    playback = Playback(RATE_HZ, lead_ms, acknowledged=acknowledged)
    now, made = 0.0, 0
    left: list[np.ndarray] = []
    for index in range(max(len(blocks), len(steps)) + 200):
        if index < len(blocks):
            playback.append(ramp(made, blocks[index]))
            made += blocks[index]
        else:
            playback.whole = True
        now += steps[index] if index < len(steps) else 0.1
        for start, samples in drain(playback, now):
            assert start == sum(map(len, left))
            left.append(samples)
            if lead_ms is not None:
                assert playback.sent - playback.position(now) <= lead_ms
        if acknowledged:
            playback.acknowledge(playback.sent)
    assert playback.all_heard(now)
    np.testing.assert_array_equal(np.concatenate([*left, ramp(0, 0)]), ramp(0, made))


@given(times=st.lists(st.floats(0, 0.2), min_size=1, max_size=40))
def test_the_assumed_loudspeaker_never_runs_back_nor_beyond_what_was_sent(
    times: list[float],
) -> None:
    playback = Playback(RATE_HZ, LEAD_MS, acknowledged=False)
    playback.append(ramp(0, 2_000))
    now, before = 0.0, 0
    for step in times:
        now += step
        drain(playback, now)
        position = playback.position(now)
        assert before <= position <= playback.sent
        before = position


def test_the_assumed_loudspeaker_waits_while_there_is_nothing_to_play() -> None:
    playback = Playback(RATE_HZ, LEAD_MS, acknowledged=False)
    playback.append(ramp(0, 2 * FRAME))
    drain(playback, now=1.0)
    assert playback.position(1.0) == 0
    assert playback.position(9.0) == 2 * FRAME
    playback.append(ramp(2 * FRAME, FRAME))
    drain(playback, now=9.0)
    assert playback.position(9.0) == 2 * FRAME
    assert playback.position(9.0 + FRAME / RATE_HZ) == 3 * FRAME


def test_it_says_when_the_next_frame_may_leave() -> None:
    playback = Playback(RATE_HZ, LEAD_MS, acknowledged=False)
    playback.append(ramp(0, 1_000))
    drain(playback, now=0.0)
    due_s = playback.next_take_s(0.0)
    assert due_s == pytest.approx(FRAME / RATE_HZ)
    assert playback.take(due_s - 0.002) is None
    assert playback.take(due_s) is not None


def test_positions_beyond_what_was_sent_or_behind_are_clamped() -> None:
    playback = Playback(RATE_HZ, LEAD_MS, acknowledged=True)
    playback.append(ramp(0, 1_000))
    drain(playback, now=0.0)
    playback.acknowledge(5_000)
    assert playback.position(0.0) == playback.sent == LEAD_MS
    playback.acknowledge(10)
    assert playback.position(0.0) == LEAD_MS


def test_a_short_rest_waits_for_more_until_the_answer_is_whole() -> None:
    playback = Playback(RATE_HZ, LEAD_MS, acknowledged=False)
    playback.append(ramp(0, FRAME // 2))
    assert playback.take(0.0) is None
    playback.whole = True
    assert playback.take(0.0) is not None
    assert playback.all_sent()
