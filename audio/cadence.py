"""When to recognise an utterance again while it is being spoken.

The best moment is one at which the speech may just have ended: then the words so far are likely to
be all. The speech probability tells it early, because it falls for some time before it is low
enough to count as silence. Such moments, and a steady beat between them, ask for a *partial*.
Silence that no attempt covers yet asks for one at once: a *pause*.
"""

from __future__ import annotations

from typing import Literal

from audio.vad import SAMPLE_RATE_HZ

COVER_MARGIN_MS = 96
"""An attempt may end so much before the last voiced sample and has heard all words all the same:
the speech probability outlasts the voice. docs/recognition.md has the word error rates."""

DIP = 0.6
"""A speech probability that falls below this may be the end of the speech."""

FIRST_COST_S = 0.1
_HIGHEST_COST_S = 0.5  # a busy moment must not silence the whole rest of an utterance
_SMOOTHING = 0.3
_SHORTEST_BEAT_S = 2.0
_COSTS_IN_A_BEAT = 16
_COSTS_BETWEEN_DIPS = 5


def covers(cursor: int, last_voiced_sample: int) -> bool:
    """Whether an attempt that heard everything before `cursor` heard all words of the speech."""
    return cursor >= last_voiced_sample - COVER_MARGIN_MS * SAMPLE_RATE_HZ // 1000


class PartialCadence:
    """Says when the utterance going on should be recognised again.

    The beat adapts to what an attempt takes from being asked for until its words are there, waiting
    behind others included: on a slow or busy machine there are fewer.
    """

    def __init__(self, now: float, cost_s: float = FIRST_COST_S) -> None:
        self.cost_s = cost_s
        """What an attempt takes."""
        self._last_s = now
        self._cursor: int | None = None
        self._was_high = True
        self._dipped = False

    def feed(
        self,
        now: float,
        end_sample: int,
        last_voiced_sample: int,
        probability: float,
        *,
        busy: bool,
    ) -> Literal["partial", "pause"] | None:
        """Take the window that ends at `end_sample`; say what is wanted now, if anything is.

        `busy`: an attempt is on its way, so that a partial waits.
        """
        high = probability >= DIP
        self._dipped = not high and (self._dipped or self._was_high)
        self._was_high = high
        if end_sample > last_voiced_sample:
            heard = self._cursor is not None and covers(self._cursor, last_voiced_sample)
            return None if heard else "pause"
        if busy:
            return None
        waited_s = now - self._last_s
        if self._dipped and waited_s >= _COSTS_BETWEEN_DIPS * self.cost_s:
            return "partial"
        beat_s = max(_SHORTEST_BEAT_S, _COSTS_IN_A_BEAT * self.cost_s)
        return "partial" if waited_s >= beat_s else None

    def asked(self, now: float, cursor: int) -> None:
        """Take note of an attempt that hears everything before the sample `cursor`."""
        self._last_s, self._cursor, self._dipped = now, cursor, False

    def took(self, seconds: float) -> None:
        """Take note of what an attempt took."""
        self.cost_s += _SMOOTHING * (min(seconds, _HIGHEST_COST_S) - self.cost_s)
