"""Root-mean-square norm, in the operations that take least time where it is used."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional


class RmsNorm:
    """Scales each row to a root mean square of one, and then each channel by its weight.

    Attributes:
        weight: `[channels]`.
        epsilon: is added to the mean square.
    """

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        self.weight = weight
        self.epsilon = epsilon
        # In float32 on a CPU torch's own takes half as long again as what it amounts to:
        # x · weight · sqrt(channels) / sqrt(|x|² + channels · epsilon).
        self._spelt_out = weight.device.type == "cpu" and weight.dtype == torch.float32
        self._scaled = weight * math.sqrt(len(weight))
        self._floor = torch.tensor(math.sqrt(len(weight) * epsilon))

    def __call__(self, rows: Tensor) -> Tensor:
        """`[rows, channels]` → the same."""
        if not self._spelt_out:
            return functional.rms_norm(rows, self.weight.shape, self.weight, self.epsilon)
        length = torch.hypot(torch.linalg.vector_norm(rows, 2, -1, keepdim=True), self._floor)
        return rows * self._scaled / length
