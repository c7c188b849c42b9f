"""Guesses that wait in every slot: whoever is certain is served, and no guess is lost by it."""

from __future__ import annotations

from collections.abc import Callable

from dspark import Engine, Generation, Priority, SamplingParams
from tests.unit.dspark.conftest import WatchedTarget

SLOTS = 4
GUESSED = [[20 + number] * 9 for number in range(SLOTS)]
CERTAIN = [[30 + number] * 9 for number in range(SLOTS)]
LONG = SamplingParams(max_new_tokens=12, logit_bias={1: float("-inf")})
"""Never stops by itself before."""


def answer(generation: Generation) -> list[int]:
    return [token for step in generation for token in step.committed]


def test_held_guesses_in_all_slots_keep_nobody_from_being_answered(
    open_engine: Callable[..., Engine],
) -> None:
    engine = open_engine(slots=SLOTS)
    target = engine.target
    assert isinstance(target, WatchedTarget)
    target.hold()
    guesses = [engine.submit(each, LONG, priority=Priority.SPECULATIVE) for each in GUESSED]
    for guess in guesses:
        guess.hold()
    target.let_go()
    certain = [engine.submit(each, LONG) for each in CERTAIN]
    expected = [list(engine.generate(each, LONG).token_ids) for each in CERTAIN]
    assert [answer(each) for each in certain] == expected
    for guess in guesses:
        guess.promote()
    expected = [list(engine.generate(each, LONG).token_ids) for each in GUESSED]
    assert [answer(each) for each in guesses] == expected
