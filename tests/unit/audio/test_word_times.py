"""Phonemes of a sentence find the words that they came from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audio.word_times import assign_phonemes


def assigned(words: list[str], sentence: str) -> list[str | None]:
    spans = assign_phonemes(words, list(sentence))
    return [None if span is None else sentence[slice(*span)] for span in spans]


@pytest.mark.parametrize(
    ("words", "sentence", "expected"),
    [
        pytest.param(
            ["həlˈoʊ", "wˈɜːld"], "həlˈoʊ wˈɜːld", ["həlˈoʊ", " wˈɜːld"], id="one for one"
        ),
        pytest.param(
            ["wiː", "hɐv", "twˈɛnti fˈaɪv", "dˈeɪz"],
            "wiː hɐv twˈɛnti fˈaɪv dˈeɪz.",
            ["wiː", " hɐv", " twˈɛnti fˈaɪv", " dˈeɪz"],
            id="a number is two spoken words",
        ),
        pytest.param(
            ["wˈʌn", "ʌv", "ðə", "bˈuks"],
            "wˈʌn ʌvðə bˈuks",
            ["wˈʌn", " ʌv", "ðə", " bˈuks"],
            id="two written words are one",
        ),
        pytest.param(
            ["ˈeɪ", "kˈæt", "ðˈiː", "dˈɔɡ"],
            "ɐ kˈæt, ðə dˈɔɡ",
            ["ɐ", " kˈæt", "ðə", " dˈɔɡ"],
            id="words sound weaker in a sentence, and a pause is no one's",
        ),
        pytest.param(
            ["ɡˈʊd", "", "mˈɔːɹnɪŋ"],
            "ɡˈʊd; mˈɔːɹnɪŋ",
            ["ɡˈʊd", None, "mˈɔːɹnɪŋ"],
            id="a dash has no sound",
        ),
        pytest.param(["ˈaɪ"], "ˈaɪ", ["ˈaɪ"], id="stress belongs to the word it begins"),
        pytest.param(["tˈuː"], "tˈuː.", ["tˈuː"], id="length belongs to the word it ends"),
        pytest.param(["", ""], ".", [None, None], id="nothing to hear"),
        pytest.param([], "", [], id="nothing at all"),
    ],
)
def test_phonemes_go_to_the_word_they_were_written_as(
    words: list[str], sentence: str, expected: list[str | None]
) -> None:
    assert assigned(words, sentence) == expected


PRONUNCIATIONS = st.text(st.sampled_from("abtkɜəʊˈː ,"), max_size=8)


@given(st.lists(PRONUNCIATIONS, max_size=8), PRONUNCIATIONS)
def test_spans_are_in_order_and_apart_whatever_was_said(words: list[str], sentence: str) -> None:
    spans = [span for span in assign_phonemes(words, list(sentence)) if span is not None]
    places = [place for span in spans for place in span]
    assert places == sorted(places)
    assert all(0 <= start < end <= len(sentence) for start, end in spans)


@given(st.lists(st.text(st.sampled_from("abtkɜəʊ"), min_size=1, max_size=6), max_size=8))
def test_words_said_as_they_are_alone_get_all_of_their_phonemes(words: list[str]) -> None:
    sentence = " ".join(words)
    assert assigned(words, sentence) == [
        " " * (index > 0) + word for index, word in enumerate(words)
    ]
