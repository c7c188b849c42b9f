"""Whether the user has finished, by the words: what is asked of the language model at a pause."""

from __future__ import annotations

from dataclasses import dataclass

from audio.endpoint import Endpointer


@dataclass(frozen=True, slots=True)
class _Words:
    """What the user has said up to a pause, and the attempt at recognising it that says so."""

    attempt: int
    text: str
    completeness: float | None = None


class TurnEnd:
    """How long the present pause must last, as far as is known by now.

    The words come before the pause or in it, the judgement of them later, out of order or never;
    whatever belongs to other words than the newest is passed over.
    """

    def __init__(self, endpointer: Endpointer) -> None:
        self._endpointer = endpointer
        self._words: _Words | None = None

    @property
    def silence_needed_ms(self) -> float:
        """The silence that ends the turn."""
        if self._words is None:
            return self._endpointer.silence_needed_ms(None, None)
        return self._endpointer.silence_needed_ms(self._words.text, self._words.completeness)

    def said(self, attempt: int, text: str) -> bool:
        """Take the words up to the pause; return whether they are to be judged, which is once."""
        if self._words is not None and self._words.text == text:
            return False
        self._words = _Words(attempt, text)
        return True

    def judged(self, attempt: int, completeness: float | None) -> None:
        """Take the probability that a user who said the words of this attempt has finished."""
        if self._words is not None and self._words.attempt == attempt:
            self._words = _Words(attempt, self._words.text, completeness)

    def goes_on(self) -> None:
        """The user speaks: what was said is not all."""
        self._words = None
