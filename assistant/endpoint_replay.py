"""Lets a recording be spoken to the dialogue core in virtual time, and tells when its turns end.

Everything is the core's own: which words it asks for when, what it has judged, how long it waits.
The models are asked for real, and each answer arrives as much later as the processor spent on it,
whatever else the machine does. One that was asked for before is remembered, so that another way of
ending turns can be tried for nothing.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from assistant.effects import Effect, JudgeTurnEnd, SpeechStopped, Transcribe
from assistant.events import (
    INPUT_RATE_HZ,
    AudioAnalysed,
    Event,
    TimePassed,
    TranscriptReady,
    TurnEndJudged,
)
from assistant.items import Message, Role
from assistant.language import LanguageModel
from assistant.session import Session
from assistant.settings import Settings
from audio.pcm import Samples, read_audio, resample
from audio.streaming import Segment
from audio.transcriber import Transcriber, Transcript
from audio.vad import SileroVad, SpeechFrame

QUIET_AFTER_S = 3.0
"""What follows the recording, so that its turn can end."""
_QUIET_LEVEL = 1e-4


@dataclass
class Recording:
    """A recording as the models hear it, and what they have said of it so far."""

    samples: Samples
    frames: list[SpeechFrame]
    heard: dict[tuple[int, int], tuple[Transcript, float]] = field(default_factory=dict)
    """Transcripts by what was asked for, each with the seconds that it took."""


class Stages:
    """The models; `replay` asks them only for what it has not asked before."""

    def __init__(self, vad: SileroVad, transcriber: Transcriber, language: LanguageModel) -> None:
        self._vad = vad
        self._transcriber = transcriber
        self._language = language
        self._loop = asyncio.new_event_loop()
        self._judged: dict[tuple[object, ...], tuple[float | None, float]] = {}
        self._loop.run_until_complete(language.turn_end((Message(Role.USER, "Hello there."),)))

    def open(self, path: Path) -> Recording:
        """Read a recording and find the speech in it."""
        quiet = np.random.default_rng(0).normal(0, _QUIET_LEVEL, int(QUIET_AFTER_S * INPUT_RATE_HZ))
        sound = resample(*read_audio(path), INPUT_RATE_HZ)
        samples = np.concatenate((sound, quiet.astype(np.float32)))
        return Recording(samples, self._vad.stream().feed(samples))

    def transcribe(self, recording: Recording, work: Transcribe) -> tuple[Transcript, float]:
        """Return the words, and the seconds it takes to find them."""
        key = (work.start_sample, work.end_sample)
        if key not in recording.heard:
            begin_s = time.process_time()
            sound = recording.samples[work.start_sample : work.end_sample]
            heard = self._transcriber.transcribe(sound)
            recording.heard[key] = heard, time.process_time() - begin_s
        return recording.heard[key]

    def judge(self, work: JudgeTurnEnd) -> tuple[float | None, float]:
        """Return how likely the turn has ended, and the seconds it takes to say so."""
        if work.messages not in self._judged:
            begin_s = time.process_time()
            judged = self._loop.run_until_complete(self._language.turn_end(work.messages))
            self._judged[work.messages] = judged, time.process_time() - begin_s
        return self._judged[work.messages]


def replay(recording: Recording, stages: Stages, settings: Settings) -> list[float]:
    """Let the recording be spoken; return the moments at which a turn ended, in its seconds."""
    return _Replay(recording, stages, settings).run()


class _Replay:
    def __init__(self, recording: Recording, stages: Stages, settings: Settings) -> None:
        self._recording = recording
        self._stages = stages
        self._session = Session(settings, voice_rate_hz=INPUT_RATE_HZ)
        self._moments: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._now = 0.0
        self._ends_s: list[float] = []
        self._waiting: Transcribe | None = None
        self._recogniser_busy = False
        self._timer_s: float | None = None
        for frame in recording.frames:
            analysed = AudioAnalysed(frame.start_sample, frame.end_sample, frame.probability)
            self._at(frame.end_sample / INPUT_RATE_HZ, analysed)

    def run(self) -> list[float]:
        while self._moments:
            self._now, _, action = heapq.heappop(self._moments)
            action()
        return self._ends_s

    def _at(self, moment_s: float, what: Event | Callable[[], None]) -> None:
        action = what if callable(what) else lambda: self._feed(what)
        heapq.heappush(self._moments, (moment_s, next(self._order), action))

    def _feed(self, event: Event) -> None:
        for effect in self._session.feed(event, self._now):
            self._carry_out(effect)
        deadline_s = self._session.deadline
        last_s = self._recording.frames[-1].end_sample / INPUT_RATE_HZ
        if deadline_s is not None and deadline_s != self._timer_s and deadline_s < last_s:
            self._timer_s = deadline_s
            self._at(deadline_s, TimePassed())

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Transcribe():
                self._waiting = effect
                self._recognise()
            case JudgeTurnEnd():
                probability, seconds = self._stages.judge(effect)
                judged = TurnEndJudged(effect.turn_id, effect.attempt, probability)
                self._at(self._now + seconds, judged)
            case SpeechStopped():
                self._ends_s.append(self._now)
            case _:
                pass  # nobody answers

    def _recognise(self) -> None:
        """One attempt at a time; of those that wait only the newest."""
        work, busy = self._waiting, self._recogniser_busy
        if work is None or busy:
            return
        self._waiting, self._recogniser_busy = None, True
        heard, seconds = self._stages.transcribe(self._recording, work)
        segments = tuple(
            Segment(each.text, work.start_sample + round(each.end_s * INPUT_RATE_HZ))
            for each in heard.segments
        )
        ready = TranscriptReady(work.turn_id, work.attempt, heard.text, heard.rejection, segments)

        def deliver() -> None:
            self._recogniser_busy = False
            self._feed(ready)
            self._recognise()

        self._at(self._now + seconds, deliver)
