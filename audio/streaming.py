"""The words of an utterance while it is being spoken: attempts at them, and what they agree on.

A pure machine like its parts: it is told of windows of sound and of results, and says what to
recognise next. It knows when no further attempt is needed: when the last one has heard the end of
the speech. In long speech it leaves the sound of old, settled words behind, so that an attempt
costs the same after a minute as after ten seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from audio.agreement import StablePrefix
from audio.cadence import FIRST_COST_S, PartialCadence, covers
from audio.vad import SAMPLE_RATE_HZ

TAIL_MS = 250
"""Sound kept behind the last voiced sample: soft endings of words."""

# Windows up to 20 s are cheap (docs/recognition.md); words this far behind the speaker are settled.
_LONGEST_S = 16
_LONGEST_UNSETTLED_S = 24
_SETTLED_S = 3

Kind = Literal["partial", "pause", "final"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A wish to have the samples `[start_sample, end_sample)` recognised."""

    number: int
    start_sample: int
    end_sample: int
    kind: Kind
    after: str
    """What was said before them, whose sound is left behind."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Words that end at `end_sample`, where the recogniser heard a boundary."""

    text: str
    end_sample: int


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """What an attempt made of the whole utterance up to its end."""

    attempt: Attempt
    text: str
    found: bool
    """Whether it heard any words itself, and not only knows those before its sound."""


@dataclass(frozen=True, slots=True)
class _Gap:
    """Silence inside an utterance."""

    start_sample: int
    end_sample: int

    @property
    def middle(self) -> int:
        return (self.start_sample + self.end_sample) // 2

    def ends_at(self, cursor: int) -> bool:
        """Whether a sound that ends at `cursor` holds all words before the gap, and no others."""
        return covers(cursor, self.start_sample) and cursor <= self.end_sample


class StreamingUtterance:
    """One utterance from its first window on.

    At most one attempt for a mere partial is on its way at a time; none waits behind another.
    Results may be late, come in any order, or never: only the newest counts.
    """

    def __init__(self, start_sample: int, now: float, cost_s: float = FIRST_COST_S) -> None:
        self.newest: Hypothesis | None = None
        """What the attempt that heard most made of the utterance."""
        self._agreement = StablePrefix()
        self._cadence = PartialCadence(now, cost_s)
        self._on_its_way: dict[int, tuple[Attempt, float]] = {}
        self._attempts = 0
        self._start_sample = start_sample
        self._after = ""
        self._heard: list[Hypothesis] = []
        self._gaps: list[_Gap] = []
        """Where the speaker fell silent and went on, as long as its sound is not left behind."""
        self._voiced_until = self._silent_until = start_sample

    @property
    def cost_s(self) -> float:
        """What an attempt takes here and now."""
        return self._cadence.cost_s

    @property
    def stable(self) -> str:
        """The words on which two attempts in a row agreed."""
        return self._agreement.text

    @property
    def tentative(self) -> str:
        """The words of the newest attempt behind the stable ones."""
        words = self.newest.text.split() if self.newest is not None else []
        return " ".join(words[self._agreement.words :])

    def hear(
        self, now: float, end_sample: int, last_voiced_sample: int, probability: float
    ) -> Attempt | None:
        """Take the next window of sound; return what should be recognised now."""
        self._note_gap(end_sample, last_voiced_sample)
        busy = bool(self._on_its_way)
        kind = self._cadence.feed(now, end_sample, last_voiced_sample, probability, busy=busy)
        return self.ask(kind, now, end_sample, last_voiced_sample) if kind is not None else None

    def ask(self, kind: Kind, now: float, end_sample: int, last_voiced_sample: int) -> Attempt:
        """Return an attempt at everything so far."""
        self._attempts += 1
        cursor = min(end_sample, last_voiced_sample + TAIL_MS * SAMPLE_RATE_HZ // 1000)
        attempt = Attempt(self._attempts, self._start_sample, cursor, kind, self._after)
        self._on_its_way[attempt.number] = attempt, now
        self._cadence.asked(now, cursor)
        return attempt

    def awaits(self, number: int) -> bool:
        """Whether the result of this attempt still matters."""
        return number in self._on_its_way

    def on_result(self, number: int, text: str, segments: Sequence[Segment], now: float) -> Attempt:
        """Take the result of an attempt that is awaited, and return it.

        Those before it are overtaken.
        """
        attempt, asked_s = self._on_its_way[number]
        self._on_its_way = {n: each for n, each in self._on_its_way.items() if n > number}
        self._cadence.took(now - asked_s)
        whole = f"{attempt.after} {text}".strip()
        self.newest = Hypothesis(attempt, whole, found=bool(text))
        self._agreement.feed(self.newest.text)
        if self.newest.found:
            self._heard.append(self.newest)
        self._leave_behind(attempt, segments)
        return attempt

    def on_failure(self, number: int) -> None:
        """Take note that an attempt that is awaited has no result."""
        del self._on_its_way[number]

    def words(self, last_voiced_sample: int) -> Hypothesis | None:
        """Return the words of the speech up to `last_voiced_sample` if an attempt heard them all.

        One that heard none does not count: it may have been too early.
        """
        newest = self.newest
        if newest is None or not newest.found:
            return None
        return newest if covers(newest.attempt.end_sample, last_voiced_sample) else None

    def coming(self, last_voiced_sample: int) -> Attempt | None:
        """Return an attempt on its way that hears all of the speech up to `last_voiced_sample`."""
        for attempt, _ in self._on_its_way.values():
            if covers(attempt.end_sample, last_voiced_sample):
                return attempt
        return None

    def _note_gap(self, end_sample: int, last_voiced_sample: int) -> None:
        went_on = last_voiced_sample == end_sample
        if went_on and self._silent_until > self._voiced_until:
            self._gaps.append(_Gap(self._voiced_until, self._silent_until))
        self._voiced_until, self._silent_until = last_voiced_sample, end_sample

    def _leave_behind(self, attempt: Attempt, segments: Sequence[Segment]) -> None:
        """Let the next attempts begin after old words, once the sound is long enough.

        The best place is a gap at which an attempt ended: its words are exactly those before it.
        Where nobody draws breath for long, the recogniser's own boundaries must do; they are rough.
        """
        seconds = (attempt.end_sample - self._start_sample) / SAMPLE_RATE_HZ
        if seconds <= _LONGEST_S:
            return
        latest = attempt.end_sample - _SETTLED_S * SAMPLE_RATE_HZ
        places = [
            (gap.middle, heard.text)
            for gap in self._gaps
            for heard in self._heard
            if gap.middle <= latest
            and gap.ends_at(heard.attempt.end_sample)
            and self._agreement.holds(heard.text)
        ]
        if not places and seconds > _LONGEST_UNSETTLED_S:
            places = list(self._boundaries(attempt, segments, latest))
        if not places:
            return
        self._start_sample, self._after = max(places)
        self._gaps = [gap for gap in self._gaps if gap.middle > self._start_sample]
        self._heard = [h for h in self._heard if h.attempt.end_sample > self._start_sample]

    def _boundaries(
        self, attempt: Attempt, segments: Sequence[Segment], latest: int
    ) -> Iterator[tuple[int, str]]:
        text = attempt.after
        for segment in segments:
            text = f"{text} {segment.text}".strip()
            if self._start_sample < segment.end_sample <= latest:
                yield segment.end_sample, text
