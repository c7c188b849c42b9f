"""Two spellings of the same speech have the same words; different speech never has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audio.words import normalise, word_error_rate, word_errors

SAME = """
Set a timer for five minutes. = set a timer for 5 minutes
What's the date? = whats the date
thirty three, four, six, ninety-two = 33, 4, 6, 92
one hundred and five = 105
a hundred people = 100 people
two thousand and one = 2001 = 2,001
five million two hundred thousand = 5,200,000
five million = 5 million
nineteen eighty four = 19 84
one zero zero nine = 1 0 0 9
two thirty p.m. = 2:30 PM = 2:30pm
seven = 7:00
three point one four = 3.14
50% = fifty percent
$5 = five dollars
the twenty first of May = the 21st of May
twelfth and third = 12th and 3rd
Mr. Quilter = mister quilter
OK = okay
isolated tornadoes (pause) and heavy rain = isolated tornadoes and heavy rain
cold-hearted = cold hearted
a ﬁne “day” = A fine day
"""

DIFFERENT = """
turn on the light | turn off the light
do it | do not do it
I can go | I can't go
fifteen minutes | fifty minutes
twenty three | twenty, thirty
one hundred and cats | one hundred cats
six and seven | thirteen
3.5 | 35
May | me
"""


@pytest.mark.parametrize("line", SAME.strip().splitlines())
def test_the_same_words_compare_as_equal(line: str) -> None:
    first, *others = (normalise(side) for side in line.split(" = "))
    assert first
    assert all(other == first for other in others)


@pytest.mark.parametrize("line", DIFFERENT.strip().splitlines())
def test_different_words_never_do(line: str) -> None:
    left, right = line.split(" | ")
    assert normalise(left) != normalise(right)


@pytest.mark.parametrize("text", ["", " \n", "...", "(pause)", "— “” !"])
def test_a_text_without_words_has_none(text: str) -> None:
    assert normalise(text) == []


@given(st.text())
def test_normalising_is_finished_after_one_pass(text: str) -> None:
    words = normalise(text)
    assert all(word and " " not in word for word in words)
    again = normalise(" ".join(words))
    assert normalise(" ".join(again)) == again


@given(st.lists(st.sampled_from("abc"), max_size=8), st.lists(st.sampled_from("abc"), max_size=8))
def test_word_errors_are_a_distance(left: list[str], right: list[str]) -> None:
    errors = word_errors(left, right)
    assert errors == word_errors(right, left)
    assert (errors == 0) == (left == right)
    assert abs(len(left) - len(right)) <= errors <= max(len(left), len(right))


def test_the_rate_counts_every_kind_of_error_per_reference_word() -> None:
    assert word_error_rate("turn on the light", "turn on the light") == 0
    assert word_error_rate("turn on the light", "turn off the light") == 1 / 4
    assert word_error_rate("turn on the light", "turn on light") == 1 / 4
    assert word_error_rate("turn on the light", "please turn on the light now") == 2 / 4
    assert word_error_rate("yes", "yes yes yes") == 2
    assert word_error_rate("", "") == 0
    assert word_error_rate("", "you") == 1
