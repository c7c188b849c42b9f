"""What comes next, asked of a prompt: the model's own probabilities, and nothing else disturbed."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

import pytest
import torch

from dspark import Engine, InvalidRequest, SamplingParams, Target
from dspark.target import Span

PROMPT = list(range(10, 33))  # three steps of the fixture's engine
GROUPS = ((3,), (5, 9, 40))
OpenEngine = Callable[..., Engine]


def score(engine: Engine, prompt: Sequence[int], last: int = 1) -> tuple[tuple[float, ...], ...]:
    return asyncio.run(engine.score(prompt, GROUPS, last=last))


def by_hand(target: Target, prompt: Sequence[int], last: int) -> list[list[float]]:
    """The groups' log-probabilities by one plain forward over the whole prompt."""
    with torch.inference_mode():
        cache = target.new_cache(1, len(prompt))
        logits = target.forward([Span(0, 0, prompt, last)], cache).logits[0]
    rows = logits.float().softmax(-1).tolist()
    return [[math.log(sum(row[token] for token in group)) for group in GROUPS] for row in rows]


@pytest.mark.parametrize("last", [1, 2, 12])
def test_each_of_the_last_tokens_is_asked_about(engine: Engine, target: Target, last: int) -> None:
    found = score(engine, PROMPT, last)
    assert len(found) == last
    for row, expected in zip(found, by_hand(target, PROMPT, last), strict=True):
        assert row == pytest.approx(expected, abs=1e-4)


def test_what_lies_in_the_cache_changes_nothing(engine: Engine) -> None:
    first = score(engine, PROMPT, 2)
    again = score(engine, PROMPT, 2)
    assert [*again[0], *again[1]] == pytest.approx([*first[0], *first[1]], abs=1e-5)
    assert score(engine, PROMPT[:-1], 1)[0] == pytest.approx(first[0], abs=1e-5)


def test_the_answer_computes_only_what_the_question_did_not(open_engine: OpenEngine) -> None:
    plain = open_engine().generate([*PROMPT, 4], SamplingParams(max_new_tokens=6)).token_ids
    engine = open_engine()
    score(engine, PROMPT, 2)
    generation = engine.submit([*PROMPT, 4], SamplingParams(max_new_tokens=6))
    assert tuple(token for step in generation for token in step.committed) == plain
    assert generation.cached_tokens == len(PROMPT)


def test_a_question_beside_an_answer_leaves_it_as_it_was(open_engine: OpenEngine) -> None:
    alone = open_engine().generate(PROMPT[:5], SamplingParams(max_new_tokens=12)).token_ids
    engine = open_engine()
    generation = engine.submit(PROMPT[:5], SamplingParams(max_new_tokens=12))
    score(engine, PROMPT, 2)
    assert tuple(token for step in generation for token in step.committed) == alone


@pytest.mark.parametrize(
    ("prompt", "groups", "last"),
    [(PROMPT, ((3,), ()), 1), (PROMPT, (), 1), (PROMPT, ((10**9,),), 1), (PROMPT, GROUPS, 24)],
)
def test_a_question_that_makes_no_sense_is_refused(
    engine: Engine, prompt: list[int], groups: tuple[tuple[int, ...], ...], last: int
) -> None:
    with pytest.raises(InvalidRequest):
        asyncio.run(engine.score(prompt, groups, last=last))
