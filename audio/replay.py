"""Plays recordings to the streaming recogniser as if they were being spoken, on the sample clock.

One worker recognises, and an attempt takes as long as it takes the processor here. So what is
measured is what a session alone on this machine meets, whatever else runs on it, and nobody has to
wait for the recording to pass.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from audio.pcm import Samples
from audio.streaming import Attempt, Segment, StreamingUtterance
from audio.transcriber import SAMPLE_RATE_HZ, Transcriber
from audio.vad import SileroVad, SpeechGate

LEAD_IN_S = 0.5
"""Sound kept from before the speech was noticed."""
SILENCE_S = 0.5
"""What follows the recording, so that its end is noticed."""


@dataclass
class Replay:
    """What became of one recording, all speech in it being one utterance."""

    text: str
    speech_end_s: float
    """Where the last voiced window ends."""
    decisive: Attempt | None
    """The attempt whose words count; None if there was no speech."""
    known_s: float
    """When they were known."""
    attempts_ms: list[float]
    """Processor time of the attempts, the decisive one last."""

    @property
    def heard_before_end(self) -> bool:
        """Whether no attempt had to begin after the end of the speech."""
        return self.decisive is not None and self.decisive.kind == "partial"


def replay(samples: Samples, transcriber: Transcriber, vad: SileroVad) -> Replay:
    """Let `samples` (mono, 16 kHz) be spoken, and return what was understood when.

    All that is voiced is taken as one utterance, whatever pauses it has.
    """
    quiet = np.random.default_rng(0).normal(0, 1e-4, round(SILENCE_S * SAMPLE_RATE_HZ))
    samples = np.concatenate((samples, quiet.astype(np.float32)))
    gate, worker = SpeechGate(), _Worker(samples, transcriber)
    utterance: StreamingUtterance | None = None
    for frame in vad.stream().feed(samples):
        now = frame.end_sample / SAMPLE_RATE_HZ
        worker.run_until(now)
        if gate.feed(frame.start_sample, frame.end_sample, frame.probability):
            start = max(0, gate.start_sample - round(LEAD_IN_S * SAMPLE_RATE_HZ))
            worker.utterance = utterance = StreamingUtterance(start, now)
        if utterance is None:
            continue
        voiced = gate.last_voiced_sample
        attempt = utterance.hear(now, frame.end_sample, voiced, frame.probability)
        if attempt is not None:
            worker.take(attempt, now)
    if utterance is None:
        return Replay("", 0.0, None, 0.0, [])
    end_s = len(samples) / SAMPLE_RATE_HZ
    voiced = gate.last_voiced_sample
    worker.run_until(float("inf"))
    if utterance.words(voiced) is None:
        worker.take(utterance.ask("final", end_s, len(samples), voiced), end_s)
        worker.run_until(float("inf"))
    assert utterance.newest is not None
    return Replay(
        text=utterance.newest.text,
        speech_end_s=voiced / SAMPLE_RATE_HZ,
        decisive=utterance.newest.attempt,
        known_s=worker.free_s,
        attempts_ms=worker.took_ms,
    )


@dataclass
class _Worker:
    """Recognises one attempt at a time; of those that wait only the newest."""

    samples: Samples
    transcriber: Transcriber
    utterance: StreamingUtterance | None = None
    free_s: float = 0.0
    took_ms: list[float] = field(default_factory=list)
    _waiting: Attempt | None = None
    _done: tuple[Attempt, str, list[Segment]] | None = None

    def take(self, attempt: Attempt, now: float) -> None:
        self._waiting = attempt
        if self._done is None:
            self._begin(now)

    def run_until(self, now: float) -> None:
        """Deliver what is done by `now`."""
        while self._done is not None and self.free_s <= now:
            attempt, text, segments = self._done
            self._done = None
            assert self.utterance is not None
            self.utterance.on_result(attempt.number, text, segments, self.free_s)
            if self._waiting is not None:
                self._begin(self.free_s)

    def _begin(self, now: float) -> None:
        attempt, self._waiting = self._waiting, None
        assert attempt is not None
        sound = self.samples[attempt.start_sample : attempt.end_sample]
        begin = time.process_time()
        transcript = self.transcriber.transcribe(sound)
        seconds = time.process_time() - begin
        self.took_ms.append(1000 * seconds)
        self.free_s = now + seconds
        segments = [
            Segment(each.text, attempt.start_sample + round(each.end_s * SAMPLE_RATE_HZ))
            for each in transcript.segments
        ]
        self._done = attempt, transcript.text, segments
