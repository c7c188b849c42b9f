"""What gives invented text away, and what people really say that looks like it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audio.plausibility import (
    HIGHEST_COMPRESSION_RATIO,
    compression_ratio,
    rejection_of,
    repeats_itself,
)
from audio.words import normalise

SURE, UNSURE = -0.3, -1.6
SPOKEN, DOUBTFUL = 0.05, 0.9


@pytest.mark.parametrize(
    "text",
    [
        "beep beep beep beep",
        "well today today today today",
        "come on come on come on",
        "can I get a cappuccino can I get a cappuccino",
        "first this and that and more this and that and more then",
    ],
)
def test_loops_are_found(text: str) -> None:
    assert repeats_itself(text.split())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yes",
        "no no no",
        "bye bye",
        "what time is it and what time is dinner",
        "the big dog and the small dog and the old dog",
    ],
)
def test_ordinary_speech_is_no_loop(text: str) -> None:
    assert not repeats_itself(text.split())


@given(
    phrase=st.lists(st.text("abc", min_size=1, max_size=3), min_size=3, max_size=6),
    before=st.lists(st.text("xyz", min_size=1, max_size=3), max_size=4),
    after=st.lists(st.text("xyz", min_size=1, max_size=3), max_size=4),
)
def test_a_doubled_phrase_is_found_wherever_it_is(
    phrase: list[str], before: list[str], after: list[str]
) -> None:
    assert repeats_itself([*before, *phrase, *phrase, *after])


def test_loops_compress_and_sentences_do_not() -> None:
    assert compression_ratio("") == 0
    assert compression_ratio("turn on the light. " * 12) > HIGHEST_COMPRESSION_RATIO
    sentence = "The question of how real is artificial intelligence is a complex one."
    assert compression_ratio(sentence) < HIGHEST_COMPRESSION_RATIO


@pytest.mark.parametrize("text", ["", ".", "♪"])
def test_no_words_is_no_speech(text: str) -> None:
    assert rejection_of(normalise(text), SPOKEN, SURE) == "no_speech"


def test_unlikely_words_on_a_doubtful_sound_are_dropped() -> None:
    words = normalise("I'm going to go ahead and get it.")
    assert rejection_of(words, DOUBTFUL, UNSURE) == "no_speech"
    assert rejection_of(words, DOUBTFUL, SURE) is None
    assert rejection_of(words, SPOKEN, UNSURE) is None


def test_thanks_are_dropped_only_where_nobody_seems_to_speak() -> None:
    words = normalise("Thank you.")
    assert rejection_of(words, DOUBTFUL, SURE) == "hallucination"
    assert rejection_of(words, SPOKEN, SURE) is None


def test_the_more_doubtful_the_sound_the_surer_the_words_have_to_be() -> None:
    words = normalise("what time is it")
    kept = [
        rejection_of(words, no_speech / 100, log_probability / 100) is None
        for no_speech in range(0, 101, 5)
        for log_probability in (-150,)
    ]
    assert kept == sorted(kept, reverse=True)
    assert any(kept)
    assert not all(kept)
