"""Judges of when a word is heard: the sound itself, and other people's models.

`python -m tests.real.word_judges` prints what each of them says of the embedded voice's word times.
The forced alignment takes part if `pocketsphinx` is installed (it brings its model), and every
other Whisper whose folder is given.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import soxr
from numpy.typing import NDArray

from assistant import models
from audio.voice import Piper, Samples, SpokenWord, Utterance, load_piper

SENTENCES = [
    "Sure, I can help you with that.",
    "The weather in Paris is sunny today, with a light wind from the west.",
    "It will take about twenty five minutes to get there by train.",
    "Please remember to bring your passport and your ticket to the airport.",
    "The library opens early in the morning and closes late at night.",
    "She bought three apples, two oranges and a loaf of bread.",
    "You can find the answer on the second page of the book.",
    "The river runs through the middle of the old town.",
    "If you like, I can remind you an hour before the meeting.",
    "My favourite season is autumn, because the air is clear and cool.",
    "Turn left at the next corner, then walk straight on for two blocks.",
    "The museum is closed on Mondays, but the garden stays open.",
    "He asked whether the package had arrived, and nobody knew.",
    "Most people drink coffee in the morning, though some prefer tea.",
    "A good recipe needs fresh butter, a little sugar and plenty of time.",
    "The train to London leaves from platform nine in half an hour.",
    "There are many ways to solve this problem, and this is the simplest.",
    "Honestly, the film was longer than it needed to be.",
    "The children played outside until the sun went down behind the hills.",
    "We should leave early, so that we do not miss the first part.",
]
"""Twenty of the kind that an assistant says."""
HISSING = [
    "We saw you sing in Rome so many summers ago.",
    "My sister knew some songs from sunny Spain.",
    "The sun can shine in September, you say.",
    "Now show me seven of the same shoes.",
    "I saw her son sell a sharp new saw.",
    "They can ship you some silver soon.",
]
"""Words that begin with a hiss, most of them right after a vowel or a nasal: nothing in speech has
a sharper beginning."""

AUDIBLE = 0.01  # of full scale, -40 dB
HISS_HZ = 4000
HISS_MS = 6
RECOGNISER_RATE_HZ = 16_000
MARGIN_MS = 200
"""Silence around what is aligned; the aligner expects some."""


@dataclass(frozen=True)
class Heard:
    """A word as a judge heard it, in milliseconds."""

    text: str
    start_ms: float
    end_ms: float


Judge = Callable[[str, Samples, int], list[Heard]]
"""From a text, its sound and the sound's rate to the words heard."""


def whole(utterance: Utterance) -> Samples:
    """All of an utterance's sound."""
    return np.concatenate(list(utterance.windows()))


# -- the sound itself -----------------------------------------------------------------------


def around_pauses(voice: Piper, texts: Iterable[str]) -> tuple[list[float], list[float]]:
    """How much later than their words' times sound begins after a pause, and ends before one."""
    starts, ends = [], []
    for text in texts:
        utterance = voice.speak(text)
        loud = np.abs(whole(utterance)) > AUDIBLE
        ms = 1000 / voice.sample_rate_hz
        for before, word in pairwise(utterance.words):
            if word.start_sample == before.end_sample:
                continue
            pause = (before.end_sample + word.start_sample) // 2
            first = pause + np.flatnonzero(loud[pause:])[0]
            last = np.flatnonzero(loud[:pause])[-1]
            starts.append(float(first - word.start_sample) * ms)
            ends.append(float(last - before.end_sample) * ms)
    return starts, ends


def at_hisses(voice: Piper, texts: Iterable[str]) -> list[float]:
    """How much later than its word's time a hiss begins that a word begins with."""
    late = []
    for text in texts:
        utterance = voice.speak(text)
        loudness = _hiss(whole(utterance), voice.sample_rate_hz)
        for before, word in pairwise(utterance.words):
            if not _hisses_after(text, before, word):
                continue
            start = word.start_sample * 1000 / voice.sample_rate_hz
            early = max(0, round(start) - 100)
            peak = early + 70 + int(np.argmax(loudness[early + 70 : early + 250]))
            faint = np.flatnonzero(loudness[early:peak] < 0.3 * loudness[peak])[-1]
            late.append(float(early + faint + HISS_MS / 2 - start))
    return late


def _hisses_after(text: str, before: SpokenWord, word: SpokenWord) -> bool:
    in_one_breath = word.start_sample == before.end_sample
    return in_one_breath and text[word.start_char] in "sS" and text[before.end_char - 1] not in "sf"


