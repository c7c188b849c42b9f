"""Layers of integers are close to float ones, and blind to how many rows they are given."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dspark.linear
from dspark import load_target
from dspark.compiled.weights import CompiledLinear
from dspark.errors import InvalidRequest
from dspark.int4 import GROUP, Int4Linear
from dspark.linear import (
    PRECISIONS,
    FloatLinear,
    Int8Linear,
    Linear,
    WeightFormat,
    fastest_dtype,
    linear,
)

IN, OUT, ROWS = 96, 80, 23
CODES = 16  # that four bits can tell apart
BFLOAT16_ERROR = 2**-8  # of a number that is rounded to it, at most


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


KINDS = (Int8Linear, Int4Linear, CompiledLinear.in_int8, CompiledLinear.in_int4)


@given(
    st.sampled_from(KINDS),
    st.integers(0, 100),
    st.lists(st.integers(0, ROWS), max_size=4).map(lambda cuts: sorted({0, *cuts, ROWS})),
    st.sampled_from([1e-6, 1.0, 1e6]),
)
@settings(max_examples=50, deadline=None)
def test_a_rows_result_is_the_same_bits_whatever_rows_are_beside_it(
    kind: Callable[[torch.Tensor, torch.Tensor], Linear], seed: int, cuts: list[int], scale: float
) -> None:
    linear = kind(random(OUT, IN, seed=seed), random(OUT, seed=seed + 1))
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


def weight_of(layer: Int4Linear) -> torch.Tensor:
    """The weight that a layer computes with, rounded to bfloat16."""
    return layer(torch.eye(IN)).T


@pytest.mark.parametrize(
    ("offset", "ends"),
    [(4, (0, 15)), (0, (0,))],
    ids=["Q4_1: from the least to the largest", "Q4_0: around zero"],
)
@given(st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_weights_from_four_bit_blocks_are_found_again(
    offset: int, ends: tuple[int, ...], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(CODES, (OUT, IN // GROUP, GROUP), generator=generator)
    for place, code in enumerate(ends):  # each block's scale comes from a weight at an end
        codes[..., place] = code
    scales = random(OUT, IN // GROUP, 1, seed=seed).abs().add(0.1).bfloat16().float()
    weight = ((codes - 8 + offset) * scales).view(OUT, IN)
    assert torch.equal(weight_of(Int4Linear(weight)), weight.bfloat16().float())


def test_other_weights_are_rounded_to_the_nearest_of_sixteen() -> None:
    weight = random(OUT, IN)
    groups = weight.view(OUT, -1, GROUP)
    step = (groups.amax(-1) - groups.amin(-1)) / (CODES - 1)
    error = (weight_of(Int4Linear(weight)) - weight).abs().view_as(groups)
    largest = step[..., None] / 2 + 2 * groups.abs().amax(-1, keepdim=True) * BFLOAT16_ERROR
    # A group may be nearer to the other grid as a whole than each weight of it is.
    assert (error.square().mean(-1) <= largest.square().squeeze(-1)).all()


def test_four_bits_hold_a_group_of_equal_weights_exactly() -> None:
    weight = random(OUT, IN)
    weight[2, :GROUP] = 0
    weight[3, :GROUP] = -1.5
    found = weight_of(Int4Linear(weight))
    assert torch.equal(found[2:4, :GROUP], weight[2:4, :GROUP])
    assert found.isfinite().all()


def test_four_bit_products_are_those_of_rows_in_bfloat16() -> None:
    weight, rows, bias = random(OUT, IN), random(ROWS, IN, seed=1), random(OUT, seed=2)
    layer = Int4Linear(weight)
    exact = rows.bfloat16().float() @ weight_of(layer).T
    largest = (rows.abs() @ weight_of(layer).abs().T) * 2 * BFLOAT16_ERROR
    assert ((layer(rows) - exact).abs() <= largest).all()
    assert torch.equal(Int4Linear(weight, bias)(rows), layer(rows) + bias)


@pytest.mark.parametrize("shape", [(OUT, IN - 8), (OUT - 8, IN)])
def test_shapes_that_four_bits_do_not_take_get_eight(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dspark.fast_path.compiles", lambda: False)
    assert isinstance(linear(random(OUT, IN), None, "int4"), Int4Linear)
    assert isinstance(linear(random(*shape), None, "int4"), Int8Linear)


@pytest.mark.parametrize("kept_in", ["int4", "int8"])
def test_layers_are_compiled_where_they_can_be(
    kept_in: WeightFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dspark.fast_path.compiles", lambda: True)
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    assert isinstance(linear(random(OUT, IN), None, kept_in), CompiledLinear)
    assert isinstance(linear(random(OUT - 8, IN), None, kept_in), Int8Linear)


def test_several_threads_are_left_to_torch_where_it_can_use_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dspark.fast_path.compiles", lambda: True)
    monkeypatch.setattr("torch.get_num_threads", lambda: 4)
    monkeypatch.setattr("dspark.fast_path.has_int4_kernel", lambda: True)
    assert isinstance(linear(random(OUT, IN), None, "int8"), Int8Linear)
    monkeypatch.setattr("dspark.fast_path.has_int4_kernel", lambda: False)
    assert isinstance(linear(random(OUT, IN), None, "int4"), CompiledLinear)


def test_where_nothing_multiplies_four_bits_another_precision_is_named(
    monkeypatch: pytest.MonkeyPatch, tiny_folder: Path
) -> None:
    monkeypatch.setattr(dspark.linear, "has_int4_kernel", lambda: False)
    monkeypatch.setattr(dspark.linear, "compiles", lambda: False)
    with pytest.raises(InvalidRequest, match="choose int8"):
        load_target(tiny_folder, dtype="int4")


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_a_drafter_is_computed_like_its_target_but_never_in_four_bits(dtype: str) -> None:
    expected = "int8" if dtype == "int4" else dtype
    assert PRECISIONS[dtype].of_drafter == PRECISIONS[expected]


def test_the_fastest_dtype_is_one_that_can_be_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fastest_dtype("cuda") == "bfloat16"
    monkeypatch.setattr("dspark.linear.compiles", lambda: True)
    assert fastest_dtype("cpu") == "int4"
    monkeypatch.setattr("dspark.linear.compiles", lambda: False)
    monkeypatch.setattr("dspark.linear.has_int4_kernel", lambda: True)
    assert fastest_dtype("cpu") == "int4"
    monkeypatch.setattr("dspark.linear.has_int4_kernel", lambda: False)
    assert fastest_dtype("cpu") == "int8"
    monkeypatch.setattr("torch._C._has_mkldnn", False)
    assert fastest_dtype("cpu") == "float32"
