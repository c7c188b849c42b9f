"""The norm is torch's, and each row's its own."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from dspark.norm import RmsNorm

CHANNELS, ROWS = 80, 9
EPSILON = 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_it_computes_what_torch_computes(size: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = (size * torch.randn(ROWS, CHANNELS, generator=generator)).to(dtype)
    weight = torch.randn(CHANNELS, generator=generator).to(dtype)
    expected = functional.rms_norm(rows, (CHANNELS,), weight, EPSILON)
    torch.testing.assert_close(RmsNorm(weight, EPSILON)(rows), expected)


def test_rows_of_zeros_stay_zeros() -> None:
    assert (RmsNorm(torch.ones(CHANNELS), EPSILON)(torch.zeros(2, CHANNELS)) == 0).all()


def test_a_rows_result_is_the_same_bits_whatever_rows_are_beside_it() -> None:
    rows = torch.randn(ROWS, CHANNELS, generator=torch.Generator().manual_seed(1))
    norm = RmsNorm(torch.linspace(-1, 2, CHANNELS), EPSILON)
    assert torch.equal(torch.cat([norm(rows[i : i + 1]) for i in range(ROWS)]), norm(rows))
