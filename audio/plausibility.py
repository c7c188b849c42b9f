"""Whether a decoded text can be what somebody said, or was invented by the decoder.

Whisper always writes something. On noise it writes what was frequent in its training ("Thank
you."), and when its window is short or strange it repeats itself. What gives it away is its own
probability of "no speech here", the likelihood of the words, and repetition.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from audio.words import normalise

HIGHEST_COMPRESSION_RATIO = 2.4
"""Text that zlib shrinks further than this is a loop (Whisper, arXiv:2212.04356, section 4.5)."""

# The pairs separate the labelled recordings of docs/recognition.md: the more the network doubts
# that there is speech, the likelier its words have to be.
_NO_SPEECH_LIMITS = ((0.42, -1.0), (0.5, -0.9), (0.8, -0.8), (0.97, 0.0))

# What the English models write on sounds that are no speech. Said by a person, such words come
# with a low no-speech probability.
_STOCK_PHRASES = {
    tuple(normalise(phrase))
    for phrase in (
        "ah",
        "bye",
        "bye bye",
        "hmm",
        "oh",
        "okay",
        "so",
        "thank you",
        "thank you for watching",
        "thank you so much",
        "thank you very much",
        "thanks",
        "thanks for watching",
        "the end",
        "uh",
        "um",
        "you",
    )
}
_STOCK_PHRASE_NO_SPEECH_LIMIT = 0.5


def compression_ratio(text: str) -> float:
    """Bytes of the text per byte of its zlib form; 0 for no text."""
    data = text.encode()
    return len(data) / len(zlib.compress(data)) if data else 0.0


def repeats_itself(words: Sequence[str]) -> bool:
    """Whether the words contain a loop: a word four times in a row, a pair thrice, more twice.

    People do repeat themselves ("no, no, no"), so this is a reason to listen again, not to drop
    the text.
    """
    for size in range(1, len(words) // 2 + 1):
        times = {1: 4, 2: 3}.get(size, 2)
        run = 0  # how many words in a row equal the word `size` places before
        for earlier, later in zip(words, words[size:], strict=False):
            run = run + 1 if earlier == later else 0
            if run == size * (times - 1):
                return True
    return False


def rejection_of(
    words: Sequence[str], no_speech_probability: float, average_log_probability: float
) -> str | None:
    """Why these words are not speech, or None if they may be.

    "no_speech": the network doubts that anyone spoke and is not sure of the words, or there are
    none. "hallucination": a stock phrase on a doubtful sound.
    """
    if not words:
        return "no_speech"
    for probability, log_probability in _NO_SPEECH_LIMITS:
        if no_speech_probability > probability and average_log_probability < log_probability:
            return "no_speech"
    if tuple(words) in _STOCK_PHRASES and no_speech_probability > _STOCK_PHRASE_NO_SPEECH_LIMIT:
        return "hallucination"
    return None