def _hiss(samples: Samples, rate_hz: int) -> NDArray[np.float64]:
    """How loud it is above `HISS_HZ`, once a millisecond."""
    size = rate_hz * HISS_MS // 1000
    starts = np.arange(0, len(samples) - size, rate_hz / 1000).astype(int)
    frames = np.stack([samples[start : start + size] for start in starts])
    spectra = np.abs(np.fft.rfft(frames * np.hanning(size)))
    loudness: NDArray[np.float64] = np.linalg.norm(spectra[:, HISS_HZ * size // rate_hz :], axis=1)
    return loudness


# -- other people's models ------------------------------------------------------------------


def load_whisper_judge(folder: Path) -> Judge:
    """Whisper as a stock user has it: faster-whisper's `word_timestamps`."""
    from faster_whisper import WhisperModel

    model = WhisperModel(str(folder), device="cpu", compute_type="int8", cpu_threads=1)

    def judge(text: str, samples: Samples, rate_hz: int) -> list[Heard]:
        heard = soxr.resample(samples, rate_hz, RECOGNISER_RATE_HZ)
        segments, _ = model.transcribe(heard, language="en", beam_size=1, word_timestamps=True)
        words = [word for segment in segments for word in segment.words or ()]
        return [Heard(word.word, word.start * 1000, word.end * 1000) for word in words]

    return judge


def load_aligner() -> Judge:
    """A forced alignment by hidden Markov models, which is told the words."""
    from pocketsphinx import Decoder

    decoder: Any = Decoder(samprate=RECOGNISER_RATE_HZ, bestpath=False, loglevel="FATAL")

    def judge(text: str, samples: Samples, rate_hz: int) -> list[Heard]:
        silence = np.zeros(rate_hz * MARGIN_MS // 1000, np.float32)
        sound = soxr.resample(np.concatenate([silence, samples, silence]), rate_hz, 16_000)
        pcm = (np.clip(sound, -1, 1) * 32767).astype(np.int16).tobytes()
        decoder.set_align_text(" ".join(word.strip(".,?!").lower() for word in text.split()))
        for refine in (False, True):  # the words, then their states
            if refine:
                decoder.set_alignment()
            decoder.start_utt()
            decoder.process_raw(pcm, full_utt=True)
            decoder.end_utt()
        alignment = decoder.get_alignment()  # must outlive its words
        return [
            Heard(
                word.name,
                word.start * 10 - MARGIN_MS,
                (word.start + word.duration) * 10 - MARGIN_MS,
            )
            for word in alignment.words()
            if not word.name.startswith(("<", "(", "["))
        ]

    return judge


def compare(
    voice: Piper, texts: Iterable[str], judge: Judge
) -> tuple[list[float], list[float], int]:
    """How much later than the voice says the judge hears words begin and end, and how many texts
    it understood with another number of words, which are left out."""
    starts: list[float] = []
    ends: list[float] = []
    left_out = 0
    ms = 1000 / voice.sample_rate_hz
    for text in texts:
        utterance = voice.speak(text)
        heard = judge(text, whole(utterance), voice.sample_rate_hz)
        if len(heard) != len(utterance.words):
            left_out += 1
            continue
        for word, timed in zip(heard, utterance.words, strict=True):
            starts.append(word.start_ms - timed.start_sample * ms)
            ends.append(word.end_ms - timed.end_sample * ms)
    return starts, ends, left_out


def judge_the_judge(
    voice: Piper, texts: Iterable[str], judge: Judge, gap_ms: int
) -> tuple[list[float], list[float], int]:
    """The same for words said one by one with silence between them, whose times are known."""
    starts: list[float] = []
    ends: list[float] = []
    left_out = 0
    rate_hz = voice.sample_rate_hz
    silence = np.zeros(rate_hz * gap_ms // 1000, np.float32)
    said: dict[str, Samples] = {}
    for text in texts:
        pieces: list[Samples] = []
        truth: list[tuple[float, float]] = []
        for word in text.lower().replace(",", "").replace(".", "").split():
            if word not in said:
                sound = whole(voice.speak(word))
                audible = np.flatnonzero(np.abs(sound) > AUDIBLE)
                said[word] = sound[audible[0] : audible[-1] + 1]
            start = sum(len(piece) for piece in pieces)
            truth.append((start * 1000 / rate_hz, (start + len(said[word])) * 1000 / rate_hz))
            pieces += [said[word], silence]
        heard = judge(text, np.concatenate(pieces), rate_hz)
        if len(heard) != len(truth):
            left_out += 1
            continue
        starts += [word.start_ms - start for word, (start, _) in zip(heard, truth, strict=True)]
        ends += [word.end_ms - end for word, (_, end) in zip(heard, truth, strict=True)]
    return starts, ends, left_out


def _row(name: str, errors: Sequence[float]) -> str:
    late = np.array(errors)
    off = np.abs(late)
    apart = np.abs(late - np.median(late))
    return (
        f"| {name} | {len(late)} | {np.median(late):+.0f} | {np.median(off):.0f} "
        f"| {np.percentile(off, 90):.0f} | {np.mean(off <= 80):.0%} | {np.mean(apart <= 80):.0%} |"
    )


def main() -> None:
    """Print the table."""
    folder = models.models_folder()
    piper, whisper = (models.find(name) for name in ("piper-en_US-joe-medium", "whisper-tiny.en"))
    assert isinstance(piper, models.PackagedModel) and isinstance(whisper, models.PackagedModel)
    voice = load_piper(piper.folder(folder) / (piper.entry or ""))
    tiny = load_whisper_judge(whisper.folder(folder))
    columns = ("judge", "words", "later", "off", "off, p90", "≤ 80 ms", "≤ 80 ms when centred")
    print(f"| {' | '.join(columns)} |")
    print("| --- " * len(columns) + "|")
    starts, ends = around_pauses(voice, SENTENCES)
    print(_row("sound after a pause: starts", starts))
    print(_row("sound before a pause: ends", ends))
    print(_row("hisses: starts", at_hisses(voice, HISSING)))
    judges = {"forced alignment": load_aligner()} if find_spec("pocketsphinx") else {}
    judges["Whisper tiny.en"] = tiny
    judges |= {f"Whisper {path}": load_whisper_judge(Path(path)) for path in sys.argv[1:]}
    for name, judge in judges.items():
        starts, ends, _ = compare(voice, SENTENCES, judge)
        print(_row(f"{name}: starts", starts))
        print(_row(f"{name}: ends", ends))
    for gap_ms in (150, 400):
        starts, ends, _ = judge_the_judge(voice, SENTENCES, tiny, gap_ms)
        print(_row(f"Whisper's own error, {gap_ms} ms between words: starts", starts))
        print(_row(f"Whisper's own error, {gap_ms} ms between words: ends", ends))


if __name__ == "__main__":
    main()
