"""The streaming recogniser on recordings that play as if they were being spoken."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from audio.evaluate import Clip, read_manifest
from audio.pcm import Samples
from audio.replay import Replay, replay
from audio.transcriber import SAMPLE_RATE_HZ, Whisper, load_whisper
from audio.vad import load_vad
from audio.words import normalise, word_errors

pytestmark = pytest.mark.real

LONGEST_WINDOW_S = (
    24.0 + 2.0
)  # what `audio.streaming` lets wait for a pause, and a beat of attempts
"""The sound of old words is left behind before an attempt hears so much."""


@pytest.fixture(scope="module")
def whisper(whisper_folder: Path) -> Whisper:
    whisper = load_whisper(whisper_folder)
    whisper.warm_up()
    return whisper


@pytest.fixture(scope="module")
def clips(fixtures_folder: Path) -> list[Clip]:
    return read_manifest(fixtures_folder / "speech" / "manifest.jsonl")


@pytest.fixture(scope="module")
def played(whisper: Whisper, clips: list[Clip]) -> list[tuple[Clip, Replay]]:
    return [(clip, replay(clip.samples(), whisper, load_vad())) for clip in clips]


def pause(seconds: float) -> Samples:
    return np.random.default_rng(3).normal(0, 1e-3, int(seconds * SAMPLE_RATE_HZ)).astype("f4")


def test_commands_and_short_answers_are_understood(played: list[tuple[Clip, Replay]]) -> None:
    spoken = [(clip, heard) for clip, heard in played if clip.text]
    errors = sum(word_errors(normalise(c.text or ""), normalise(heard.text)) for c, heard in spoken)
    words = sum(len(normalise(clip.text or "")) for clip, _ in spoken)
    assert errors / words < 0.05
    for clip, heard in spoken:
        # One murmured "okay" begins with the recording, too soon for the speech detector.
        assert heard.text or heard.decisive is None, f"{clip.text} was not heard at all"


def test_noise_yields_no_words(played: list[tuple[Clip, Replay]]) -> None:
    assert [heard.text for clip, heard in played if clip.text is None] == ["", ""]


def test_of_most_recordings_nothing_is_left_to_recognise_when_the_speech_ends(
    played: list[tuple[Clip, Replay]],
) -> None:
    spoken = [heard for clip, heard in played if clip.text]
    assert sum(heard.heard_before_end for heard in spoken) >= len(spoken) / 2


def test_a_minute_is_heard_whole_from_windows_of_seconds(
    whisper: Whisper, clips: list[Clip]
) -> None:
    spoken = [clip for clip in clips if clip.text]
    sound: list[Samples] = []
    said: list[str] = []
    while sum(map(len, sound)) < 60 * SAMPLE_RATE_HZ:
        clip = spoken[len(said) % len(spoken)]
        sound += [clip.samples(), pause(0.4)]
        said.append(clip.text or "")
    heard = replay(np.concatenate(sound), whisper, load_vad())
    assert heard.decisive is not None
    window = heard.decisive.end_sample - heard.decisive.start_sample
    assert window < LONGEST_WINDOW_S * SAMPLE_RATE_HZ
    expected = normalise(" ".join(said))
    assert word_errors(expected, normalise(heard.text)) / len(expected) < 0.15
    assert normalise(heard.text)[-2:] == expected[-2:]
