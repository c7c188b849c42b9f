"""How much silence after the last word ends a turn."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

from audio.words import normalise

_HESITATION = re.compile(
    r"(\.\.\.|…|[,:;–—-]|(?<![\w-])(u+m+|u+h+m*|e+r+m*|hm+|mm+))[\s.]*$", re.IGNORECASE
)
"""What shows that the speaker searches for words: a sound that says so, and the marks that
recognisers write where a voice trails off."""
_DIGITS_IN_A_RUN = 4
_WHOLE_TURNS = frozenset(
    re.split(
        r",\s*",
        "yes, yeah, yep, yup, no, nope, stop, quit, cancel, pause, resume, continue, next, back, "
        "repeat, help, never mind, nevermind, thanks, thank you, goodbye, bye",
    )
)


class Endpointer(Protocol):
    """Judges, from what was said so far, how long a silence has to be to end the turn."""

    def silence_needed_ms(self, text: str | None, completeness: float | None) -> float:
        """Milliseconds of silence after which the turn is over.

        `text` is the transcript up to the silence, None while there is none yet. `completeness` is
        the probability, from 0 to 1, that somebody who said this has finished; None while it is
        not known.
        """
        ...


@dataclass(frozen=True)
class SilenceEndpointer:
    """Ends every turn after the same silence, whatever was said."""

    silence_ms: float

    def silence_needed_ms(self, text: str | None, completeness: float | None) -> float:
        """`silence_ms`, always."""
        return self.silence_ms


@dataclass(frozen=True)
class SemanticEndpointer:
    """Waits longer the less what was said sounds like all that was to be said.

    Words of which the speaker has finished with probability `sure` need `shortest_ms` of silence,
    those with `unsure` need `doubtful_ms`, and between them it goes by the logarithm of the odds.
    """

    sure: float = 0.938
    unsure: float = 0.869
    shortest_ms: float = 320.0
    doubtful_ms: float = 1100.0
    longest_ms: float = 1500.0
    """For what shows that more follows: hesitations, and digits said one after the other."""
    unjudged_ms: float = 500.0
    """For words of which nobody has said in time how complete they are."""
    caution: float = 0.0
    """How much more complete than usual words have to sound, in logarithms of the odds."""

    def silence_needed_ms(self, text: str | None, completeness: float | None) -> float:
        """From `shortest_ms` to `longest_ms`."""
        if text is not None and (hesitates(text) or counts_on(text)):
            return self.longest_ms
        if text is not None and answers(text):
            return self.shortest_ms
        if completeness is None:
            return self.unjudged_ms
        sure, unsure = _log_odds(self.sure), _log_odds(self.unsure)
        doubt = (sure - _log_odds(completeness) + self.caution) / (sure - unsure)
        return self.shortest_ms + min(max(doubt, 0.0), 1.0) * (self.doubtful_ms - self.shortest_ms)


def answers(text: str) -> bool:
    """Whether the text is one of the few words that are a whole turn, such as "yes" or "stop"."""
    return " ".join(normalise(text)) in _WHOLE_TURNS


def hesitates(text: str) -> bool:
    """Whether the last of the text is a hesitation rather than a word."""
    return _HESITATION.search(text) is not None


def counts_on(text: str) -> bool:
    """Whether the text ends in digits said one after the other, as of a telephone number.

    A single number at the end of other words is none, be it a year.
    """
    words = normalise(text)
    run = list(takewhile(str.isdecimal, reversed(words)))
    digits = sum(map(len, run))
    several = len(run) > 1 or len(run) == len(words)
    return digits > _DIGITS_IN_A_RUN or (several and digits == _DIGITS_IN_A_RUN)


def _log_odds(probability: float) -> float:
    certain = min(max(probability, 1e-9), 1 - 1e-9)
    return math.log(certain / (1 - certain))
