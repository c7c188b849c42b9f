"""The sound of one connection between the wire's bytes and the core's samples."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator

import numpy as np

from assistant.events import INPUT_RATE_HZ, Samples
from assistant.realtime.errors import ProtocolError
from audio.pcm import Encoding, PcmDecoder, PcmEncoder, looks_like_wav_header

SLICE_S = 0.5
"""A long append is worked off in slices of this length, so that nobody else waits for it."""


class InputAudio:
    """Base64 text in, 16 kHz samples out; keeps half samples and the resampler's state."""

    def __init__(self, encoding: Encoding, rate_hz: int) -> None:
        self._decoder = PcmDecoder(encoding, rate_hz, INPUT_RATE_HZ)
        self._slice_bytes = round(rate_hz * SLICE_S) * encoding.bytes_per_sample

    def decode(self, text: str) -> Iterator[Samples]:
        """Decode one append, slice by slice.

        Raises `ProtocolError` before the first slice if the text is not base64, or is a sound
        file instead of the bare samples.
        """
        try:
            data = binascii.a2b_base64(text, strict_mode=True)
        except (ValueError, binascii.Error) as error:
            raise ProtocolError(
                "invalid_value", f"audio is not valid base64: {error}", param="audio"
            ) from None
        if looks_like_wav_header(data):
            raise ProtocolError(
                "invalid_audio",
                "audio begins with the header of a WAV file; send the bare samples, "
                "in the session's input format",
                param="audio",
            )
        return self._slices(data)

    def finish(self) -> Samples:
        """End the utterance: return what the resampler holds back. Decoding may go on after."""
        return self._decoder.flush()

    def _slices(self, data: bytes) -> Iterator[Samples]:
        for start in range(0, len(data), self._slice_bytes):
            yield self._decoder.feed(data[start : start + self._slice_bytes])


class OutputAudio:
    """The voice's samples in, base64 text out, for one response.

    Positions are milliseconds since the response's audio began.  The encoder holds back a few
    milliseconds, so a piece's position is counted in what was sent, not in what came in.
    """

    def __init__(self, encoding: Encoding, voice_rate_hz: int, wire_rate_hz: int) -> None:
        self._encoding = encoding
        self._voice_rate_hz = voice_rate_hz
        self._wire_rate_hz = wire_rate_hz
        self._encoder = PcmEncoder(encoding, voice_rate_hz, wire_rate_hz)
        self._next_sample = 0
        self._origin_ms = 0.0
        """Where the samples counted by `_sent` began."""
        self._sent = 0

    def encode(self, start_sample: int, samples: Samples) -> tuple[str, float] | None:
        """Return the next piece and its position, or `None` while all of it is held back."""
        if start_sample != self._next_sample:  # sound was skipped: the filter starts anew
            self._encoder.flush()
            self._origin_ms = start_sample * 1000 / self._voice_rate_hz
            self._sent = 0
        self._next_sample = start_sample + len(samples)
        return self._placed(self._encoder.feed(np.asarray(samples, np.float32)))

    def finish(self) -> tuple[str, float] | None:
        """Return what was held back, and its position."""
        return self._placed(self._encoder.flush())

    def _placed(self, data: bytes) -> tuple[str, float] | None:
        if not data:
            return None
        start_ms = self._origin_ms + self._sent * 1000 / self._wire_rate_hz
        self._sent += len(data) // self._encoding.bytes_per_sample
        return base64.b64encode(data).decode("ascii"), start_ms
