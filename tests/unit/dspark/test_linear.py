"""Int8 layers are close to float ones, and blind to how many rows they are given."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark.linear import FloatLinear, Int8Linear

IN, OUT, ROWS = 96, 80, 23


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@given(
    st.integers(0, 100),
    st.lists(st.integers(0, ROWS), max_size=4).map(lambda cuts: sorted({0, *cuts, ROWS})),
    st.sampled_from([1e-6, 1.0, 1e6]),
)
@settings(max_examples=50, deadline=None)
def test_a_rows_result_is_the_same_bits_whatever_rows_are_beside_it(
    seed: int, cuts: list[int], scale: float
) -> None:
    linear = Int8Linear(random(OUT, IN, seed=seed), random(OUT, seed=seed + 1))
    rows = random(ROWS, IN, seed=seed + 2) * scale
    pieces = [linear(rows[a:b]) for a, b in pairwise(cuts)]
    assert torch.equal(torch.cat(pieces), linear(rows))


@pytest.mark.parametrize("outlier", [1.0, 50.0], ids=["even", "one channel far larger"])
def test_the_error_is_that_of_rounding_the_weights(outlier: float) -> None:
    weight, rows, bias = random(OUT, IN), random(ROWS, IN, seed=1), random(OUT, seed=2)
    rows[:, 7] *= outlier
    step = weight.abs().amax(1, keepdim=True) / 127
    rounded = (weight / step).round() * step
    exact = FloatLinear(rounded, bias)(rows)
    levels = 127 * 254  # of two activation digits
    largest_error = rows.abs().amax(1, keepdim=True) / levels * rounded.abs().sum(1)
    assert ((Int8Linear(weight, bias)(rows) - exact).abs() <= largest_error + 1e-4).all()


def test_rows_and_weights_of_zeros_give_zeros() -> None:
    weight = random(OUT, IN)
    weight[3] = 0
    product = Int8Linear(weight)(torch.cat([torch.zeros(1, IN), random(1, IN)]))
    assert (product[0] == 0).all()
    assert product[1, 3] == 0
    assert product[1].isfinite().all()
