"""An utterance as it is being spoken: which attempts count, and what is left behind."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from audio.streaming import Attempt, Segment, StreamingUtterance
from audio.vad import SAMPLE_RATE_HZ

RATE = SAMPLE_RATE_HZ
WORD_S = 0.5
"""The speaker says a word in half a second, and makes a sentence of ten."""


def spoken(until_s: float) -> list[str]:
    return [f"w{index}" for index in range(int(until_s / WORD_S))]


def heard(attempt: Attempt) -> tuple[str, list[Segment]]:
    """What a perfect recogniser makes of an attempt: whole words, a segment for each sentence."""
    first = round(attempt.start_sample / RATE / WORD_S)
    words = spoken(attempt.end_sample / RATE)[first:]
    segments = []
    for start in range(0, len(words), 10):
        sentence = words[start : start + 10]
        end_s = (first + start + len(sentence)) * WORD_S
        segments.append(Segment(" ".join(sentence), round(end_s * RATE)))
    return " ".join(words), segments


def ask(utterance: StreamingUtterance, end_s: float) -> Attempt:
    return utterance.ask("partial", end_s, round(end_s * RATE), round(end_s * RATE))


def speak(utterance: StreamingUtterance, until_s: float) -> list[Attempt]:
    """An attempt every second; after five, a breath of no length that ends a sentence."""
    attempts = []
    for second in range(1, round(until_s) + 1):
        attempt = ask(utterance, second)
        utterance.on_result(attempt.number, *heard(attempt), second)
        attempts.append(attempt)
        if second % 5 == 0:
            breathe(utterance, second)
    return attempts


def breathe(utterance: StreamingUtterance, at_s: float) -> None:
    end = round(at_s * RATE)
    for end_sample, last_voiced in ((end, end), (end + 200, end), (end + 400, end + 400)):
        wanted = utterance.hear(at_s, end_sample, last_voiced, 0.9)
        assert wanted is None, "the attempt before the breath has heard all words"


def test_words_that_two_attempts_agree_on_are_stable_and_the_rest_is_tentative() -> None:
    utterance = StreamingUtterance(0, 0.0)
    speak(utterance, 3.0)
    assert utterance.stable.split() == spoken(2.0)
    assert utterance.tentative == "w4 w5"


def test_a_minute_is_known_whole_and_costs_no_more_than_its_last_seconds() -> None:
    utterance = StreamingUtterance(0, 0.0)
    attempts = speak(utterance, 60.0)
    assert utterance.newest is not None
    assert utterance.newest.text.split() == spoken(60.0)
    longest_s = max(a.end_sample - a.start_sample for a in attempts) / RATE
    assert longest_s <= 20
    for attempt in attempts:
        assert attempt.after.split() == spoken(attempt.start_sample / RATE)


def test_nothing_is_left_behind_in_short_speech() -> None:
    attempts = speak(StreamingUtterance(0, 0.0), 15.0)
    assert {attempt.start_sample for attempt in attempts} == {0}


def test_words_that_change_from_attempt_to_attempt_are_left_behind_in_time() -> None:
    """The recogniser's window must not grow for ever because it cannot make up its mind."""
    utterance = StreamingUtterance(0, 0.0)
    longest_s = 0.0
    for second in range(1, 91):
        attempt = ask(utterance, second)
        assert attempt.start_sample == 0 or second > 24, "words were left behind unsettled"
        longest_s = max(longest_s, (attempt.end_sample - attempt.start_sample) / RATE)
        _, segments = heard(attempt)
        unsure = [Segment(f"{segment.text} {second}", segment.end_sample) for segment in segments]
        utterance.on_result(attempt.number, " ".join(s.text for s in unsure), unsure, second)
    assert longest_s <= 30


def test_the_words_count_once_an_attempt_has_heard_the_end() -> None:
    utterance = StreamingUtterance(0, 0.0)
    early, late = ask(utterance, 2.0), ask(utterance, 3.0)
    utterance.on_result(early.number, *heard(early), 3.1)
    assert utterance.words(3 * RATE) is None
    assert utterance.coming(3 * RATE) is late
    utterance.on_result(late.number, *heard(late), 3.2)
    known = utterance.words(3 * RATE)
    assert known is not None and known.text.split() == spoken(3.0)


def test_an_attempt_without_words_does_not_settle_that_there_are_none() -> None:
    utterance = StreamingUtterance(0, 0.0)
    attempt = ask(utterance, 0.4)
    utterance.on_result(attempt.number, "", [], 0.5)
    assert utterance.words(attempt.end_sample) is None


def test_words_left_behind_do_not_stand_for_those_that_were_not_heard() -> None:
    utterance = StreamingUtterance(0, 0.0)
    speak(utterance, 30.0)
    attempt = ask(utterance, 31.0)
    assert attempt.after
    utterance.on_result(attempt.number, "", [], 31.2)
    assert utterance.words(attempt.end_sample) is None
    assert utterance.newest is not None and utterance.newest.text == attempt.after


def test_a_failed_attempt_is_waited_for_no_more() -> None:
    utterance = StreamingUtterance(0, 0.0)
    attempt = ask(utterance, 1.0)
    utterance.on_failure(attempt.number)
    assert not utterance.awaits(attempt.number)
    assert utterance.coming(attempt.end_sample) is None


@given(st.permutations(range(6)), st.sets(st.integers(0, 5)), st.sets(st.integers(0, 5)))
def test_whatever_comes_when_the_newest_that_came_counts(
    order: list[int], lost: set[int], failing: set[int]
) -> None:
    utterance = StreamingUtterance(0, 0.0)
    attempts = [ask(utterance, 1.0 + index) for index in range(6)]
    newest = -1
    stable = ""
    for index in order:
        attempt = attempts[index]
        assert utterance.awaits(attempt.number) == (index > newest)
        if index in lost or index < newest:
            continue
        if index in failing:
            utterance.on_failure(attempt.number)
            continue
        utterance.on_result(attempt.number, *heard(attempt), 10.0)
        newest = index
        assert utterance.newest is not None and utterance.newest.attempt is attempt
        assert utterance.stable.startswith(stable)
        stable = utterance.stable
        assert f"{stable} {utterance.tentative}".split() == spoken(attempt.end_sample / RATE)
