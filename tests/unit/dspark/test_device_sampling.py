"""Distributions and draws of many rows are those of `dspark.sampling`, row by row."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark import SamplingParams, device_sampling
from dspark.device_sampling import (
    CANDIDATES,
    Kind,
    distributions,
    draw,
    kind_for,
    on_device,
    settings_row,
)
from dspark.sampling import distribution
from dspark.sampling import draw as draw_one

VOCAB = 40
TOLERANCE = 1e-6

params_on_device = st.builds(
    SamplingParams,
    temperature=st.one_of(st.just(0.0), st.floats(0.2, 3.0)),
    top_k=st.integers(0, VOCAB + 2),
    top_p=st.one_of(st.just(1.0), st.floats(0.05, 0.99)),
    min_p=st.one_of(st.just(0.0), st.floats(0.01, 0.5)),
)


def logits_of(seed: int, rows: int) -> torch.Tensor:
    return 2 * torch.randn((rows, VOCAB), generator=torch.Generator().manual_seed(seed))


def table(params: list[SamplingParams]) -> torch.Tensor:
    return torch.tensor([settings_row(each) for each in params], dtype=torch.float64)


@settings(deadline=None)
@given(st.lists(params_on_device, min_size=1, max_size=5), st.integers(0, 1000))
def test_rows_of_any_settings_are_distributed_as_each_alone(
    params: list[SamplingParams], seed: int
) -> None:
    logits = logits_of(seed, len(params))
    found, cut = distributions(logits, table(params), kind_for(params))
    expected = torch.stack(
        [distribution(row, each, (), ()) for row, each in zip(logits, params, strict=True)]
    )
    assert (found - expected).abs().max() < TOLERANCE
    assert not cut.any()


@settings(deadline=None)
@given(st.integers(0, 1000), st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=6))
def test_the_same_number_draws_the_same_token(seed: int, uniforms: list[float]) -> None:
    weights = logits_of(seed, len(uniforms)).clamp_min(0)
    tokens, drawable = draw(weights, torch.tensor(uniforms, dtype=torch.float64))
    assert drawable.all()
    for row, uniform, token in zip(weights, uniforms, tokens.tolist(), strict=True):
        rng = random.Random()
        rng.random = lambda number=uniform: number  # type: ignore[method-assign]
        assert token == draw_one(row, rng)
        assert row[token] > 0


@pytest.mark.parametrize("weight", [0.0, float("nan"), float("inf")])
def test_what_cannot_be_drawn_from_is_said_to_be_so(weight: float) -> None:
    weights = torch.ones((2, VOCAB))
    weights[1] = weight
    tokens, drawable = draw(weights, torch.tensor([0.5, 0.5], dtype=torch.float64))
    assert drawable.tolist() == [True, False]
    assert all(0 <= token < VOCAB for token in tokens.tolist())


def test_a_nucleus_larger_than_the_candidates_is_cut_and_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_sampling, "CANDIDATES", 8)
    params = [
        SamplingParams(temperature=1, top_p=0.9),
        SamplingParams(temperature=1, top_p=0.05),
        SamplingParams(temperature=1, top_k=8, top_p=0.9),
        SamplingParams(temperature=1),
        SamplingParams(),
    ]
    flat = 0.01 * logits_of(3, len(params))
    found, cut = distributions(flat, table(params), Kind.NARROW)
    assert cut.tolist() == [True, False, False, False, False]
    small_nucleus = int((distribution(flat[1], params[1], (), ()) > 0).sum())
    assert 1 < small_nucleus < 8
    assert (found > 0).sum(-1).tolist() == [8, small_nucleus, 8, VOCAB, 1]
    assert (found.sum(-1) - 1).abs().max() < TOLERANCE


def test_tokens_that_are_ruled_out_have_no_probability() -> None:
    logits = logits_of(5, 2)
    logits[:, 3:] = float("-inf")
    params = [SamplingParams(temperature=1, top_p=0.95), SamplingParams(temperature=1, top_k=7)]
    found, _ = distributions(logits, table(params), Kind.NARROW)
    assert (found[:, 3:] == 0).all()
    assert found.isfinite().all()


@pytest.mark.parametrize(
    ("params", "whether"),
    [
        (SamplingParams(), True),
        (SamplingParams(temperature=1, top_k=CANDIDATES, top_p=0.9, min_p=0.1), True),
        (SamplingParams(temperature=1, top_k=CANDIDATES + 1), False),
        (SamplingParams(top_k=CANDIDATES + 1), True),
        (SamplingParams(repetition_penalty=1.1), False),
        (SamplingParams(presence_penalty=0.1), False),
        (SamplingParams(logit_bias={3: 1.0}), False),
    ],
)
def test_which_requests_are_served_on_the_device(params: SamplingParams, whether: bool) -> None:
    assert on_device(params) is whether


def test_the_kind_serves_every_request() -> None:
    greedy, whole = SamplingParams(), SamplingParams(temperature=1, min_p=0.1)
    narrow = SamplingParams(temperature=1, top_p=0.9)
    assert kind_for([]) is kind_for([greedy, greedy]) is Kind.GREEDY
    assert kind_for([greedy, whole]) is Kind.WHOLE
    assert kind_for([narrow, whole, greedy]) is Kind.NARROW
