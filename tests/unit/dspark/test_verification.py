"""Speculative decoding draws from the target's distribution, whatever the drafter proposes."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from math import prod

import pytest
import torch

from dspark import SamplingParams
from dspark.drafters import Draft
from dspark.sampling import Sampler
from dspark.verification import verify

VOCAB = 4
LENGTH = 3  # tokens of each answer that are looked at
BLOCK = 2
PROMPT = (0, 2)
ANSWERS = 4000
Tokens = tuple[int, ...]

SETTINGS = {
    "temperature 1": SamplingParams(temperature=1.0),
    "temperature 0.6": SamplingParams(temperature=0.6),
    "top-k": SamplingParams(temperature=1.3, top_k=2),
    "top-p": SamplingParams(temperature=1.0, top_p=0.8),
    "min-p": SamplingParams(temperature=1.0, min_p=0.4),
    "penalties": SamplingParams(
        temperature=1.0, repetition_penalty=1.5, presence_penalty=0.4, frequency_penalty=0.3
    ),
    "bias": SamplingParams(temperature=1.0, logit_bias={1: 1.0, 3: float("-inf")}),
}

# The 99.9 % quantile of chi-square by degrees of freedom, after Wilson and Hilferty.
QUANTILE = 3.09


def critical_value(degrees: int) -> float:
    spread = 2 / (9 * degrees)
    return degrees * (1 - spread + QUANTILE * spread**0.5) ** 3


def model(seed: int) -> Callable[[Sequence[int]], torch.Tensor]:
    """Logits that depend on all the tokens so far, arbitrarily."""

    @cache
    def logits(answer: Tokens) -> torch.Tensor:
        place = sum((token + 1) * (VOCAB + 1) ** index for index, token in enumerate(answer))
        generator = torch.Generator().manual_seed(1000 * seed + place)
        return 1.2 * torch.randn(VOCAB, generator=generator)

    return lambda answer: logits(tuple(answer))


TARGET, DRAFTER = model(1), model(2)


def exact(params: SamplingParams) -> dict[Tokens, float]:
    """The probability of each answer of `LENGTH` tokens."""

    def probability(answer: Tokens) -> float:
        steps = []
        for length in range(LENGTH):
            sampler = Sampler(params, PROMPT, list(answer[:length]), random.Random(0))
            steps.append(float(sampler.distribution(TARGET(answer[:length]))[answer[length]]))
        return prod(steps)

    answers = itertools.product(range(VOCAB), repeat=LENGTH)
    return {answer: p for answer in answers if (p := probability(answer)) > 0}


def speculate(params: SamplingParams, rng: random.Random) -> Tokens:
    """One answer by draft and verification, as the engine goes about it."""
    answer: list[int] = []
    sampler = Sampler(params, PROMPT, answer, rng)
    while len(answer) < LENGTH:
        tokens: list[int] = []
        distributions: list[torch.Tensor] = []
        for _ in range(BLOCK):
            choice = sampler.choose(DRAFTER([*answer, *tokens]), tokens)
            assert choice.distribution is not None
            tokens.append(choice.token)
            distributions.append(choice.distribution)
        logits = torch.stack([TARGET([*answer, *tokens[:k]]) for k in range(BLOCK + 1)])
        verdict = verify(logits, Draft(tuple(tokens), tuple(distributions)), sampler)
        answer += [*tokens[: verdict.accepted], verdict.token]
    return tuple(answer[:LENGTH])


def chi_square(counts: Counter[Tokens], probabilities: dict[Tokens, float]) -> tuple[float, int]:
    """The statistic and its degrees of freedom, rare answers taken together."""
    total = counts.total()
    common = [answer for answer, p in probabilities.items() if p * total >= 5]
    cells = [(counts[answer], probabilities[answer]) for answer in common]
    rare = 1 - sum(p for _, p in cells)
    if rare * total >= 5:
        cells.append((total - sum(count for count, _ in cells), rare))
    statistic = sum((count - total * p) ** 2 / (total * p) for count, p in cells)
    return statistic, len(cells) - 1


@pytest.mark.parametrize("name", SETTINGS)
def test_answers_are_distributed_as_the_targets_own(name: str) -> None:
    params = SETTINGS[name]
    probabilities = exact(params)
    rng = random.Random(9)
    counts = Counter(speculate(params, rng) for _ in range(ANSWERS))
    assert set(counts) <= set(probabilities), "an answer that the target never gives"
    statistic, degrees = chi_square(counts, probabilities)
    assert statistic < critical_value(degrees)


def test_the_drafter_is_far_enough_from_the_target_to_matter() -> None:
    params = SETTINGS["temperature 1"]
    rng = random.Random(9)
    sampler = Sampler(params, PROMPT, [], rng)

    def drafted_only() -> Tokens:
        answer: list[int] = []
        for _ in range(LENGTH):
            answer.append(sampler.choose(DRAFTER(answer)).token)
        return tuple(answer)

    counts = Counter(drafted_only() for _ in range(ANSWERS))
    statistic, degrees = chi_square(counts, exact(params))
    assert statistic > 10 * critical_value(degrees)


@pytest.mark.parametrize("right", range(BLOCK + 1))
def test_a_greedy_draft_stands_as_far_as_it_is_right(right: int) -> None:
    sampler = Sampler(SamplingParams(), PROMPT, [], random.Random(0))
    best: list[int] = []
    for _ in range(BLOCK + 1):
        best.append(int(TARGET(best).argmax()))
    tokens = best[:BLOCK]
    if right < BLOCK:
        tokens[right] = (tokens[right] + 1) % VOCAB
    logits = torch.stack([TARGET(tokens[:k]) for k in range(BLOCK + 1)])
    verdict = verify(logits, Draft(tuple(tokens)), sampler)
    assert verdict == (right, best[right])


def test_only_scheduled_tokens_are_judged() -> None:
    sampler = Sampler(SamplingParams(), PROMPT, [], random.Random(0))
    best = int(TARGET([]).argmax())
    draft = Draft((best, best, best))
    logits = torch.stack([TARGET([]), TARGET([best])])
    assert verify(logits, draft, sampler) == (1, int(TARGET([best]).argmax()))
    assert verify(logits[:1], draft, sampler) == (0, best)


def test_equal_distributions_accept_everything() -> None:
    params = SETTINGS["temperature 1"]
    rng = random.Random(3)
    sampler = Sampler(params, PROMPT, [], rng)
    for _ in range(300):
        choice = sampler.choose(TARGET([]))
        assert choice.distribution is not None
        logits = torch.stack([TARGET([]), TARGET([choice.token])])
        verdict = verify(logits, Draft((choice.token,), (choice.distribution,)), sampler)
        assert verdict.accepted == 1
