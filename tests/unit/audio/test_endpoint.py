"""How long a silence ends a turn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audio.endpoint import (
    Endpointer,
    SemanticEndpointer,
    SilenceEndpointer,
    answers,
    counts_on,
    hesitates,
)

SEMANTIC = SemanticEndpointer()
probabilities = st.floats(0, 1)


@pytest.mark.parametrize("text", [None, "", "and then", "What time is it?"])
@pytest.mark.parametrize("completeness", [None, 0.0, 1.0])
def test_silence_alone_decides_whatever_was_said(
    text: str | None, completeness: float | None
) -> None:
    endpointer: Endpointer = SilenceEndpointer(silence_ms=500)
    assert endpointer.silence_needed_ms(text, completeness) == 500


def test_words_that_sound_complete_end_a_turn_sooner() -> None:
    text = "turn on the lamp"
    assert SEMANTIC.silence_needed_ms(text, SEMANTIC.sure) == pytest.approx(320)
    assert SEMANTIC.silence_needed_ms(text, SEMANTIC.unsure) == pytest.approx(1100)
    assert SEMANTIC.silence_needed_ms(text, None) == 500
    assert SEMANTIC.silence_needed_ms(None, None) == 500


@given(probabilities, probabilities)
def test_the_wait_never_grows_with_completeness(one: float, other: float) -> None:
    less, more = sorted((one, other))
    needed = [SEMANTIC.silence_needed_ms("turn on the lamp", each) for each in (more, less)]
    assert 320 <= needed[0] <= needed[1] <= 1100


@given(probabilities)
def test_caution_only_makes_it_wait_longer(completeness: float) -> None:
    cautious = SemanticEndpointer(caution=0.4)
    hasty = SemanticEndpointer(caution=-0.4)
    waits = [each.silence_needed_ms("oh", completeness) for each in (hasty, SEMANTIC, cautious)]
    assert waits == sorted(waits)


@pytest.mark.parametrize(
    "text", ["So, um", "Set it to, uh...", "It's like…", "and then,", "Hmm.", "well -", "Er"]
)
def test_whoever_searches_for_words_gets_the_longest(text: str) -> None:
    assert hesitates(text)
    assert SEMANTIC.silence_needed_ms(text, 1.0) == SEMANTIC.longest_ms


@pytest.mark.parametrize("text", ["Mm-hm.", "the alarm", "a room", "summer", "M.", "drum", ""])
def test_ordinary_words_are_no_hesitation(text: str) -> None:
    assert not hesitates(text)


@pytest.mark.parametrize(
    "text",
    [
        "10001 90210",
        "my number is 555-1234",
        "one zero zero",
        "1,001.",
        "It's oh one two five 6 7.",
    ],
)
def test_digits_in_a_row_may_go_on(text: str) -> None:
    assert counts_on(text) == (text != "one zero zero")


@pytest.mark.parametrize(
    "text",
    ["in 1984", "set a timer for 30 seconds", "2:30 PM", "thirty five", "7 of 9", "", "50%"],
)
def test_a_single_number_does_not(text: str) -> None:
    assert not counts_on(text)


def test_a_few_words_are_a_turn_by_themselves() -> None:
    assert SEMANTIC.silence_needed_ms("Stop!", 0.0) == SEMANTIC.shortest_ms
    assert answers("Never mind.") and answers("YES") and not answers("Yes, but")
