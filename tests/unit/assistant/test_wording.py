"""Which words ask for an answer."""

from __future__ import annotations

import pytest

from assistant.wording import requests


@pytest.mark.parametrize(
    "text",
    [
        "Set a timer for 10 seconds.",
        "This is a test.",
        "Cancel timer",
        "Okay, play the Beatles.",
        "Hey computer, what's the weather?",
        "I want a medium roast cappuccino.",
        "I'd like a latte.",
        "We need more light.",
        "I really like animals. Let's talk about dogs.",
        "Turn it to 2.5 degrees.",
    ],
)
def test_what_asks_for_something_is_a_request(text: str) -> None:
    assert requests(text)


@pytest.mark.parametrize(
    "text",
    [
        "I really like animals.",
        "I'm Abigail.",
        "My name is Abigail.",
        "Well, we've been to Paris.",
        "Turn on the lamp. I",
        "Turn off",
        "Weather.",
        "Computer?",
        "Hey Snowboy.",
        "Hello there computer.",
        "Okay, please.",
        "cancel",
        "...",
        "",
    ],
)
def test_names_greetings_and_what_one_tells_of_oneself_are_none(text: str) -> None:
    assert not requests(text)
