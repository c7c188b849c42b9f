"""A drafter that is broken costs a line in the log and a count, and never a request."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dspark import Engine, SamplingParams, Target
from dspark.drafters import Anchor, Draft
from dspark.soundness import sound_part
from dspark.tree import TreeShape

VOCAB = 64
BLOCK = 3
PROMPTS = [[5, 9, 2, 33, 60], [7] * 23, [40, 3]]
NAN = float("nan")
Break = Callable[[list[Draft]], object]


def params(**settings: Any) -> SamplingParams:
    return SamplingParams(max_new_tokens=12, logit_bias={1: float("-inf")}, **settings)


def uniform() -> torch.Tensor:
    return torch.full((VOCAB,), 1 / VOCAB)


class Broken:
    """Drafts at random, and then something is done to its drafts."""

    block_size = BLOCK

    def __init__(self, break_: Break, taps: Sequence[int] = ()) -> None:
        self.taps = taps
        self._break = break_
        self._random = random.Random(3)

    def new_cache(self, slots: int, context_tokens: int) -> None:
        return None

    def extend(self, cache: object, slot: int, start: int, features: torch.Tensor) -> None:
        raise RuntimeError("a drafter that takes in nothing")

    def draft(self, cache: object, anchors: Sequence[Anchor]) -> Any:
        return self._break([self._draft(anchor) for anchor in anchors])

    def _draft(self, anchor: Anchor) -> Draft:
        tokens = tuple(self._random.randrange(2, VOCAB) for _ in range(BLOCK))
        sampled = not anchor.sampler.params.greedy
        return Draft(tokens, (uniform(),) * BLOCK if sampled else (), (0.5,) * BLOCK)


def each(**fields: Any) -> Break:
    """Replaces the same fields of every draft."""
    return lambda drafts: [replace(draft, **fields) for draft in drafts]


def raises(drafts: list[Draft]) -> object:
    raise RuntimeError("a drafter that raises")


BREAKS: dict[str, Break] = {
    "raises": raises,
    "none": lambda drafts: None,
    "too few": lambda drafts: drafts[1:],
    "too many": lambda drafts: [*drafts, Draft()],
    "no drafts": lambda drafts: ["draft" for _ in drafts],
    "confidence nan": each(confidence=(NAN,) * BLOCK),
    "confidence inf": each(confidence=(math.inf,) * BLOCK),
    "confidence below 0": each(confidence=(-0.5,) * BLOCK),
    "confidence too short": each(confidence=(0.5,)),
    "confidence too long": each(confidence=(0.5,) * (BLOCK + 2)),
    "tokens too few": each(tokens=(4,)),
    "token beyond the vocabulary": each(tokens=(4, VOCAB, 5)),
    "token below zero": each(tokens=(4, -1, 5)),
}
SAMPLED_BREAKS: dict[str, Break] = {
    "no distributions": each(distributions=()),
    "distribution nan": each(distributions=(torch.full((VOCAB,), NAN),) * BLOCK),
    "distribution inf": each(distributions=(torch.full((VOCAB,), math.inf),) * BLOCK),
    "distribution of another vocabulary": each(distributions=(torch.ones(3) / 3,) * BLOCK),
    "distribution of nothing": each(distributions=(torch.zeros(VOCAB),) * BLOCK),
    "distribution below 0": each(
        distributions=(torch.cat((torch.tensor([-1.0]), torch.ones(VOCAB - 1) * 2 / 63)),) * BLOCK
    ),
}


TREE = TreeShape((-1, -1, 0))
TREE_BREAKS: dict[str, Break] = {
    "tree too small": each(tree=TreeShape((-1, 0))),
    "tree too large": each(tree=TreeShape((-1, 0, 1, 2))),
    "evidence too short": each(tree=TREE, evidence=("a",)),
    "token beyond the vocabulary in a tree": each(tree=TREE, tokens=(4, VOCAB, 5)),
}
BREAKS |= TREE_BREAKS
SAMPLED_BREAKS |= {
    "distribution nan in a tree": each(
        tree=TREE, distributions=(uniform(), torch.full((VOCAB,), NAN), uniform())
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_greedy_answers_stay_those_of_plain_decoding(
    name: str, target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    with Engine(target, context_tokens=128) as plain:
        expected = [plain.generate(prompt, params()).token_ids for prompt in PROMPTS]
    with (
        caplog.at_level(logging.WARNING, "dspark"),
        Engine(target, Broken(BREAKS[name]), context_tokens=128) as engine,
    ):
        generations = [engine.submit(prompt, params()) for prompt in PROMPTS]
        answers = [tuple(t for step in each for t in step.committed) for each in generations]
        failures = engine.metrics.drafter_failures
    assert answers == expected
    assert failures > 0
    assert any("The drafter failed" in message for message in caplog.messages)


@pytest.mark.parametrize("name", [*BREAKS, *SAMPLED_BREAKS])
def test_sampled_answers_come_to_their_end(name: str, target: Target) -> None:
    broken = Broken((BREAKS | SAMPLED_BREAKS)[name])
    with Engine(target, broken, context_tokens=128) as engine:
        result = engine.generate(PROMPTS[0], params(temperature=1.0, seed=3))
        assert len(result.token_ids) == 12
        assert engine.metrics.drafter_failures > 0


def test_a_drafter_that_cannot_take_in_features_costs_nobody_an_answer(target: Target) -> None:
    with Engine(target, context_tokens=128) as plain:
        expected = plain.generate(PROMPTS[0], params()).token_ids
    with Engine(target, Broken(lambda drafts: drafts, taps=(0,)), context_tokens=128) as engine:
        answer = engine.generate(PROMPTS[0], params())
        assert answer.token_ids == expected
        drafted = sum(1 for step in answer.steps if step.draft)
        assert engine.metrics.drafter_failures == drafted > 0


def test_the_log_tells_less_and_less_often_of_what_fails_again_and_again(
    target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "dspark"), Engine(target, Broken(raises)) as engine:
        engine.generate(PROMPTS[0], params())
        failures = engine.metrics.drafter_failures
    told = [message for message in caplog.messages if "The drafter failed" in message]
    assert failures == 10  # of 12 tokens the first has no anchor yet, and the last needs no draft
    assert len(told) == 4  # the 1st, 2nd, 4th and 8th


def test_a_sound_draft_costs_no_failure(target: Target) -> None:
    with Engine(target, Broken(lambda drafts: drafts), context_tokens=128) as engine:
        for temperature in (0.0, 1.0):
            steps = engine.generate(PROMPTS[0], params(temperature=temperature)).steps
            assert any(step.scheduled for step in steps)
        assert engine.metrics.drafter_failures == 0


# --- which part of a draft is sound --------------------------------------------------------------


@given(st.integers(0, BLOCK - 1), st.sampled_from(["token", "confidence", "distribution"]))
def test_the_part_before_the_first_unsound_token_is_kept(place: int, what: str) -> None:
    """Whether a token is verified does not depend on what it has led to."""

    def at(place_: int, sound: Any, unsound: Any) -> Any:
        return unsound if place_ == place else sound

    draft = Draft(
        tuple(at(k, 7, VOCAB) if what == "token" else 7 for k in range(BLOCK)),
        tuple(
            at(k, uniform(), uniform() * NAN) if what == "distribution" else uniform()
            for k in range(BLOCK)
        ),
        tuple(at(k, 0.5, NAN) if what == "confidence" else 0.5 for k in range(BLOCK)),
    )
    kept = sound_part(draft, VOCAB, sampled=True)
    assert len(kept.tokens) == len(kept.confidence) == len(kept.distributions) == place


def test_a_token_that_its_distribution_does_not_have_is_unsound() -> None:
    without = uniform()
    without[7] = 0
    draft = Draft((7,), (without / without.sum(),), (0.5,))
    assert sound_part(draft, VOCAB, sampled=True).tokens == ()


def test_a_sound_draft_is_left_as_it_is() -> None:
    for draft in (Draft(), Draft((7, 8), (), (0.0, 1.0))):
        assert sound_part(draft, VOCAB, sampled=False) is draft
    drawn = Draft((7,), (uniform(),), (0.5,))
    assert sound_part(drawn, VOCAB, sampled=True) is drawn
