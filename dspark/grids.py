"""The four-bit grids of weights: sixteen numbers for each group of 32, a scale apart."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

CODES = 15
"""The largest code."""


class Quantised(NamedTuple):
    """Weights on grids: each is code · scale + offset.

    Attributes:
        codes: `[outputs, groups, group]` uint8.
        scales: `[outputs, groups]`, of the type that they are kept in.
        offsets: the same.
    """

    codes: Tensor
    scales: Tensor
    offsets: Tensor


def quantised(groups: Tensor, kept_in: torch.dtype, zero: int = 0) -> Quantised:
    """The nearest weights on the better of two grids.

    One spreads the codes from the least weight of a group to its largest, as Q4_1 does. The other
    has a code for zero, and its first one is the weight that is farthest from that, as in Q4_0.

    Args:
        groups: `[outputs, groups, group]` float32.
        kept_in: what scales and offsets are rounded to.
        zero: the code that stands for the offset alone.
    """
    least, largest = torch.aminmax(groups, dim=-1, keepdim=True)
    spread = (largest - least) / CODES
    farthest = torch.where(-least > largest, least, largest)
    one = _on_grid(groups, spread, least + zero * spread, kept_in, zero)
    step = (farthest / -8).to(kept_in).float()
    other = _on_grid(groups, step, (zero - 8) * step, kept_in, zero)
    better = other[-1] < one[-1]
    codes, scales, offsets = (
        torch.where(better, theirs, ours) for ours, theirs in zip(one[:-1], other[:-1], strict=True)
    )
    return Quantised(codes.byte(), scales.squeeze(-1).to(kept_in), offsets.squeeze(-1).to(kept_in))


def _on_grid(
    groups: Tensor, scale: Tensor, offset: Tensor, kept_in: torch.dtype, zero: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Codes of the nearest weights, the grid as it will be kept, and each group's squared error."""
    scale, offset = scale.to(kept_in).float(), offset.to(kept_in).float()
    steps = (groups - offset) / scale.masked_fill(scale == 0, 1)
    codes = steps.round().add_(zero).clamp_(0, CODES)
    rest = torch.addcmul(offset - groups, codes - zero, scale)
    return codes, scale, offset, torch.linalg.vector_norm(rest, dim=-1, keepdim=True)
