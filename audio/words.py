"""The words of a text, so that two ways of writing the same speech compare as equal.

Recognisers write "5", "five" and "Five." for one sound. `normalise` brings both sides of a
comparison to one spelling; it is exact (no similarity), so "not" can never get lost in it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence

_SMALL = (  # noqa: SIM905 (twenty short words read better on two lines)
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()  # noqa: SIM905
_NUMBER = {word: value for value, word in enumerate(_SMALL)}
_NUMBER |= {word: 10 * tens for tens, word in enumerate(_TENS, start=2)}
_SCALE = {"hundred": 100, "thousand": 1_000, "million": 1_000_000, "billion": 1_000_000_000}
_ORDINAL = {
    f"{word}th": value for word, value in _NUMBER.items() if word not in ("one", "two", "three")
}
_ORDINAL |= {f"{word[:-1]}ieth": 10 * tens for tens, word in enumerate(_TENS, start=2)}
_ORDINAL |= {"first": 1, "second": 2, "third": 3, "fifth": 5, "eighth": 8, "ninth": 9}
_ORDINAL |= {"twelfth": 12}

_SPELLING = {"mr": "mister", "mrs": "missus", "dr": "doctor", "ok": "okay"}
_SIGN = {"%": " percent ", "&": " and ", "+": " plus ", "=": " equals ", "@": " at "}
_CURRENCY = {"$": "dollars", "€": "euros", "£": "pounds"}


def normalise(text: str) -> list[str]:
    """The words of `text`: case folded, without punctuation, number words as digits.

    Apostrophes vanish ("what's" is "whats"), hyphens separate, remarks in brackets are dropped.
    """
    text = unicodedata.normalize("NFKC", text).casefold()
    text = re.sub(r"\([^)]*\)|\[[^\]]*\]", " ", text)
    text = re.sub(r"['’‘`´]", "", text)
    text = re.sub(r"\b(?:[^\W\d_]\.){2,}", lambda letters: letters[0].replace(".", ""), text)
    text = re.sub(r"([$€£])\s?([\d,.]*\d)", lambda m: f"{m[2]} {_CURRENCY[m[1]]} ", text)
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    text = re.sub(r"(\d):00\b", r"\1", text)
    text = re.sub(r"(?<=\d)\.(\d+)", lambda m: " point " + " ".join(m[1]), text)
    text = re.sub(r"(\d)(am|pm)\b", r"\1 \2", text)
    for sign, word in _SIGN.items():
        text = text.replace(sign, word)
    words = [_SPELLING.get(word, word) for word in re.findall(r"[^\W_]+", text)]
    return list(_numbers_as_digits(words))


def word_errors(reference: Sequence[str], hypothesis: Sequence[str]) -> int:
    """The fewest insertions, deletions and substitutions that turn one word list into the other."""
    row = list(range(len(hypothesis) + 1))
    for position, expected in enumerate(reference, start=1):
        diagonal, row[0] = row[0], position
        for column, word in enumerate(hypothesis, start=1):
            cost = min(row[column] + 1, row[column - 1] + 1, diagonal + (word != expected))
            diagonal, row[column] = row[column], cost
    return row[-1]


def word_error_rate(reference: str, hypothesis: str) -> float:
    """Word errors per reference word after `normalise`; 0 for two texts without words."""
    expected, heard = normalise(reference), normalise(hypothesis)
    if not expected:
        return float(len(heard) > 0)
    return word_errors(expected, heard) / len(expected)


def _numbers_as_digits(words: Sequence[str]) -> Iterator[str]:
    position = 0
    while position < len(words):
        digits, used = _leading_number(words[position:])
        yield digits if used else words[position]
        position += used or 1


def _leading_number(words: Sequence[str]) -> tuple[str, int]:
    """The number that `words` begin with, in digits, and how many of the words it takes."""
    total, group, used = 0, 0, 0
    room = 0  # what may still be added to the group: a unit goes below tens, tens below hundreds
    for position, word in enumerate(words):
        following = words[position + 1] if position + 1 < len(words) else ""
        value = _NUMBER.get(word, _ORDINAL.get(word, -1))
        if used == 0:
            if word == "a" and following in _SCALE:
                value = 1
            elif word.isdecimal() and following in _SCALE:
                value = int(word)
            if value < 0:
                return "", 0
            group, room = value, 10 if 20 <= value < 100 else 0
        elif word in _SCALE and group and (word != "hundred" or group < 100):
            scaled = group * _SCALE[word]
            if word == "hundred":
                group, room = scaled, 100
            else:
                total, group, room = total + scaled, 0, _SCALE[word]
        elif word == "and" and room >= 100 and following in _NUMBER:
            continue
        elif 0 < value < room:
            group, room = group + value, 10 if 20 <= value < 100 else 0
        else:
            break
        used = position + 1
        if word in _ORDINAL:
            return f"{total + group}{_ordinal_ending(total + group)}", used
    return str(total + group), used


def _ordinal_ending(value: int) -> str:
    if value % 100 in (11, 12, 13):
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(value % 10, "th")
