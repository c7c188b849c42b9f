"""A session whose stages take no time: the real core on a clock that only moves when told."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Self

import numpy as np

from assistant.effects import (
    Confirm,
    Generate,
    Hasten,
    Notice,
    Prefill,
    StopWork,
    Synthesise,
    Transcribe,
)
from assistant.errors import AudioBufferFull
from assistant.events import (
    INPUT_RATE_HZ,
    AudioAnalysed,
    AudioSynthesised,
    ChunkFailed,
    ChunkPlanned,
    ClearAudio,
    Command,
    CommitAudio,
    Event,
    Samples,
    TextFailed,
    TextFinished,
    TextGenerated,
    TimePassed,
    TranscriptFailed,
    TranscriptReady,
    WordTime,
)
from assistant.items import Failure, Usage
from assistant.session import Session
from assistant.settings import Settings

VOICE_RATE_HZ = 22_050
WINDOW = 512
WORD_S = 0.2
LOUD = 0.05
"""A window whose mean magnitude is above this counts as speech."""
MOST_BUFFERED_S = 120
REPLY = "Here is the first clause, and here is another one. That is all."
WORDS = "what time is it"
BROKEN = Failure("broken", "The stage is broken.")


class InstantRuntime:
    """Carries out the core's work at once, or when `work` is called after `hold`."""

    def __init__(
        self, stages: object, settings: Settings, deliver: Callable[[Notice], None]
    ) -> None:
        self._deliver = deliver
        self._session = Session(settings, voice_rate_hz=VOICE_RATE_HZ, id_prefix="")
        self._held: deque[Event] = deque()
        self._remainder: Samples = np.zeros(0, np.float32)
        self.now = 0.0
        self.hold = False
        self.reply = REPLY
        self.words = WORDS
        self.broken: set[str] = set()
        self.appended_samples = 0
        self.appended: list[Samples] = []
        self.commands: list[Command] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    async def append_audio(self, samples: Samples) -> None:
        if self.appended_samples > MOST_BUFFERED_S * INPUT_RATE_HZ:
            raise AudioBufferFull("the buffer is full")
        start = self.appended_samples - len(self._remainder)
        self.appended_samples += len(samples)
        self.appended.append(samples)
        waiting = np.concatenate([self._remainder, samples])
        for offset in range(0, len(waiting) - WINDOW + 1, WINDOW):
            window = waiting[offset : offset + WINDOW]
            probability = 0.95 if np.abs(window).mean() > LOUD else 0.01
            self.pass_time(WINDOW / INPUT_RATE_HZ)
            self._feed(AudioAnalysed(start + offset, start + offset + WINDOW, probability))
        self._remainder = waiting[len(waiting) - len(waiting) % WINDOW :]

    async def command(self, command: Command) -> None:
        if isinstance(command, CommitAudio | ClearAudio) and command.end_sample < 0:
            command = replace(command, end_sample=self.appended_samples)
        self.commands.append(command)
        self._feed(command)

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and everything that becomes due on the way."""
        until_s = self.now + seconds
        while (deadline_s := self._session.deadline) is not None and deadline_s <= until_s:
            self.now = max(self.now, deadline_s)
            self._feed(TimePassed())
        self.now = until_s

    def work(self, steps: int | None = None) -> None:
        """Carry out held work: `steps` results of it, or all, and what follows from them."""
        self.hold = False
        while self._held and steps != 0:
            steps = None if steps is None else steps - 1
            self._feed_one(self._held.popleft())
        self.hold = bool(self._held)

    def announce(self, notice: Notice) -> None:
        """Let the session announce something out of the blue."""
        self._deliver(notice)

    def _feed(self, event: Event) -> None:
        self._feed_one(event)
        while self._held and not self.hold:
            self._feed_one(self._held.popleft())

    def _feed_one(self, event: Event) -> None:
        for effect in self._session.feed(event, self.now):
            match effect:
                case Transcribe():
                    self._transcribe(effect)
                case Generate():
                    self._generate(effect)
                case Synthesise():
                    self._synthesise(effect)
                case Prefill():
                    pass  # there is no cache here
                case Hasten():
                    pass  # nothing takes any time here
                case Confirm():
                    pass  # a guess is made like any other answer here
                case StopWork():
                    pass  # the core must cope with results of work that was stopped too late
                case _:
                    self._deliver(effect)

    def _transcribe(self, work: Transcribe) -> None:
        if "asr" in self.broken:
            self._held.append(TranscriptFailed(work.turn_id, work.attempt, BROKEN))
        else:
            rejection = None if self.words else "no_speech"
            self._held.append(TranscriptReady(work.turn_id, work.attempt, self.words, rejection))

    def _generate(self, work: Generate) -> None:
        if "llm" in self.broken:
            self._held.append(TextFailed(work.generation, BROKEN))
            return
        words = self.reply.split(" ")
        limit = work.max_output_tokens or len(words)
        for index, word in enumerate(words[:limit]):
            text = f" {word}" if index else word
            self._held.append(TextGenerated(work.generation, text, tokens=1))
        reason = "length" if limit < len(words) else "stop"
        usage = Usage(input_tokens=40, cached_tokens=32, output_tokens=min(limit, len(words)))
        self._held.append(TextFinished(work.generation, reason, usage))

    def _synthesise(self, work: Synthesise) -> None:
        if "tts" in self.broken:
            self._held.append(ChunkFailed(work.generation, work.chunk, BROKEN))
            return
        word_samples = round(WORD_S * VOICE_RATE_HZ)
        words, position = [], 0
        for number, word in enumerate(work.text.split(), start=1):
            start = work.text.index(word, position)
            position = start + len(word)
            words.append(WordTime(start, position, number * word_samples))
        total = len(words) * word_samples
        self._held.append(ChunkPlanned(work.generation, work.chunk, tuple(words), total))
        tone = np.sin(np.arange(total) * 0.05).astype(np.float32) * 0.3
        for number in range(len(words)):
            window = tone[number * word_samples : (number + 1) * word_samples]
            last = number == len(words) - 1
            self._held.append(AudioSynthesised(work.generation, work.chunk, window, last))
