"""Weight formats behind one call: a linear layer takes rows and gives rows, however it stores."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Linear(Protocol):
    """`[rows, in_features] → [rows, out_features]`."""

    def __call__(self, rows: Tensor) -> Tensor:
        """Multiply each row with the weight and add the bias, if there is one."""
        ...

    def outputs(self, start: int, stop: int) -> Linear:
        """The layer that computes only output features `start … stop-1`, sharing the weight."""
        ...


class FloatLinear:
    """Weights in the precision of the activations.

    Attributes:
        weight: `[out_features, in_features]`.
        bias: `[out_features]` or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, rows: Tensor) -> Tensor:
        """Multiply each row with the weight and add the bias, if there is one."""
        return torch.nn.functional.linear(rows, self.weight, self.bias)

    def outputs(self, start: int, stop: int) -> FloatLinear:
        """The layer that computes only output features `start … stop-1`, sharing the weight."""
        bias = None if self.bias is None else self.bias[start:stop]
        return FloatLinear(self.weight[start:stop], bias)
