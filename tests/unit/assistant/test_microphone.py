"""Microphone audio by absolute position."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from assistant.microphone import MicrophoneBuffer


@given(
    lengths=st.lists(st.integers(0, 50), max_size=10),
    released=st.integers(0, 300),
    start=st.integers(0, 300),
    length=st.integers(0, 300),
)
def test_what_is_held_is_found_at_its_position(
    lengths: list[int], released: int, start: int, length: int
) -> None:
    microphone = MicrophoneBuffer()
    for block in lengths:
        end = microphone.end_sample
        microphone.append(np.arange(end, end + block, dtype=np.float32))
    microphone.release(released)
    total = sum(lengths)
    assert microphone.start_sample <= max(released, 0)
    expected = np.arange(max(start, microphone.start_sample), min(start + length, total))
    np.testing.assert_array_equal(microphone.slice(start, start + length), expected)


def test_nothing_is_kept_that_nobody_needs() -> None:
    microphone = MicrophoneBuffer()
    for _ in range(1_000):
        microphone.append(np.zeros(320, np.float32))
        microphone.release(microphone.end_sample - 16_000)
    assert microphone.end_sample - microphone.start_sample < 16_000 + 320
