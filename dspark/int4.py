"""4-bit weights in the groups that GGUF files hold them in, multiplied as they are."""

from __future__ import annotations

import sys

import torch
from torch import Tensor

GROUP = 32
"""How many neighbouring weights of an output share a scale and an offset, as in GGUF's blocks."""

_OUTPUTS = 16  # torch's kernel takes whole multiples of them
_CODES = 15  # the largest code; 8 stands for the offset alone
_ROWS_IN_CACHE = 256  # quantised at a time, so that what is computed of them stays in the cache


def has_int4_kernel() -> bool:
    """Whether torch multiplies 4-bit weights in vector instructions on this machine.

    Where it does not, it has a plain loop that takes fifty times as long.
    """
    vectors = torch.backends.cpu.get_cpu_capability().startswith("AVX")
    return hasattr(torch, "_weight_int4pack_mm_for_cpu") and vectors and sys.platform != "win32"


class Int4Linear:
    """A 4-bit code for each weight, a scale and an offset for each group; rows in bfloat16.

    Weights that come from GGUF's Q4_0 or Q4_1 blocks lie on such a grid already: their codes are
    found again, and nothing is rounded but the grid, to bfloat16. The kernel sums each row for
    itself, in float32, in one order whatever rows are beside it.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        packed, grids = [], []
        for start in range(0, len(weight), _ROWS_IN_CACHE):
            rows = weight[start : start + _ROWS_IN_CACHE].float()
            codes, grid = _quantised(rows.view(len(rows), -1, GROUP))
            packed.append(torch._convert_weight_to_int4pack_for_cpu(codes.flatten(1), 1))
            grids.append(grid)
        self._packed = torch.cat(packed)
        self._grid = torch.cat(grids).transpose(0, 1).contiguous()
        self._bias = bias

    @staticmethod
    def fits(weight: Tensor) -> bool:
        """Whether `[out_features, in_features]` are numbers that the kernel takes."""
        return weight.shape[0] % _OUTPUTS == 0 and weight.shape[1] % GROUP == 0

    def __call__(self, rows: Tensor) -> Tensor:
        """Multiply each row with the weight and add the bias, if there is one."""
        product = torch._weight_int4pack_mm_for_cpu(
            rows.bfloat16(), self._packed, GROUP, self._grid
        ).to(rows.dtype)
        return product if self._bias is None else product + self._bias


def _quantised(groups: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest weights on the better of two grids.

    One spreads the codes from the least weight of a group to its largest, as Q4_1 does. The other
    has a code for zero, and its first one is the weight that is farthest from that, as in Q4_0.

    Args:
        groups: `[outputs, groups, GROUP]` float32.

    Returns:
        Codes, as `groups`, int32, and `[outputs, groups, 2]`: scale and offset, bfloat16.
    """
    least, largest = torch.aminmax(groups, dim=-1, keepdim=True)
    spread = (largest - least) / _CODES
    farthest = torch.where(-least > largest, least, largest)
    codes, grid, error = _on_grid(groups, spread, least + 8 * spread)
    other_codes, other_grid, other_error = _on_grid(
        groups, farthest / -8, torch.zeros_like(farthest)
    )
    better = other_error < error
    codes = torch.where(better, other_codes, codes)
    return codes.int(), torch.where(better, other_grid, grid).bfloat16()


def _on_grid(groups: Tensor, scale: Tensor, offset: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes of the nearest weights, the grid as it will be kept, and each group's squared error."""
    grid = torch.cat((scale, offset), -1).bfloat16().float()
    scale, offset = grid.chunk(2, -1)
    steps = (groups - offset) / scale.masked_fill(scale == 0, 1)
    codes = steps.round().add_(8).clamp_(0, _CODES)
    rest = torch.addcmul(offset - groups, codes - 8, scale)
    return codes, grid, torch.linalg.vector_norm(rest, dim=-1, keepdim=True)
