"""Speech is found where it is, on the sample clock, however the sound arrives."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faster_whisper.vad import get_vad_model
from hypothesis import given, settings
from hypothesis import strategies as st

from audio import vad
from audio.errors import ModelFolderError
from audio.pcm import Samples, read_audio, resample
from audio.vad import SAMPLE_RATE_HZ, VAD_WINDOW, SpeechGate, load_vad

WINDOW_MS = 1000 * VAD_WINDOW / SAMPLE_RATE_HZ
ONSET_TOLERANCE_S = 0.1


def clips(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "speech" / "manifest.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def sound(folder: Path, clip: dict[str, Any]) -> Samples:
    return resample(*read_audio(folder / "speech" / clip["file"]), SAMPLE_RATE_HZ)


def onset_s(samples: Samples) -> float | None:
    """Where the gate finds the first speech of a recording, in seconds."""
    gate = SpeechGate()
    for frame in load_vad().stream().feed(samples):
        if gate.feed(frame.start_sample, frame.end_sample, frame.probability):
            return gate.start_sample / SAMPLE_RATE_HZ
    return None


def established_at(probabilities: list[float], gate: SpeechGate) -> list[int]:
    """The indices of the frames at which the gate reported speech."""
    return [
        index
        for index, probability in enumerate(probabilities)
        if gate.feed(index * VAD_WINDOW, (index + 1) * VAD_WINDOW, probability)
    ]


def test_speech_begins_where_it_is_labelled(fixtures_folder: Path) -> None:
    checked = 0
    for clip in clips(fixtures_folder):
        if clip["vad_auto"]:
            found = onset_s(sound(fixtures_folder, clip))
            labelled = clip["vad_auto"][0][0]
            assert found == pytest.approx(labelled, abs=ONSET_TOLERANCE_S), clip["file"]
            checked += 1
    assert checked >= 8


def test_noise_is_not_speech(fixtures_folder: Path) -> None:
    noises = [clip for clip in clips(fixtures_folder) if clip["kind"] == "noise"]
    assert len(noises) == 2
    assert [onset_s(sound(fixtures_folder, noise)) for noise in noises] == [None, None]


@pytest.mark.parametrize("word", ["yes", "stop"])
def test_one_short_word_is_enough(fixtures_folder: Path, word: str) -> None:
    (clip,) = [clip for clip in clips(fixtures_folder) if clip["text"] == word]
    assert onset_s(sound(fixtures_folder, clip)) is not None


@given(places=st.lists(st.integers(0, 16_000), max_size=30))
@settings(max_examples=25, deadline=None)
def test_the_frames_do_not_depend_on_how_the_sound_was_cut(places: list[int]) -> None:
    noise = np.random.default_rng(7).normal(0, 0.1, 16_000).astype(np.float32)
    stream = load_vad().stream()
    pieces = np.split(noise, sorted(places))
    frames = [frame for piece in pieces for frame in stream.feed(piece)]
    assert frames == load_vad().stream().feed(noise)


def test_the_probabilities_are_those_of_the_reference_implementation(fixtures_folder: Path) -> None:
    clip = next(clip for clip in clips(fixtures_folder) if clip["text"] == "what time is it")
    samples = sound(fixtures_folder, clip)
    samples = samples[: len(samples) // VAD_WINDOW * VAD_WINDOW]
    expected = get_vad_model()(samples)
    probabilities = [frame.probability for frame in load_vad().stream().feed(samples)]
    # The reference runs all windows at once; only the order of additions differs.
    assert probabilities == pytest.approx(expected.tolist(), abs=1e-5)


def test_frames_tile_the_stream_and_the_rest_waits() -> None:
    stream = load_vad().stream()
    frames = stream.feed(np.zeros(3 * VAD_WINDOW + 5, np.float32))
    assert [(f.start_sample, f.end_sample) for f in frames] == [(0, 512), (512, 1024), (1024, 1536)]
    (frame,) = stream.feed(np.zeros(VAD_WINDOW - 5, np.float32))
    assert (frame.start_sample, frame.end_sample) == (1536, 2048)


def test_streams_share_the_network_but_not_the_state() -> None:
    assert load_vad() is load_vad()
    noise = np.random.default_rng(1).normal(0, 0.1, 8 * VAD_WINDOW).astype(np.float32)
    busy, fresh = load_vad().stream(), load_vad().stream()
    busy.feed(noise[::-1].copy())
    assert [f.probability for f in fresh.feed(noise)] == [
        f.probability for f in load_vad().stream().feed(noise)
    ]


def test_speech_is_reported_once_after_ninety_milliseconds() -> None:
    gate = SpeechGate(min_speech_ms=90)
    assert established_at([0.1, 0.9, 0.9, 0.9, 0.9, 0.1, 0.9], gate) == [3]
    assert gate.speaking
    assert gate.start_sample == VAD_WINDOW
    assert gate.last_voiced_sample == 7 * VAD_WINDOW


def test_a_click_is_forgotten() -> None:
    gate = SpeechGate()
    assert established_at([0.9, 0.9, 0.1, 0.1, 0.9, 0.9], gate) == []
    assert established_at([0.9], gate) == [0]


def test_one_unvoiced_frame_does_not_forget_the_onset() -> None:
    gate = SpeechGate()
    assert established_at([0.9, 0.1, 0.9, 0.9], gate) == [3]
    assert gate.start_sample == 0


def test_what_began_loudly_may_go_on_more_softly() -> None:
    softly = 0.4
    assert established_at([softly] * 10, SpeechGate()) == []
    assert established_at([0.9, softly, softly], SpeechGate()) == [2]
    assert established_at([0.9, softly, softly], SpeechGate(release_threshold=0.45)) == []


def test_a_single_frame_can_be_enough() -> None:
    assert established_at([0.9], SpeechGate(min_speech_ms=WINDOW_MS)) == [0]


def test_reset_makes_the_next_speech_new() -> None:
    gate = SpeechGate()
    established_at([0.9] * 4, gate)
    gate.reset()
    assert not gate.speaking
    assert established_at([0.9] * 4, gate) == [2]


@given(probabilities=st.lists(st.floats(0, 1), max_size=60))
def test_the_extent_of_speech_is_made_of_voiced_frames(probabilities: list[float]) -> None:
    gate = SpeechGate()
    reports = established_at(probabilities, gate)
    assert len(reports) <= 1
    assert gate.speaking == bool(reports)
    if gate.speaking:
        assert probabilities[gate.start_sample // VAD_WINDOW] >= 0.5
        assert probabilities[gate.last_voiced_sample // VAD_WINDOW - 1] >= 0.35
        assert gate.start_sample < gate.last_voiced_sample


UNCACHED_THREADS = 3
"""As no other test loads it: what is loaded once is kept."""


@pytest.mark.parametrize("content", [b"", b"no network", None], ids=["empty", "text", "damaged"])
def test_a_damaged_network_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    package = find_spec("faster_whisper")
    assert package is not None and package.origin is not None
    whole = (Path(package.origin).parent / vad._NETWORK).read_bytes()
    damaged = tmp_path / "silero.onnx"
    damaged.write_bytes(whole[: len(whole) // 2] if content is None else content)
    monkeypatch.setattr(vad, "_NETWORK", damaged)  # absolute, so it stands for itself
    with pytest.raises(ModelFolderError, match=r"silero\.onnx.*faster-whisper again"):
        load_vad(UNCACHED_THREADS)
