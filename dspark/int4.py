"""4-bit weights in the groups that GGUF files hold them in, multiplied by torch as they are."""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from dspark.grids import quantised

GROUP = 32
"""How many neighbouring weights of an output share a scale and an offset, as in GGUF's blocks."""

_OUTPUTS = 16  # torch's kernel takes whole multiples of them
_ROWS_IN_CACHE = 256  # quantised at a time, so that what is computed of them stays in the cache
_ZERO = 8  # the code that torch's kernel takes for the offset alone


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
            found = quantised(rows.view(len(rows), -1, GROUP), torch.bfloat16, _ZERO)
            codes = found.codes.flatten(1).int()
            packed.append(torch._convert_weight_to_int4pack_for_cpu(codes, 1))
            grids.append(torch.stack((found.scales, found.offsets), -1))
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
