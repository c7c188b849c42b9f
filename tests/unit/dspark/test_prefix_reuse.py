"""A prompt computes only what no slot holds yet, whoever left it there and however that ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dspark import Engine, Priority, SamplingParams, Target, load_drafter
from tests.unit.dspark.answers import PROMPTS, answer, greedily, longest

PREFILL = 8  # tokens a step
WORDS = [12, 13, 14]  # what the user went on to say
OpenEngine = Callable[..., Engine]
Write = Callable[..., Path]


def test_the_next_turn_of_a_dialogue_computes_only_what_is_new(open_engine: OpenEngine) -> None:
    engine = open_engine()
    first = engine.generate(PROMPTS[1], longest(10)).token_ids
    turn = [*PROMPTS[1], *first, 40, 41, 42]
    expected = greedily(engine.target, turn, 10)
    generation = engine.submit(turn, SamplingParams(max_new_tokens=10))
    assert answer(generation) == expected
    # The last answer token was never computed: it was only drawn.
    assert generation.cached_tokens == len(PROMPTS[1]) + len(first) - 1


def test_asking_the_same_again_gives_the_same(engine: Engine) -> None:
    first = engine.generate(PROMPTS[3], longest(20)).token_ids
    again = engine.submit(PROMPTS[3], longest(20))
    assert tuple(answer(again)) == first
    assert again.cached_tokens == len(PROMPTS[3]) - 1


def test_a_prefix_is_reused_even_while_its_owner_runs(
    engine: Engine, target: Target, open_engine: OpenEngine
) -> None:
    running = engine.submit([*PROMPTS[3], 1], longest(60))
    steps = iter(running)
    next(steps)
    second = engine.submit([*PROMPTS[3], 2], longest(10))
    assert answer(second) == answer(open_engine().submit([*PROMPTS[3], 2], longest(10)))
    assert second.cached_tokens == len(PROMPTS[3])
    rest = [token for step in steps for token in step.committed]
    assert rest == answer(open_engine().submit([*PROMPTS[3], 1], longest(60)))[1:]


# --- a guess that turned out to be too short -----------------------------------------------------


@pytest.mark.parametrize("steps", [1, 3, 6])
def test_the_continuation_of_a_cancelled_guess_computes_what_the_guess_had_not(
    steps: int, open_engine: OpenEngine
) -> None:
    """Cancelled while its prompt is read, or with an answer begun; 23 tokens take three steps."""
    engine = open_engine(prefill_tokens=PREFILL)
    prompt, whole = PROMPTS[1], [*PROMPTS[1], *WORDS]
    engine.target.hold()
    guess = engine.submit(prompt, longest(), priority=Priority.SPECULATIVE)
    engine.target.step(steps)
    engine.target.wait_held()  # one more step is under way, and will be finished
    guess.cancel()
    confirmed = engine.submit(whole, longest(5))
    read = min((steps + 1) * PREFILL, len(prompt))
    engine.target.let_go()
    found = answer(confirmed)
    assert found == greedily(engine.target, whole, 5)
    assert confirmed.cached_tokens == read
    assert engine.metrics.prompt_tokens_computed == len(whole)


def test_a_guess_extended_again_and_again_reads_each_word_once(open_engine: OpenEngine) -> None:
    engine = open_engine(prefill_tokens=PREFILL)
    heard: list[int] = []
    for words in ([5, 9, 2], [33, 60], [7], [40, 3, 8, 21]):
        heard += words
        guess = engine.submit(heard, longest(), priority=Priority.SPECULATIVE)
        next(iter(guess))
        guess.cancel()
    found = engine.generate([*heard, 4], longest(5)).token_ids
    assert found == open_engine().generate([*heard, 4], longest(5)).token_ids
    assert engine.metrics.prompt_tokens_computed == len(heard) + 1


def test_a_continuation_that_comes_before_the_cancelling_reuses_as_much(
    open_engine: OpenEngine,
) -> None:
    engine = open_engine(prefill_tokens=64)
    engine.target.hold()
    guess = engine.submit(PROMPTS[3], longest(), priority=Priority.SPECULATIVE)
    engine.target.step(2)
    engine.target.wait_held()
    confirmed = engine.submit([*PROMPTS[3], *WORDS], longest(5))
    engine.target.step(1)
    engine.target.wait_held()
    guess.cancel()
    engine.target.let_go()
    assert answer(confirmed) == greedily(engine.target, [*PROMPTS[3], *WORDS], 5)
    assert confirmed.cached_tokens == len(PROMPTS[3])


def test_a_guess_that_was_sent_back_to_wait_has_left_its_prompt_too(
    open_engine: OpenEngine,
) -> None:
    engine = open_engine(slots=1)
    engine.target.hold()
    guess = engine.submit(PROMPTS[3], longest(), priority=Priority.SPECULATIVE)
    engine.target.step(2)
    engine.target.wait_held()
    confirmed = engine.submit([*PROMPTS[3], *WORDS], longest(5))
    engine.target.step(1)
    engine.target.wait_held()
    guess.cancel()
    engine.target.let_go()
    assert len(answer(confirmed)) == 5
    assert confirmed.cached_tokens == len(PROMPTS[3])


def test_the_drafters_features_are_reused_with_the_prompt(
    target: Target, write_drafter: Write
) -> None:
    drafter = load_drafter(write_drafter(), target)
    whole = [*PROMPTS[1], *WORDS]
    with Engine(target, drafter, context_tokens=128) as fresh:
        expected = fresh.generate(whole, longest(12)).steps
    with Engine(target, drafter, context_tokens=128) as engine:
        guess = engine.submit(PROMPTS[1], longest(), priority=Priority.SPECULATIVE)
        next(iter(guess))
        guess.cancel()
        confirmed = engine.submit(whole, longest(12))
        steps = tuple(confirmed)
        assert confirmed.cached_tokens == len(PROMPTS[1])
    assert [step.draft for step in steps] == [step.draft for step in expected]
    assert [step.committed for step in steps] == [step.committed for step in expected]
