"""Sound between bytes and float samples: formats, sample rates, files.

Samples are mono float32 in [-1, 1] everywhere inside. Every converter keeps its state between
calls, and what comes out does not depend on how the input was cut into calls.
"""

from __future__ import annotations

import codecs
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from audio.errors import AudioFileError, SampleRateError

Samples: TypeAlias = npt.NDArray[np.float32]
"""Mono sound, float32 in [-1, 1], shape `[samples]`."""

LOWEST_RATE_HZ = 4_000
HIGHEST_RATE_HZ = 192_000

_FULL_SCALE = 32_768
_TELLING_BYTES = 1024
"""Of a file's beginning, enough to tell text from sound."""


class Encoding(StrEnum):
    """How samples are written as bytes."""

    PCM16 = "pcm16"
    """16-bit signed integers, little endian."""
    MULAW = "mulaw"
    """ITU-T G.711 μ-law, one byte a sample."""
    ALAW = "alaw"
    """ITU-T G.711 A-law, one byte a sample."""

    @property
    def bytes_per_sample(self) -> int:
        """Width of one encoded sample."""
        return 2 if self is Encoding.PCM16 else 1


# G.711 (ITU-T, 1988): a sign, three bits of segment (a power of two) and four bits of step within
# it. Everything below is at 16-bit scale, as in the reference code of G.191; negative values are
# mirrored by ones' complement, so -1 falls into the same step as 0.
_MULAW_BIAS = 132


def _mulaw_levels() -> npt.NDArray[np.int16]:
    """The 256 levels of μ-law, by code."""
    code = ~np.arange(256) & 0xFF  # the wire carries μ-law inverted
    segment = code >> 4 & 7
    magnitude = ((code & 15) * 8 + _MULAW_BIAS << segment) - _MULAW_BIAS
    return np.where(code & 128, -magnitude, magnitude).astype(np.int16)


def _alaw_levels() -> npt.NDArray[np.int16]:
    """The 256 levels of A-law, by code."""
    code = np.arange(256) ^ 0x55  # the wire carries every other bit inverted
    segment = code >> 4 & 7
    step = (code & 15) * 16 + 8
    magnitude = np.where(segment == 0, step, step + 256 << np.maximum(segment - 1, 0))
    return np.where(code & 128, magnitude, -magnitude).astype(np.int16)


def _mulaw_codes() -> npt.NDArray[np.uint8]:
    """The μ-law code of each 16-bit value, indexed by the value's two's-complement bits."""
    value = np.arange(65_536).astype(np.uint16).view(np.int16).astype(np.int64)
    magnitude = np.minimum(np.where(value < 0, ~value, value) + _MULAW_BIAS, 32_767)
    segment = np.frexp(magnitude)[1] - 8
    code = segment << 4 | (magnitude >> segment + 3 & 15)
    wire: npt.NDArray[np.uint8] = (~np.where(value < 0, code | 128, code) & 255).astype(np.uint8)
    return wire


def _alaw_codes() -> npt.NDArray[np.uint8]:
    """The A-law code of each 16-bit value, indexed by the value's two's-complement bits."""
    value = np.arange(65_536).astype(np.uint16).view(np.int16).astype(np.int64)
    magnitude = np.where(value < 0, ~value, value)
    segment = np.maximum(np.frexp(magnitude)[1] - 8, 0)
    code = segment << 4 | (magnitude >> np.maximum(segment + 3, 4) & 15)
    wire: npt.NDArray[np.uint8] = (np.where(value < 0, code, code | 128) ^ 0x55).astype(np.uint8)
    return wire


_LEVELS = {Encoding.MULAW: _mulaw_levels(), Encoding.ALAW: _alaw_levels()}
_CODES = {Encoding.MULAW: _mulaw_codes(), Encoding.ALAW: _alaw_codes()}


def to_pcm16(samples: Samples) -> npt.NDArray[np.int16]:
    """Round to 16-bit integers; what lies outside [-1, 1] is clipped, never wrapped around."""
    scaled = np.rint(samples * _FULL_SCALE)
    integers: npt.NDArray[np.int16] = np.clip(scaled, -_FULL_SCALE, _FULL_SCALE - 1).astype(
        np.int16
    )
    return integers


def from_pcm16(integers: npt.NDArray[np.int16]) -> Samples:
    """16-bit integers as floats; `to_pcm16` restores them exactly."""
    return np.divide(integers, _FULL_SCALE, dtype=np.float32)


class Resampler:
    """Converts the sample rate of a stream, holding back a constant 10 ms (24 → 16 kHz).

    The output is bit-identical however the input was cut, `flush` brings its length to the
    input's length times the ratio of the rates, and no sound moves by more than 0.3 ms.

    Raises `SampleRateError` for a rate outside `LOWEST_RATE_HZ` … `HIGHEST_RATE_HZ`.
    """

    def __init__(self, from_hz: int, to_hz: int) -> None:
        for rate_hz in (from_hz, to_hz):
            if not LOWEST_RATE_HZ <= rate_hz <= HIGHEST_RATE_HZ:
                raise SampleRateError(
                    f"a sample rate of {rate_hz} Hz is outside "
                    f"{LOWEST_RATE_HZ}–{HIGHEST_RATE_HZ} Hz; state the rate of the sound in hertz"
                )
        # soxr's fixed-rate engine works in FFT blocks and holds back 7 to 37 ms (24 → 16 kHz), up
        # to 115 ms (8 → 16 kHz). Its variable-rate engine, at a rate that never varies, filters
        # sample by sample: 10 and 30 ms, always, with the same stop band.
        self._stream = (
            soxr.ResampleStream(from_hz, to_hz, 1, dtype="float32", vr=True)
            if from_hz != to_hz
            else None
        )

    def feed(self, samples: Samples) -> Samples:
        """Convert the next piece; may return nothing until enough has come in."""
        if self._stream is None or not len(samples):
            return samples
        converted: Samples = self._stream.resample_chunk(samples)
        return converted

    def flush(self) -> Samples:
        """End the stream and return what was held back; a later `feed` starts a new stream."""
        if self._stream is None:
            return np.zeros(0, np.float32)
        tail: Samples = self._stream.resample_chunk(np.zeros(0, np.float32), last=True)
        self._stream.clear()
        return tail


