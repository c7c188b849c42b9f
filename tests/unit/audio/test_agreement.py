"""Words that two hypotheses in a row agree on are stable, and stay."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from audio.agreement import StablePrefix
from audio.words import normalise

WORDS = st.sampled_from(["turn", "on", "Turn", "on,", "the", "not", "light", "light.", "50", "-"])
HYPOTHESES = st.lists(st.lists(WORDS, max_size=6).map(" ".join), max_size=8)


def test_a_word_is_stable_once_two_hypotheses_agree() -> None:
    prefix = StablePrefix()
    assert not prefix.feed("turn on the")
    assert prefix.feed("Turn on the light")
    assert prefix.text == "Turn on the"
    assert prefix.feed("turn on the light, please")
    assert prefix.text == "Turn on the light,"


def test_a_word_that_is_taken_back_was_never_stable() -> None:
    prefix = StablePrefix()
    for hypothesis in ("turn on the lie", "turn on the light", "turn on the light"):
        prefix.feed(hypothesis)
    assert prefix.text == "turn on the light"


def test_a_hypothesis_that_contradicts_stable_words_adds_nothing() -> None:
    prefix = StablePrefix()
    for hypothesis in ("turn on", "turn on", "burn on the light", "burn on the light"):
        prefix.feed(hypothesis)
    assert prefix.text == "turn on"


@given(HYPOTHESES)
def test_stable_words_are_never_taken_back(hypotheses: list[str]) -> None:
    prefix = StablePrefix()
    before = ""
    for hypothesis in hypotheses:
        grew = prefix.feed(hypothesis)
        assert prefix.text.startswith(before)
        assert grew == (prefix.text != before)
        assert prefix.words == len(prefix.text.split())
        before = prefix.text


@given(HYPOTHESES)
def test_every_stable_word_was_said_by_two_hypotheses_in_a_row(hypotheses: list[str]) -> None:
    prefix = StablePrefix()
    agreed = 0
    previous: list[list[str]] = []
    for hypothesis in hypotheses:
        prefix.feed(hypothesis)
        keys = [normalise(word) for word in hypothesis.split()]
        stable = [normalise(word) for word in prefix.text.split()]
        if prefix.words > agreed:
            assert keys[: prefix.words] == stable
            assert previous[: prefix.words] == stable
        agreed, previous = prefix.words, keys
        assert prefix.holds(prefix.text)
