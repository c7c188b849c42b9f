"""English writing is respelled as it is said, word for word."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audio.spelling import spelled_out

SAID = {
    "Dr. Smith is here.": "doctor Smith is here.",
    "(Mr. Jones)": "(mister Jones)",
    "cats vs. dogs": "cats versus dogs",
    "fruit, e.g. pears": "fruit, for example pears",
    "approx. 5 of Jan. 6": "approximately 5 of january 6",
    "J. R. Tolkien.": "J R Tolkien.",
    "See No. 5, he said no.": "See number 5, he said no.",
    "No. He left.": "No. He left.",
    "see p. 12, pp. 14": "see page 12, pages 14",
    "at 5 p.m. today": "at 5 p.m today",
    "$5": "5 dollars",
    "$1": "1 dollar",
    "$5.50, or $0.99.": "5 dollars and 50 cents, or 99 cents.",
    "£1.01": "1 pound and 1 penny",
    "£2.02": "2 pounds and 2 pence",
    "$1,000.00": "1,000 dollars",
    "$3.5 million, please": "3.5 million dollars, please",
    "($20)": "(20 dollars)",
    "at 10:00 today": "at 10 o'clock today",
    "at 10:00 a.m. today": "at 10 a.m today",
    "at 9:05 or 3:30pm": "at 9 oh 5 or 3 30 pm",
    "10-20 people": "10 to 20 people",
    "555-1234": "5 5 5, 1 2 3 4",
    "in 1999 and 1905": "in 19 99 and 19 oh 5",
    "the 1990s, 1900": "the 19 nineties, 19 hundred",
    "in 2024": "in 2024",
    "2 < 3 * 4": "2 less than 3 times 4",
    "5 - 3": "5 minus 3",
    "so - yes": "so - yes",
    "1/2 cup": "one half cup",
    "and/or": "and or",
    "#1 of ~5": "number 1 of about 5",
    "A → B": "A to B",
    "well... yes...": "well, yes...",
    "well… yes": "well, yes",
    '"Hello," he said.': '"Hello," he said.',
    "It's 3.14.": "It's 3.14.",
}


@pytest.mark.parametrize("written", SAID)
def test_words_are_spelled_as_they_are_said(written: str) -> None:
    assert " ".join(spelled_out(written.split())) == SAID[written]


@given(st.lists(st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1, max_size=12)))
def test_there_is_one_spelling_for_each_word(words: list[str]) -> None:
    assert len(spelled_out(words)) == len(words)
