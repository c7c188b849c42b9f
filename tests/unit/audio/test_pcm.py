"""Formats, sample rates and files: nothing is lost, and nothing depends on how sound was cut."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from audio.errors import AudioFileError, SampleRateError
from audio.pcm import (
    Encoding,
    PcmDecoder,
    PcmEncoder,
    Resampler,
    Samples,
    from_pcm16,
    looks_like_wav_header,
    read_audio,
    resample,
    to_pcm16,
    write_wav,
)

RATES_HZ = (8_000, 16_000, 22_050, 24_000, 44_100, 48_000)
G711_RATE_HZ = 8_000

# (code, 16-bit level) from the tables of ITU-T G.711, scaled by 4 (14 bits) and by 8 (13 bits).
MULAW_TABLE = [
    (0x80, 32124),
    (0x8F, 16764),
    (0x9F, 8316),
    (0xEF, 132),
    (0xF0, 120),
    (0xFE, 8),
    (0xFF, 0),
    (0x7E, -8),
    (0x00, -32124),
]
ALAW_TABLE = [
    (0xAA, 32256),
    (0xA5, 16896),
    (0xD5, 8),
    (0xD4, 24),
    (0xC5, 264),
    (0x55, -8),
    (0x45, -264),
    (0x2A, -32256),
]


def tone(rate_hz: int, seconds: float, hz: float = 440.0) -> Samples:
    return (0.5 * np.sin(2 * np.pi * hz * np.arange(round(rate_hz * seconds)) / rate_hz)).astype(
        np.float32
    )


def cut(samples: npt.NDArray[np.float32], at: Sequence[int]) -> list[Samples]:
    return list(np.split(samples, sorted(min(place, len(samples)) for place in at)))


@pytest.mark.parametrize(
    ("encoding", "code", "level"),
    [(Encoding.MULAW, *row) for row in MULAW_TABLE] + [(Encoding.ALAW, *row) for row in ALAW_TABLE],
)
def test_g711_codes_and_levels_are_those_of_the_standard(
    encoding: Encoding, code: int, level: int
) -> None:
    decoder = PcmDecoder(encoding, G711_RATE_HZ, G711_RATE_HZ)
    encoder = PcmEncoder(encoding, G711_RATE_HZ, G711_RATE_HZ)
    assert to_pcm16(decoder.feed(bytes([code]))).tolist() == [level]
    assert encoder.feed(from_pcm16(np.array([level], np.int16))) == bytes([code])


@pytest.mark.parametrize("encoding", [Encoding.MULAW, Encoding.ALAW])
def test_g711_steps_are_monotonic_and_near(encoding: Encoding) -> None:
    levels = np.arange(-32_768, 32_768, dtype=np.int64)
    encoded = PcmEncoder(encoding, G711_RATE_HZ, G711_RATE_HZ).feed(
        from_pcm16(levels.astype(np.int16))
    )
    decoded = to_pcm16(PcmDecoder(encoding, G711_RATE_HZ, G711_RATE_HZ).feed(encoded))
    assert (np.diff(decoded.astype(np.int64)) >= 0).all()
    # Half of the widest step (1024 at 16-bit scale) is the most that G.711 may be off, but for
    # values beyond the last level.
    within = np.abs(levels) <= 32_124
    assert np.abs(decoded - levels)[within].max() <= 512


def test_pcm16_is_restored_exactly() -> None:
    every_value = np.arange(-32_768, 32_768).astype("<i2").tobytes()
    decoder = PcmDecoder(Encoding.PCM16, 16_000)
    encoder = PcmEncoder(Encoding.PCM16, 16_000, 16_000)
    assert encoder.feed(decoder.feed(every_value)) == every_value


@pytest.mark.parametrize("encoding", list(Encoding))
def test_what_is_too_loud_is_clipped_not_wrapped(encoding: Encoding) -> None:
    encoder = PcmEncoder(encoding, 16_000, 16_000)
    decoder = PcmDecoder(encoding, 16_000)
    decoded = decoder.feed(encoder.feed(np.array([1.0, 1.7, -1.0, -40.0], np.float32)))
    assert (decoded[:2] > 0.97).all()
    assert (decoded[2:] < -0.97).all()


@given(
    data=st.binary(min_size=600, max_size=1200),
    places=st.lists(st.integers(0, 1200), max_size=12),
    encoding=st.sampled_from(list(Encoding)),
    rate_hz=st.sampled_from(RATES_HZ),
)
@settings(max_examples=60, deadline=None)
def test_decoding_does_not_depend_on_how_the_bytes_were_cut(
    data: bytes, places: list[int], encoding: Encoding, rate_hz: int
) -> None:
    whole = PcmDecoder(encoding, rate_hz)
    expected = np.concatenate([whole.feed(data), whole.flush()])
    pieces = PcmDecoder(encoding, rate_hz)
    borders = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    parts = [pieces.feed(data[begin:end]) for begin, end in pairwise(borders)]
    assert np.array_equal(np.concatenate([*parts, pieces.flush()]), expected)


@given(
    seed=st.integers(0, 2**32 - 1),
    length=st.integers(0, 6000),
    places=st.lists(st.integers(0, 6000), max_size=20),
    rates_hz=st.tuples(st.sampled_from(RATES_HZ), st.sampled_from(RATES_HZ)),
)
@settings(max_examples=100, deadline=None)
def test_resampling_is_bit_identical_under_any_cut(
    seed: int, length: int, places: list[int], rates_hz: tuple[int, int]
) -> None:
    samples = np.random.default_rng(seed).uniform(-1, 1, length).astype(np.float32)
    resampler = Resampler(*rates_hz)
    parts = [resampler.feed(piece) for piece in cut(samples, places)]
    assert np.array_equal(np.concatenate([*parts, resampler.flush()]), resample(samples, *rates_hz))


@pytest.mark.parametrize(
    ("from_hz", "to_hz"), [(24_000, 16_000), (16_000, 24_000), (8_000, 16_000)]
)
def test_a_stream_of_single_samples_comes_out_as_one_piece_would(from_hz: int, to_hz: int) -> None:
    samples = tone(from_hz, 0.1)
    resampler = Resampler(from_hz, to_hz)
    parts = [resampler.feed(samples[i : i + 1]) for i in range(len(samples))]
    assert np.array_equal(
        np.concatenate([*parts, resampler.flush()]), resample(samples, from_hz, to_hz)
    )


@pytest.mark.parametrize("to_hz", RATES_HZ)
@pytest.mark.parametrize("from_hz", RATES_HZ)
def test_resampling_keeps_length_pitch_and_place(from_hz: int, to_hz: int) -> None:
    fade = np.hanning(from_hz).astype(np.float32)
    converted = resample(tone(from_hz, 1.0, hz=1000) * fade, from_hz, to_hz)
    assert abs(len(converted) - to_hz) <= 1

    expected = tone(to_hz, 1.0, hz=1000) * np.hanning(to_hz)
    size = min(len(converted), to_hz)
    spectrum = np.fft.rfft(converted[:size])
    assert np.abs(spectrum).argmax() == pytest.approx(1000, abs=1)
    # A shift by t turns the phase of 1 kHz by 2π·1000·t: 0.3 ms is the most allowed.
    change = spectrum[1000] / np.fft.rfft(expected[:size])[1000]
    assert abs(np.angle(change)) / (2 * np.pi * 1000) < 0.3e-3
    assert abs(change) == pytest.approx(1, rel=0.001)


def test_what_the_lower_rate_cannot_carry_does_not_fold_back() -> None:
    aliased = resample(tone(24_000, 1.0, hz=9_500), 24_000, 16_000)
    steady = aliased[2_000:-2_000]
    assert 20 * np.log10(np.abs(steady).max() / 0.5) < -80


def test_the_delay_is_constant_and_short() -> None:
    chunk_s, longest_delay_s = 0.01, 0.015
    resampler = Resampler(24_000, 16_000)
    held_back = []
    received = 0
    for number, piece in enumerate(np.split(tone(24_000, 1.0), 100), start=1):
        received += len(resampler.feed(piece))
        held_back.append(number * chunk_s - received / 16_000)
    assert max(held_back) < longest_delay_s


def test_flush_leaves_a_fresh_stream() -> None:
    samples = tone(24_000, 0.2)
    resampler = Resampler(24_000, 16_000)
    first = np.concatenate([resampler.feed(samples), resampler.flush()])
    second = np.concatenate([resampler.feed(samples), resampler.flush()])
    assert np.array_equal(first, second)


@pytest.mark.parametrize("rate_hz", [0, -16_000, 100, 1_000_000])
def test_an_impossible_rate_is_refused(rate_hz: int) -> None:
    with pytest.raises(SampleRateError, match=f"{rate_hz} Hz"):
        Resampler(rate_hz, 16_000)


def test_a_wav_file_is_told_from_raw_samples(tmp_path: Path) -> None:
    write_wav(tmp_path / "tone.wav", tone(16_000, 0.1), 16_000)
    data = (tmp_path / "tone.wav").read_bytes()
    assert looks_like_wav_header(data)
    assert not looks_like_wav_header(data[44:])
    assert not looks_like_wav_header(b"RIFF")
    assert not looks_like_wav_header(b"")


def test_a_written_file_reads_back_and_clips(tmp_path: Path) -> None:
    samples = np.array([0.0, 0.5, -0.5, 3.0, -3.0], np.float32)
    write_wav(tmp_path / "a.wav", samples, 24_000)
    read, rate_hz = read_audio(tmp_path / "a.wav")
    assert rate_hz == 24_000
    assert read == pytest.approx([0.0, 0.5, -0.5, 1.0, -1.0], abs=1 / 32_768)


def test_channels_are_averaged(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "stereo.flac", np.array([[0.5, 0.25], [-0.5, 0.5]]), 16_000)
    read, _ = read_audio(tmp_path / "stereo.flac")
    assert read == pytest.approx([0.375, 0.0], abs=1 / 32_768)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        pytest.param("lost.wav", None, "there is no such file", id="missing"),
        pytest.param("", None, "it is a folder", id="folder"),
        pytest.param("empty.wav", b"", "it is empty", id="empty"),
        pytest.param("letter.wav", "Dear Sir, naïve\n".encode() * 100, "it is text", id="text"),
        pytest.param("noise.wav", bytes(range(256)), "not recognised", id="another kind"),
    ],
)
def test_a_file_that_is_no_sound_is_named_and_called_what_it_is(
    tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(AudioFileError, match=said) as refused:
        read_audio(path)
    assert str(refused.value).count(str(path)) == 1
    assert "System error" not in str(refused.value)


def test_text_is_text_wherever_its_beginning_ends(tmp_path: Path) -> None:
    for shift in range(4):  # one of them cuts a character of four bytes at each place
        path = tmp_path / "smile.flac"
        path.write_text("x" * shift + "🙂" * 1_000, encoding="utf-8")
        with pytest.raises(AudioFileError, match="it is text"):
            read_audio(path)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(AudioFileError, match=r"no folder .*nowhere"):
        write_wav(tmp_path / "nowhere" / "a.wav", tone(16_000, 0.1), 16_000)
    with pytest.raises(AudioFileError, match="it is a folder"):
        write_wav(tmp_path, tone(16_000, 0.1), 16_000)
