"""The embedded voice, heard by the embedded recogniser and measured against itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soxr

from audio.voice import Piper, Samples, Utterance, load_piper
from audio.words import normalise, word_errors

pytestmark = pytest.mark.real

SENTENCES = [
    "Sure, I can help you with that.",
    "The weather in Paris is sunny today, with a light wind from the west.",
    "It will take about twenty five minutes to get there by train.",
    "Please remember to bring your passport and your ticket to the airport.",
    "The library opens early in the morning and closes late at night.",
    "She bought three apples, two oranges and a loaf of bread.",
    "You can find the answer on the second page of the book.",
    "The river runs through the middle of the old town.",
]
TWELVE_SECONDS = (
    "The railway that crosses the mountains was built more than a hundred years ago by thousands "
    "of workers, who cut tunnels through solid rock, laid bridges across deep valleys, and kept "
    "the trains running through storms, floods and long winters."
)

HEARD_MS = 80
"""How far Whisper's own word times may lie from the voice's; it puts words about 40 ms late."""
AUDIBLE = 0.01  # of full scale, -40 dB


@pytest.fixture(scope="module")
def voice(piper_model: Path) -> Piper:
    piper = load_piper(piper_model)
    piper.warm_up()
    return piper


# Whisper's model comes from a package without types.
@pytest.fixture(scope="module")
def listen(whisper_folder: Path) -> Callable[[Samples, int], list[Any]]:
    from faster_whisper import WhisperModel

    model = WhisperModel(str(whisper_folder), device="cpu", compute_type="int8", cpu_threads=1)

    def words(samples: Samples, rate_hz: int) -> list[Any]:
        heard = soxr.resample(samples, rate_hz, 16_000)
        segments, _ = model.transcribe(heard, language="en", beam_size=1, word_timestamps=True)
        return [word for segment in segments for word in segment.words or ()]

    return words


def whole(utterance: Utterance) -> Samples:
    return np.concatenate(list(utterance.windows()))


def test_what_is_said_is_understood(
    voice: Piper, listen: Callable[[Samples, int], list[Any]]
) -> None:
    wrong = total = 0
    for sentence in [*SENTENCES, "Dr. Smith paid $3.50 at 10:00 a.m. for 1/2 a pie in 1999."]:
        heard = "".join(word.word for word in listen(whole(voice.speak(sentence)), 22_050))
        wrong += word_errors(normalise(sentence), normalise(heard))
        total += len(normalise(sentence))
    assert wrong / total <= 0.1


def test_words_are_heard_when_they_are_said(
    voice: Piper, listen: Callable[[Samples, int], list[Any]]
) -> None:
    starts, ends = [], []
    for sentence in SENTENCES:
        utterance = voice.speak(sentence)
        heard = listen(whole(utterance), voice.sample_rate_hz)
        if len(heard) != len(utterance.words):
            continue  # it wrote a number in digits or missed a word
        for word, timed in zip(heard, utterance.words, strict=True):
            starts.append(word.start * 1000 - timed.start_sample * 1000 / voice.sample_rate_hz)
            ends.append(word.end * 1000 - timed.end_sample * 1000 / voice.sample_rate_hz)
    assert len(starts) > 40
    assert np.median(np.abs(starts)) <= HEARD_MS
    assert np.median(np.abs(ends)) <= HEARD_MS


def test_words_after_a_pause_begin_where_sound_begins(voice: Piper) -> None:
    utterance = voice.speak("Apples, oranges, eggs, iron, acorns, and oil.")
    samples = np.abs(whole(utterance))
    late_ms = []
    for word, before in zip(utterance.words[1:], utterance.words, strict=False):
        heard = np.flatnonzero(samples[before.end_sample : word.end_sample] > 2 * AUDIBLE)[0]
        late = before.end_sample + heard - word.start_sample
        late_ms.append(late * 1000 / voice.sample_rate_hz)
    assert np.median(np.abs(late_ms)) <= 40


def test_windows_are_the_sound_of_the_whole(voice: Piper) -> None:
    phonemes = voice._phonemes(TWELVE_SECONDS)
    latent, _ = voice._encode(phonemes, 1.0)
    frames = latent.shape[2]
    in_one_go = voice.decode_window(latent, 0, frames)
    for start, end in [(0, 20), (20, 40), (300, 320), (500, 560), (frames - 7, frames)]:
        hop = in_one_go.size // frames
        window = voice.decode_window(latent, start, end)
        assert np.abs(window - in_one_go[start * hop : end * hop]).max() < 1e-4


def test_the_first_sound_takes_a_third_of_the_work(voice: Piper) -> None:
    def seconds(work: Callable[[], object]) -> float:
        spent = []
        for _ in range(3):
            begin = time.thread_time()  # this thread's work, whatever else the machine does
            work()
            spent.append(time.thread_time() - begin)
        return min(spent)

    def in_one_go() -> None:
        latent, _ = voice._encode(voice._phonemes(TWELVE_SECONDS), 1.0)
        voice.decode_window(latent, 0, latent.shape[2])

    first = seconds(lambda: next(voice.speak(TWELVE_SECONDS).windows()))
    assert first < 0.35 * seconds(in_one_go)


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_chunk_begins_soon_and_is_neither_quiet_nor_clipped(voice: Piper, sentence: str) -> None:
    samples = np.abs(whole(voice.speak(sentence)))
    lead_ms = np.flatnonzero(samples > AUDIBLE)[0] * 1000 / voice.sample_rate_hz
    assert lead_ms < 60
    assert 0.3 < samples.max() < 1.0
    assert (samples >= 1.0).sum() == 0
