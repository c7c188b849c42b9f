"""Which phonemes belong to which written word.

A synthesiser turns "25" into two spoken words and "of the" into one, so words cannot be counted
off.  Instead every word is also pronounced alone, and the two pronunciations are aligned: the
cheapest way to turn the phonemes of the words, one after the other, into those of the sentence
says which word each phoneme of the sentence came from.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_GAP = " "
_STRESS = "ˈˌ"
_MARKS = "ːˑʰʲʷˤ˞\u0303\u0327\u0329\u032a\u032f\u033a\u033b"
_VOWELS = frozenset("aeiouyæøœɐɑɒɔəɚɛɜɝɪɨʉʊʌᵻ")


def assign_phonemes(words: Sequence[str], sentence: Sequence[str]) -> list[tuple[int, int] | None]:
    """The span of `sentence`'s phonemes that each word has; `None` for a word without a sound.

    `words`: the phonemes of each word pronounced alone.  `sentence`: the phonemes of all of them
    in one breath, spaces and punctuation included.  Spans neither overlap nor change order.  A
    space between two words belongs to the second, which is heard from there on (in one breath
    nothing is silent); a pause with punctuation belongs to no one.
    """
    expected = [(_GAP, -1)]
    for index, word in enumerate(words):
        expected += [(sound, index) for sound in _sounds(word)]
        expected.append((_GAP, -1))
    places = [place for place, sound in enumerate(sentence) if sound == _GAP or _is_sound(sound)]
    owners = _align(
        [sound for sound, _ in expected],
        [owner for _, owner in expected],
        [sentence[place] for place in places],
    )
    spans: list[tuple[int, int] | None] = [None] * len(words)
    for place, owner in zip(places, owners, strict=True):
        if owner >= 0 and sentence[place] != _GAP:
            span = spans[owner]
            spans[owner] = (span[0] if span else place, place + 1)
    return [None if span is None else _widened(*span, sentence) for span in spans]


def _widened(start: int, end: int, sentence: Sequence[str]) -> tuple[int, int]:
    """A span of sounds with what belongs to it: stress and space before, marks after."""
    while start > 0 and sentence[start - 1] in _STRESS:
        start -= 1
    if start > 1 and sentence[start - 1] == _GAP and _is_in_a_word(sentence[start - 2]):
        start -= 1
    while end < len(sentence) and sentence[end] in _MARKS:
        end += 1
    return start, end


def _is_sound(phoneme: str) -> bool:
    return unicodedata.category(phoneme) in ("Ll", "Lo", "Lu")


def _is_in_a_word(phoneme: str) -> bool:
    return _is_sound(phoneme) or phoneme in _MARKS


def _sounds(phonemes: str) -> list[str]:
    return [phoneme for phoneme in phonemes if phoneme == _GAP or _is_sound(phoneme)]


def _align(expected: Sequence[str], owners: Sequence[int], heard: Sequence[str]) -> list[int]:
    """The owner of each heard symbol, by the alignment with the least cost; -1 for no one."""
    skip = np.array([0.4 if symbol == _GAP else 1.0 for symbol in heard])
    skipped = np.concatenate([[0.0], np.cumsum(skip)])
    rows = [skipped]
    for symbol in expected:
        above = rows[-1]
        reached = above + (0.4 if symbol == _GAP else 1.0)
        reached[1:] = np.minimum(reached[1:], above[:-1] + _mismatch(symbol, heard))
        rows.append(np.minimum.accumulate(reached - skipped) + skipped)
    found = [-1] * len(heard)
    row, column = len(expected), len(heard)
    while row and column:
        here, symbol = rows[row][column], expected[row - 1]
        diagonal = rows[row - 1][column - 1] + _mismatch(symbol, heard[column - 1 : column])[0]
        if np.isclose(here, diagonal):
            row, column = row - 1, column - 1
            found[column] = owners[row]
        elif np.isclose(here, rows[row][column - 1] + skip[column - 1]):
            column -= 1
            found[column] = owners[row - 1]  # an extra sound is part of the word around it
        else:
            row -= 1
    return found


def _mismatch(symbol: str, heard: Sequence[str]) -> NDArray[np.float64]:
    """What it costs to take each heard symbol for `symbol`."""
    return np.array([_distance(symbol, other) for other in heard])


def _distance(one: str, other: str) -> float:
    if one == other:
        return 0.0
    if _GAP in (one, other):
        return 3.0
    return 0.6 if (one in _VOWELS) == (other in _VOWELS) else 1.2
