"""Linear layers that compiled code multiplies with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dspark.compiled.layers import Linear, multiply_rows
from dspark.compiled.packing import packed_int4, packed_int8
from dspark.compiled.tiles import GROUP
from dspark.compiled.vectors import LANES
from dspark.grids import quantised
from dspark.memory import joined

_ROWS_IN_CACHE = 256  # quantised at a time, so that what is computed of them stays in the cache


class CompiledLinear:
    """A weight in 4-bit or 8-bit tiles; see `Linear`.

    Attributes:
        weights: `[1, bytes]` uint8 (see `dspark.compiled.tiles`).
        scales: `[1, out_features]` float32 for 8 bits, `[1, 0]` for 4.
        biases: `[1, out_features]` float32, `[1, 0]` for none.
    """

    def __init__(
        self, weights: Tensor, scales: Tensor | None, bias: Tensor | None, out: int
    ) -> None:
        none = torch.empty(0)
        self.weights = weights[None]
        self.scales = (none if scales is None else scales)[None]
        self.biases = (none if bias is None else bias.float())[None]
        self._out_features = out

    @property
    def out_features(self) -> int:
        """How many numbers a row becomes."""
        return self._out_features

    @classmethod
    def in_int4(cls, weight: Tensor, bias: Tensor | None = None) -> CompiledLinear:
        """Rounded to 4 bits, or found again if it was in 4-bit blocks of 32 before."""
        packed = []
        for start in range(0, len(weight), _ROWS_IN_CACHE):
            rows = weight[start : start + _ROWS_IN_CACHE].float()
            found = quantised(rows.view(len(rows), -1, GROUP), torch.float16)
            packed.append(packed_int4(found.codes.flatten(1), found.scales, found.offsets))
        return cls(joined(packed), None, bias, len(weight))

    @classmethod
    def in_int8(cls, weight: Tensor, bias: Tensor | None = None) -> CompiledLinear:
        """Rounded to 8 bits, with a scale for each output."""
        packed, scales = [], []
        for start in range(0, len(weight), _ROWS_IN_CACHE):
            rows = weight[start : start + _ROWS_IN_CACHE].float()
            scale = rows.abs().amax(1).clamp_min_(torch.finfo(torch.float32).tiny) / 127
            packed.append(packed_int8((rows * scale.reciprocal()[:, None]).round_().char()))
            scales.append(scale)
        return cls(joined(packed), torch.cat(scales), bias, len(weight))

    @staticmethod
    def fits(weight: Tensor) -> bool:
        """Whether `[out_features, in_features]` are whole tiles."""
        return weight.shape[0] % LANES == 0 and weight.shape[1] % GROUP == 0

    def __call__(self, rows: Tensor) -> Tensor:
        """`[rows, in_features] → [rows, out_features]`, float32."""
        out = torch.empty(len(rows), self._out_features)
        multiply_rows(
            rows.contiguous().numpy(),
            self.weights.numpy(),
            self.scales.numpy(),
            self.biases.numpy(),
            out.numpy(),
        )
        return out


def stacked(linears: Sequence[CompiledLinear]) -> Linear:
    """The weights, scales and biases of several layers, each as one array `[layers, …]`.

    The layers keep no copies: they are made to look into these arrays.
    """
    arrays = []
    for name in ("weights", "scales", "biases"):
        whole = joined([getattr(linear, name) for linear in linears])
        for index, linear in enumerate(linears):
            setattr(linear, name, whole[index : index + 1])
        arrays.append(whole.numpy())
    weights, scales, biases = arrays
    return weights, scales, biases
