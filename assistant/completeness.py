"""How likely a user who falls silent has finished, by what the language model expects next.

Two questions, of two rows of the prompt's own computation. Behind the last word: does the sentence
end here? Behind the mark that ends it: does the user's turn end here, by the token that ends turns
in the model's chat template? The first tells words from the middle of a sentence. But people also
pause between sentences, and a model that has read many requests expects more after "i really like
animals." than after "turn on the living room lamp."

A model expects more after some requests, too ("set a timer for 10 seconds."), for it has read long
ones. So of what is worded as a request only the first question says how far it is doubted.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from assistant.wording import requests

SENTENCE_ENDS = ".?!。？！"
_SHORT_WORDS = 2


@dataclass(frozen=True, slots=True)
class Completeness:
    """A logistic regression: how likely a user who has been silent for 0.3 s has finished.

    The weights are a model's own; docs/turns.md says how they were found.
    """

    bias: float
    sentence: float
    turn: float
    short: float
    """For one or two words. A name that is called, or a greeting, is followed by long pauses."""
    request: float
    """Log-odds that words of a request have at least, if the sentence ends …"""
    whole: float
    """… with this log-probability; they fall with it below."""
    least: float = -8.0
    """Log-probabilities lower than this say no more."""

    def probability(self, words: str, *, sentence: float, turn: float) -> float:
        """Return the probability that the user has finished, 0 to 1.

        Args:
            words: what was said, as the recogniser writes it.
            sentence: natural logarithm of the probability that the sentence ends after the words.
            turn: that the turn ends after the sentence.
        """
        odds = self.bias + self.sentence * max(sentence, self.least)
        odds += self.turn * max(turn, self.least)
        odds += self.short * (len(words.split()) <= _SHORT_WORDS)
        if requests(words):
            odds = max(odds, self.request + min(0.0, sentence - self.whole))
        return 1 / (1 + math.exp(-odds))


SMOLLM2 = Completeness(
    bias=3.36, sentence=0.042, turn=0.169, short=-0.844, request=2.58, whole=-4.0
)
"""For SmolLM2-135M-Instruct; other models get them too."""


def as_sentence(text: str) -> str:
    """The words in lower case without the recogniser's marks, but for a last one.

    A recogniser hears no commas, and where the sound ends it writes a full stop behind anything.
    """
    words = " ".join(re.sub(r"[^\w\s'’%$€£-]", " ", text.casefold()).split())
    mark = "?" if text.rstrip().endswith(("?", "？")) else "."
    return f"{words}{mark}" if words else ""