class PcmDecoder:
    """Bytes of a stream in, samples at the target rate out.

    A sample that is split between two calls is put together again; half a sample that is left
    when the stream ends is dropped.
    """

    def __init__(
        self, encoding: Encoding, sample_rate_hz: int, target_rate_hz: int = 16_000
    ) -> None:
        self._encoding = encoding
        self._resampler = Resampler(sample_rate_hz, target_rate_hz)
        self._split_sample = b""

    def feed(self, data: bytes) -> Samples:
        """Decode the next bytes, however many there are."""
        return self._resampler.feed(self._decode(data))

    def flush(self) -> Samples:
        """End the stream and return the samples still held back."""
        self._split_sample = b""
        return self._resampler.flush()

    def _decode(self, data: bytes) -> Samples:
        if self._encoding is not Encoding.PCM16:
            return from_pcm16(_LEVELS[self._encoding][np.frombuffer(data, np.uint8)])
        data = self._split_sample + data
        whole = len(data) - len(data) % 2
        self._split_sample = data[whole:]
        return from_pcm16(np.frombuffer(data[:whole], "<i2"))


class PcmEncoder:
    """Samples of a stream in, bytes at the wire's rate out."""

    def __init__(self, encoding: Encoding, source_rate_hz: int, sample_rate_hz: int) -> None:
        self._encoding = encoding
        self._resampler = Resampler(source_rate_hz, sample_rate_hz)

    def feed(self, samples: Samples) -> bytes:
        """Encode the next samples."""
        return self._encode(self._resampler.feed(samples))

    def flush(self) -> bytes:
        """End the stream and return the bytes still held back."""
        return self._encode(self._resampler.flush())

    def _encode(self, samples: Samples) -> bytes:
        integers = to_pcm16(samples)
        if self._encoding is Encoding.PCM16:
            return integers.astype("<i2").tobytes()
        return _CODES[self._encoding][integers.view(np.uint16)].tobytes()


def looks_like_wav_header(data: bytes) -> bool:
    """Whether these bytes begin a WAV file, which is not the raw sound that a stream carries."""
    return data[:4] in (b"RIFF", b"RIFX", b"RF64") and data[8:12] == b"WAVE"


def read_audio(path: Path) -> tuple[Samples, int]:
    """Read a sound file (WAV, FLAC, Ogg, MP3) as mono samples and their rate in Hz.

    Several channels are averaged. Raises `AudioFileError` when the file is missing or unreadable.
    """
    beginning = b""
    try:
        with path.open("rb") as file:  # libsndfile calls all that goes wrong here "System error"
            beginning = file.read(_TELLING_BYTES)
        channels, rate_hz = soundfile.read(path, dtype="float32", always_2d=True)
    except OSError as error:
        raise AudioFileError(f"cannot read {path}: {_why_not(error)}") from error
    except soundfile.SoundFileError as error:
        raise AudioFileError(
            f"cannot read {path} as sound: {_what_instead(beginning) or _reason(error)}; "
            "give a WAV, FLAC, Ogg or MP3 file"
        ) from error
    return channels.mean(axis=1, dtype=np.float32), int(rate_hz)


def write_wav(path: Path, samples: Samples, rate_hz: int) -> None:
    """Write mono samples as a 16-bit WAV file.

    Raises `AudioFileError` when the file cannot be written.
    """
    try:
        with path.open("wb") as file:
            soundfile.write(file, to_pcm16(samples), rate_hz, subtype="PCM_16", format="WAV")
    except FileNotFoundError as error:
        raise AudioFileError(
            f"cannot write {path}: there is no folder {path.parent}; make it or name another"
        ) from error
    except OSError as error:
        raise AudioFileError(f"cannot write {path}: {_why_not(error)}") from error
    except soundfile.SoundFileError as error:
        raise AudioFileError(
            f"cannot write {path}: {_reason(error)}; choose another place"
        ) from error


def _why_not(error: OSError) -> str:
    """What the system's refusal to open a file means, and what to do."""
    match error:
        case FileNotFoundError():
            return "there is no such file; correct the name"
        case IsADirectoryError():
            return "it is a folder; name a sound file"
        case PermissionError():
            return "the permission is missing; grant it, or name another file"
    return f"{error.strerror or error}; name another file"


def _what_instead(beginning: bytes) -> str | None:
    """What a file that is no sound is instead, if its beginning tells."""
    if not beginning:
        return "it is empty"
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(beginning)
    except UnicodeDecodeError:
        return None
    return "it is text" if all(c.isprintable() or c.isspace() for c in text) else None


def _reason(error: Exception) -> str:
    return str(getattr(error, "error_string", error)).rstrip(".")


def resample(samples: Samples, from_hz: int, to_hz: int) -> Samples:
    """Convert a whole recording from one sample rate to another."""
    resampler = Resampler(from_hz, to_hz)
    return np.concatenate([resampler.feed(samples), resampler.flush()])
