"""The processed distribution is the one the settings describe, and draws follow it."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark import InvalidSampling, SamplingParams
from dspark.sampling import distribution, draw, processed_logits

VOCAB = 700  # more than the first look of top-p at the most probable tokens
PROMPT, ANSWER = [3, 3, 9], [9, 20, 20, 21]

finite_settings = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0, 50.0]),
    top_k=st.sampled_from([0, 1, 5, 300, 10_000]),
    top_p=st.sampled_from([0.01, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.9]),
    repetition_penalty=st.sampled_from([0.5, 1.0, 1.3]),
    presence_penalty=st.sampled_from([-1.0, 0.0, 0.7]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-30, 30), max_size=4),
)


def random_logits(seed: int, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * scale


@given(finite_settings, st.integers(0, 1000), st.sampled_from([0.1, 3.0, 20.0]))
@settings(max_examples=200, deadline=None)
def test_a_distribution_sums_to_one_and_keeps_the_most_probable(
    params: SamplingParams, seed: int, scale: float
) -> None:
    logits = random_logits(seed, scale)
    before = logits.clone()
    probabilities = distribution(logits, params, PROMPT, ANSWER)
    assert torch.equal(logits, before), "the logits are not the sampler's to change"
    assert float(probabilities.sum()) == pytest.approx(1, abs=1e-5)
    assert (probabilities >= 0).all()
    best = processed_logits(logits, params, PROMPT, ANSWER).argmax()
    assert probabilities[best] == probabilities.max()
    if params.top_k > 0:
        assert int((probabilities > 0).sum()) <= params.top_k


@given(
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 5, 300]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
    repetition_penalty=st.sampled_from([0.5, 1.0, 1.3]),
    seed=st.integers(0, 100),
)
@settings(max_examples=60, deadline=None)
def test_it_is_the_distribution_of_transformers(
    temperature: float, top_k: int, top_p: float, min_p: float, repetition_penalty: float, seed: int
) -> None:
    processors: Any = pytest.importorskip("transformers.generation.logits_process")
    chain = [
        processors.RepetitionPenaltyLogitsProcessor(repetition_penalty),
        processors.TemperatureLogitsWarper(temperature),
    ]
    if top_k:
        chain.append(processors.TopKLogitsWarper(top_k))
    if top_p < 1:
        chain.append(processors.TopPLogitsWarper(top_p))
    if min_p:
        chain.append(processors.MinPLogitsWarper(min_p))
    scores = random_logits(seed)[None]
    for process in chain:
        scores = process(torch.tensor([PROMPT + ANSWER]), scores)
    params = SamplingParams(temperature, top_k, top_p, min_p, repetition_penalty)
    found = distribution(random_logits(seed), params, PROMPT, ANSWER)
    # Where float sums put the last token of the nucleus on either side, nothing else may differ.
    assert (found - scores.softmax(-1)[0]).abs().sum() < 2e-3


def test_presence_and_frequency_count_the_answer_alone() -> None:
    params = SamplingParams(presence_penalty=0.5, frequency_penalty=0.25)
    moved = processed_logits(torch.zeros(VOCAB), params, PROMPT, ANSWER)
    changed = {int(token): float(moved[token]) for token in moved.nonzero()}
    assert changed == {9: -0.75, 20: -1.0, 21: -0.75}


def test_a_bias_of_minus_infinity_forbids_a_token() -> None:
    logits = random_logits(0)
    params = SamplingParams(logit_bias={int(logits.argmax()): float("-inf")})
    assert distribution(logits, params, [], []).argmax() == logits.topk(2).indices[1]


def test_a_nucleus_wider_than_the_first_look_is_complete() -> None:
    params = SamplingParams(temperature=1.0, top_p=0.8)
    kept = int((distribution(torch.zeros(VOCAB), params, [], []) > 0).sum())
    assert kept == pytest.approx(0.8 * VOCAB, abs=1)


def test_draws_follow_the_weights_and_never_hit_a_zero() -> None:
    weights = torch.tensor([0.0, 2.0, 0.0, 5.0, 3.0, 0.0])
    rng = random.Random(1)
    draws = 20_000
    counts = Counter(draw(weights, rng) for _ in range(draws))
    assert set(counts) == {1, 3, 4}
    expected = {1: 0.2, 3: 0.5, 4: 0.3}
    chi_square = sum((counts[t] - draws * p) ** 2 / (draws * p) for t, p in expected.items())
    assert chi_square < 13.82  # 2 degrees of freedom, p = 0.001


class Extreme(random.Random):
    """A generator that gives the ends of its range."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self._value = value

    def random(self) -> float:
        return self._value


@pytest.mark.parametrize(("point", "token"), [(0.0, 1), (1 - 2**-53, 4)])
def test_the_ends_of_the_range_draw_tokens_with_weight(point: float, token: int) -> None:
    weights = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.7, 0.0])
    assert draw(weights, Extreme(point)) == token


@pytest.mark.parametrize("weights", [[0.0, 0.0], [float("nan"), 1.0]])
def test_nothing_can_be_drawn_from_nothing(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="no token can be drawn"):
        draw(torch.tensor(weights), random.Random(0))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("inf")),
        ("temperature", float("nan")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", 1.0),
        ("min_p", -0.1),
        ("repetition_penalty", 0.0),
        ("presence_penalty", float("nan")),
        ("frequency_penalty", float("inf")),
        ("logit_bias", {3: float("inf")}),
        ("logit_bias", {-3: 1.0}),
        ("max_new_tokens", 0),
    ],
)
def test_a_setting_out_of_range_is_named(setting: str, value: object) -> None:
    with pytest.raises(InvalidSampling, match=f"{setting}.* must be"):
        SamplingParams(**{setting: value})
