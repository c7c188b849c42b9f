"""Sound between the wire and the core: nothing is lost, repeated or moved."""

from __future__ import annotations

import base64
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assistant.realtime.audio_stream import SLICE_S, InputAudio, OutputAudio
from audio.pcm import Encoding
from tests.protocol.client import tone

VOICE_HZ, WIRE_HZ = 22_050, 24_000
ENCODINGS = [(Encoding.PCM16, WIRE_HZ), (Encoding.MULAW, 8_000), (Encoding.ALAW, 8_000)]


def voice(samples: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return (0.3 * np.sin(np.arange(samples) * 0.05)).astype(np.float32)


@pytest.mark.parametrize(("encoding", "rate_hz"), ENCODINGS)
@given(cuts=st.lists(st.integers(0, VOICE_HZ), max_size=6))
def test_pieces_follow_each_other_without_a_gap(
    encoding: Encoding, rate_hz: int, cuts: list[int]
) -> None:
    audio, samples = OutputAudio(encoding, VOICE_HZ, rate_hz), voice(VOICE_HZ)
    edges = [0, *sorted(cuts), VOICE_HZ]
    pieces = [audio.encode(start, samples[start:end]) for start, end in itertools.pairwise(edges)]
    sent_bytes = 0
    for piece in [*pieces, audio.finish()]:
        if piece is not None:
            delta, start_ms = piece
            sent = sent_bytes // encoding.bytes_per_sample
            assert start_ms == pytest.approx(sent * 1000 / rate_hz)
            sent_bytes += len(base64.b64decode(delta))
    seconds = sent_bytes / encoding.bytes_per_sample / rate_hz
    assert seconds == pytest.approx(1.0, abs=1 / rate_hz)


def test_sound_that_was_skipped_moves_what_follows() -> None:
    audio = OutputAudio(Encoding.PCM16, VOICE_HZ, WIRE_HZ)
    audio.encode(0, voice(VOICE_HZ // 2))
    later = audio.encode(VOICE_HZ * 2, voice(VOICE_HZ // 2))
    assert later is not None
    assert later[1] == 2_000.0


def test_a_long_append_is_worked_off_in_slices() -> None:
    audio = InputAudio(Encoding.PCM16, WIRE_HZ)
    slices = list(audio.decode(base64.b64encode(tone(3.2)).decode()))
    assert len(slices) == 7
    assert max(len(samples) for samples in slices) <= SLICE_S * 16_000 + 1
    whole = sum(len(samples) for samples in slices) + len(audio.finish())
    assert whole == pytest.approx(3.2 * 16_000, abs=1)
