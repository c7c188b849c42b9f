"""A loudspeaker that nobody hears: where it is, when it sounded first, when it ran dry."""

from __future__ import annotations

import numpy as np

from audio.pcm import Samples

AUDIBLE = 10 ** (-40 / 20)
"""The level of the first sample that counts as heard: -40 dBFS."""


class Loudspeaker:
    """Plays what it is given as soon as it has it, on the clock of those who ask.

    All moments are seconds on the caller's monotonic clock.
    """

    def __init__(self, rate_hz: int) -> None:
        self._rate_hz = rate_hz
        self._silent_from_s = 0.0
        self._samples = 0
        self.first_received_s: float | None = None
        self.first_audible_s: float | None = None
        self.underruns = 0
        """How often it fell silent within an answer because the next sound was not there yet."""

    @property
    def received_s(self) -> float:
        """The length of everything that it was given."""
        return self._samples / self._rate_hz

    def play(self, samples: Samples, now: float) -> None:
        """Take the next samples of the answer."""
        if not len(samples):
            return
        if self.first_received_s is None:
            self.first_received_s = self._silent_from_s = now
        if now > self._silent_from_s:
            self.underruns += 1
            self._silent_from_s = now
        if self.first_audible_s is None:
            audible = np.flatnonzero(np.abs(samples) >= AUDIBLE)
            if len(audible):
                self.first_audible_s = self._silent_from_s + int(audible[0]) / self._rate_hz
        self._silent_from_s += len(samples) / self._rate_hz
        self._samples += len(samples)

    def played_s(self, now: float) -> float:
        """How much of the answer has sounded by now."""
        return self.received_s - max(0.0, self._silent_from_s - now)
