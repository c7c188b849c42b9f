"""The real recogniser on recordings: commands, pauses, noise, long speech, a telephone line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from audio.errors import ModelLanguageError
from audio.evaluate import FITTED, USUAL, Clip, evaluate, read_manifest
from audio.pcm import Encoding, PcmDecoder, PcmEncoder, Samples
from audio.transcriber import SAMPLE_RATE_HZ, Whisper, load_whisper
from audio.words import normalise, word_error_rate

pytestmark = pytest.mark.real

# A difference of a few words among hundreds is chance: another processor rounds int8 differently.
WER_TOLERANCE = 0.01


@pytest.fixture(scope="module")
def whisper(whisper_folder: Path) -> Whisper:
    return load_whisper(whisper_folder)


@pytest.fixture(scope="module")
def clips(fixtures_folder: Path) -> list[Clip]:
    return read_manifest(fixtures_folder / "speech" / "manifest.jsonl")


def speech(clips: list[Clip]) -> list[Clip]:
    return [clip for clip in clips if clip.text]


def pause(seconds: float) -> Samples:
    return np.random.default_rng(3).normal(0, 1e-3, int(seconds * SAMPLE_RATE_HZ)).astype("f4")


def test_commands_and_short_answers_are_understood(whisper: Whisper, clips: list[Clip]) -> None:
    misheard = {}
    for clip in speech(clips):
        transcript = whisper.transcribe(clip.samples())
        if normalise(transcript.text) != normalise(clip.text or ""):
            misheard[clip.text] = transcript
    assert not misheard


def test_noise_yields_no_text_and_a_reason(whisper: Whisper, clips: list[Clip]) -> None:
    transcripts = [whisper.transcribe(clip.samples()) for clip in clips if clip.text is None]
    assert [transcript.text for transcript in transcripts] == ["", ""]
    assert all(transcript.rejection for transcript in transcripts)


@pytest.mark.parametrize("colour", ["white", "hum", "clicks"])
def test_synthetic_noise_yields_no_text(whisper: Whisper, colour: str) -> None:
    rng = np.random.default_rng(5)
    size = 3 * SAMPLE_RATE_HZ
    sound = {
        "white": rng.normal(0, 0.03, size),
        "hum": 0.1 * np.sin(2 * np.pi * 50 / SAMPLE_RATE_HZ * np.arange(size)),
        "clicks": rng.normal(0, 0.3, size) * (np.arange(size) % 8_000 < 40),
    }[colour].astype(np.float32)
    transcript = whisper.transcribe(sound)
    assert transcript.text == "", transcript


def test_a_minute_of_speech_is_heard_to_its_end(whisper: Whisper, clips: list[Clip]) -> None:
    spoken = speech(clips)
    sound: list[Samples] = []
    said: list[str] = []
    while sum(map(len, sound)) < 60 * SAMPLE_RATE_HZ:
        clip = spoken[len(said) % len(spoken)]
        sound += [clip.samples(), pause(0.4)]
        said.append(clip.text or "")
    transcript = whisper.transcribe(np.concatenate(sound))
    assert transcript.audio_seconds > 60
    assert word_error_rate(" ".join(said), transcript.text) < 0.15
    assert normalise(transcript.text)[-2:] == normalise(said[-1])[-2:]


@pytest.mark.parametrize("encoding", [Encoding.MULAW, Encoding.ALAW])
def test_a_telephone_line_is_good_enough(
    whisper: Whisper, clips: list[Clip], encoding: Encoding
) -> None:
    line_hz = 8_000
    (clip,) = [clip for clip in clips if clip.text == "how old is the Brooklyn Bridge"]
    encoder = PcmEncoder(encoding, SAMPLE_RATE_HZ, line_hz)
    data = encoder.feed(clip.samples()) + encoder.flush()
    decoder = PcmDecoder(encoding, line_hz, SAMPLE_RATE_HZ)
    sound = np.concatenate([decoder.feed(data), decoder.flush()])
    assert normalise(whisper.transcribe(sound).text) == normalise(clip.text or "")


def test_silence_around_the_words_changes_nothing(whisper: Whisper, clips: list[Clip]) -> None:
    clip = next(clip for clip in clips if clip.text == "what time is it")
    for before, after in ((0.5, 0.2), (0.5, 1.5), (2.0, 4.0)):
        sound = np.concatenate([pause(before), clip.samples(), pause(after)])
        assert normalise(whisper.transcribe(sound).text) == normalise("what time is it")


def test_an_english_model_refuses_another_language(whisper_folder: Path) -> None:
    with pytest.raises(ModelLanguageError, match='only English, not "fr"'):
        load_whisper(whisper_folder, language="fr")


def test_a_fitted_window_hears_as_well_as_thirty_seconds_at_less_cost(
    whisper: Whisper, whisper_folder: Path, shared_folder: Path
) -> None:
    recordings = read_manifest(shared_folder / "speech" / "manifest.jsonl")
    chosen = [clip for clip in recordings if clip.label_is_original or clip.text is None]
    report = evaluate(whisper, whisper_folder, chosen)
    score = {line.recogniser: line for line in report.scores if line.labels == "original"}
    assert score[FITTED].clips > 80
    assert score[FITTED].word_error_rate <= score[USUAL].word_error_rate + WER_TOLERANCE
    assert score[FITTED].compute_ratio < score[USUAL].compute_ratio / 2
    assert report.noise_clips > 15
    assert report.noise_clips_with_text[FITTED] == 0
    assert report.short_answers_heard[FITTED] >= report.short_answers_heard[USUAL]
