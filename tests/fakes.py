"""Scripted stages: they take their time on the loop's clock, and do exactly what they are told.

Sound that is loud counts as speech.  The transcriber and the language model read their lines from
lists; the voice says every word in 0.25 s of a tone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar, TypeVarTuple

import numpy as np

from assistant.config import Config
from assistant.events import Samples
from assistant.items import Message, Usage
from assistant.language import Commitment, Ending, Piece
from assistant.stages import Stages
from assistant.workers import Urgencies, Urgency, urgency_now
from audio.transcriber import Transcript
from audio.vad import VAD_WINDOW, SpeechFrame
from audio.voice import SpokenWord

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

VOICE_RATE_HZ = 22_050
WORD_SAMPLES = VOICE_RATE_HZ // 4
LOUD = 0.05


class PatientWorker:
    """Runs one job at a time, the most urgent first; each takes `seconds` of the loop's time."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.jobs = 0
        self._busy = False
        self._waiting: list[tuple[Urgencies, asyncio.Future[None]]] = []

    async def run(self, urgency: Urgencies, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        async with self.held(urgency):
            self.jobs += 1
            try:
                return function(*arguments)  # begins at once, and is over when its time is
            finally:
                if self.seconds:
                    await asyncio.sleep(self.seconds)

    @asynccontextmanager
    async def held(self, urgency: Urgencies = Urgency.HEARING) -> AsyncIterator[None]:
        """Keep everybody else waiting."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((urgency, turn))
        self._call_next()
        try:
            await turn
            yield
        finally:
            if not turn.cancelled():
                self._busy = False
            self._call_next()

    def _call_next(self) -> None:
        self._waiting = [each for each in self._waiting if not each[1].done()]
        if not self._busy and self._waiting:
            _, turn = min(self._waiting, key=lambda each: urgency_now(each[0]))
            turn.set_result(None)
            self._busy = True


class LoudnessActivity:
    """Calls every loud window speech."""

    def __init__(self) -> None:
        self._rest: Samples = np.zeros(0, np.float32)
        self._start = 0

    def feed(self, samples: Samples) -> list[SpeechFrame]:
        self._rest = np.concatenate((self._rest, samples))
        frames = []
        while len(self._rest) >= VAD_WINDOW:
            window, self._rest = self._rest[:VAD_WINDOW], self._rest[VAD_WINDOW:]
            end = self._start + VAD_WINDOW
            loud = float(np.abs(window).max()) > LOUD
            frames.append(SpeechFrame(self._start, end, 0.95 if loud else 0.02))
            self._start = end
        return frames


@dataclass
class ScriptedTranscriber:
    """Returns its lines one after the other; an empty line is a sound without words."""

    lines: Sequence[str] = ("What is the capital of France?",)
    heard: list[int] = field(default_factory=list)
    """The number of samples of each utterance."""
    fails: Exception | None = None

    def transcribe(self, samples: Samples) -> Transcript:
        if self.fails is not None:
            raise self.fails
        text = self.lines[len(self.heard) % len(self.lines)]
        self.heard.append(len(samples))
        return Transcript(
            text=text,
            audio_seconds=len(samples) / 16_000,
            rejection=None if text else "no_speech",
            no_speech_probability=0.0,
            average_log_probability=-0.1,
            compression_ratio=1.0,
            decodes=1,
        )

    def warm_up(self) -> None:
        pass


@dataclass
class ScriptedLanguageModel:
    """Streams its lines word by word."""

    lines: Sequence[str] = ("The capital of France is Paris. It lies on the Seine.",)
    first_s: float = 0.1
    word_s: float = 0.02
    prompts: list[tuple[Message, ...]] = field(default_factory=list)
    prefilled: list[tuple[Message, ...]] = field(default_factory=list)
    completeness: float | None = 0.99
    judged: list[str] = field(default_factory=list)
    running: int = 0
    fails: Exception | None = None

    async def prefill(self, messages: Sequence[Message]) -> None:
        self.prefilled.append(tuple(messages))

    async def turn_end(self, messages: Sequence[Message]) -> float | None:
        self.judged.append(messages[-1].text)
        return self.completeness

    async def answer(
        self, messages: Sequence[Message], max_output_tokens: int | None, commitment: Commitment
    ) -> AsyncGenerator[Piece | Ending, None]:
        if self.fails is not None:
            raise self.fails
        words = self.lines[len(self.prompts) % len(self.lines)].split(" ")
        limit = max_output_tokens or len(words)
        self.prompts.append(tuple(messages))
        self.running += 1
        try:
            await asyncio.sleep(self.first_s)
            for index, word in enumerate(words[:limit]):
                yield Piece(word if index == 0 else f" {word}", 1)
                await asyncio.sleep(self.word_s)
            yield Ending("length" if limit < len(words) else "stop", Usage(len(messages), 0, limit))
        finally:
            self.running -= 1


class ToneUtterance:
    """A tone as long as the words take."""

    def __init__(self, text: str) -> None:
        words, position = [], 0
        for number, word in enumerate(text.split()):
            position = text.index(word, position)
            start = number * WORD_SAMPLES
            words.append(SpokenWord(position, position + len(word), start, start + WORD_SAMPLES))
            position += len(word)
        self.words = tuple(words)
        self.sample_count = len(words) * WORD_SAMPLES

    def windows(self) -> Iterator[Samples]:
        for word in self.words:
            time_s = np.arange(word.start_sample, word.end_sample) / VOICE_RATE_HZ
            yield (0.3 * np.sin(2 * np.pi * 440 * time_s)).astype(np.float32)


@dataclass
class ToneVoice:
    """Says everything as a tone."""

    sample_rate_hz: int = VOICE_RATE_HZ
    said: list[str] = field(default_factory=list)
    fails: Exception | None = None

    def speak(self, text: str, speed: float = 1.0) -> ToneUtterance:
        if self.fails is not None:
            raise self.fails
        self.said.append(text)
        return ToneUtterance(text)

    def warm_up(self) -> None:
        pass


def fake_stages(
    *,
    config: Config | None = None,
    transcriber: ScriptedTranscriber | None = None,
    language: ScriptedLanguageModel | None = None,
    voice: ToneVoice | None = None,
    asr_s: float = 0.1,
    tts_s: float = 0.02,
) -> Stages:
    """Return stages that need no model. Call it on the loop that they will run on."""
    return Stages(
        config=config or Config(),
        new_voice_activity=LoudnessActivity,
        transcriber=transcriber or ScriptedTranscriber(),
        language=language or ScriptedLanguageModel(),
        voice=voice or ToneVoice(),
        hearing_worker=PatientWorker(),
        asr_worker=PatientWorker(asr_s),
        tts_worker=PatientWorker(tts_s),
    )


def speech(seconds: float) -> Samples:
    """Return a sound that counts as speech: 16 kHz samples."""
    time_s = np.arange(round(seconds * 16_000)) / 16_000
    return (0.3 * np.sin(2 * np.pi * 220 * time_s)).astype(np.float32)


def silence(seconds: float) -> Samples:
    """Return 16 kHz samples of silence."""
    return np.zeros(round(seconds * 16_000), np.float32)
