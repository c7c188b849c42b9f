"""Ends an answer before a text, wherever the tokens' borders lie.

A token whose text may yet turn out to begin a stop string is held back until what follows decides
it; so whoever reads the tokens as they come never sees any part of a stop string.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from dspark.tokenizer import Detokenizer


class StopStrings:
    """Watches one answer for the first stop string in its text.

    Attributes:
        found: whether there was one: the answer has ended before it.
    """

    def __init__(self, strings: Sequence[str], detokenizer: Detokenizer) -> None:
        self._strings = tuple(strings)
        self._longest = max(map(len, strings))
        self._detokenizer = detokenizer
        self._text = ""  # of the tokens held back
        self._held: deque[tuple[list[int], int]] = deque()  # tokens, and the characters they make
        self._unfinished: list[int] = []  # tokens that so far end inside a character
        self.found = False

    def feed(self, token: int) -> list[int]:
        """Take in the next token; returns those that no stop string can touch any more.

        Tokens that only together make a whole character are given out together.
        """
        self._unfinished.append(token)
        new = self._detokenizer.feed([token])
        if not new:
            return []
        self._held.append((self._unfinished, len(new)))
        self._unfinished = []
        self._text += new
        starts = [self._text.find(string) for string in self._strings if string in self._text]
        self.found = bool(starts)
        return self._release(min(starts) if starts else self._undecided())

    def flush(self) -> list[int]:
        """What is still held back: the answer has ended, and no stop string came of it."""
        held = [token for tokens, _ in self._held for token in tokens]
        return [*held, *self._unfinished]

    def _undecided(self) -> int:
        """From which character on the text may be the beginning of a stop string."""
        for start in range(max(0, len(self._text) - self._longest + 1), len(self._text)):
            end = self._text[start:]
            if any(string.startswith(end) for string in self._strings):
                return start
        return len(self._text)

    def _release(self, characters: int) -> list[int]:
        """The tokens that lie wholly in the first so many characters."""
        released: list[int] = []
        while self._held and self._held[0][1] <= characters:
            tokens, length = self._held.popleft()
            released += tokens
            characters -= length
            self._text = self._text[length:]
        return released
