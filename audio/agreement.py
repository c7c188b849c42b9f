"""Which words of a growing transcript will stay: those on which two hypotheses in a row agree.

LocalAgreement-2 (Liu et al., arXiv:2005.11185; for Whisper: Macháček et al., arXiv:2307.14743).
"""

from __future__ import annotations

from itertools import takewhile

from audio.words import normalise


class StablePrefix:
    """The longest beginning that two successive hypotheses had in common so far; never shrinks.

    Words are compared as `normalise` writes them, so case and punctuation may still change.
    """

    def __init__(self) -> None:
        self._stable: list[str] = []
        self._keys: list[_Key] = []
        self._previous: list[_Key] = []

    @property
    def words(self) -> int:
        """How many words are stable."""
        return len(self._stable)

    @property
    def text(self) -> str:
        """The stable words, as the hypothesis spelt them that confirmed them."""
        return " ".join(self._stable)

    def holds(self, text: str) -> bool:
        """Whether all words of `text` are stable: it is a beginning of the stable words."""
        keys = _keys(text)
        return keys == self._keys[: len(keys)]

    def feed(self, hypothesis: str) -> bool:
        """Take the next hypothesis of the whole text; true if more words are stable now."""
        keys = _keys(hypothesis)
        both = zip(keys, self._previous, strict=False)
        agreed = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], both))
        self._previous = keys
        settled = len(self._keys)
        # A hypothesis that contradicts what is stable extends nothing: its words are others.
        if agreed <= settled or keys[:settled] != self._keys:
            return False
        self._stable += hypothesis.split()[settled:agreed]
        self._keys = keys[:agreed]
        return True


_Key = tuple[str, ...]


def _keys(text: str) -> list[_Key]:
    return [tuple(normalise(word)) for word in text.split()]
