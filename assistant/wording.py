"""Whether what was said is worded as a whole request, so that an answer to it is due."""

from __future__ import annotations

import re

from audio.words import normalise

_REQUEST_WORDS = 3
_LEAD_INS = frozenset({"okay", "hey", "hello", "hi", "oh", "so", "well", "now", "please"})
_OF_ONESELF = frozenset({"i", "im", "ive", "ill", "we", "were", "weve", "well", "my", "our"})
_WISHES = frozenset({"want", "need", "would", "wish"})
_COMMANDS = frozenset(
    re.split(
        r",\s*",
        "add, call, cancel, close, dim, find, launch, lock, mute, open, pause, play, read, repeat, "
        "resume, show, skip, snooze, start, stop, text, unlock",
    )
)


def requests(text: str) -> bool:
    """Whether the last sentence of the text, as a recogniser writes it, is worded as a request.

    It has three words or more, or is a command with what it is about.  What people tell of
    themselves asks for nothing yet ("I really like animals."), and a name that is called or a
    greeting is followed by what is wanted.  English; whether the sentence is whole, others judge.
    """
    words = normalise(re.split(r"[.?!]\s+", text.strip())[-1])
    while words and words[0] in _LEAD_INS:
        words = words[1:]
    if len(words) < _REQUEST_WORDS:
        return len(words) > 1 and words[0] in _COMMANDS
    return words[0] not in _OF_ONESELF or words[1] in _WISHES
