"""Weight formats behind one call: a linear layer takes rows and gives rows, however it stores.

A token's result does not depend on how many tokens share the step when the weights are integers.
Products are summed exactly, or each row for itself in one order, and each row has its own
activation scales. With an attention that keeps an order too (`dspark.attention`,
`dspark.compiled.attention`) that holds for the whole network, so verifying drafted tokens gives bit
for bit the logits that decoding them one by one gives. Other float sums are rounded in an
order that depends on the number of rows, so float32 and bfloat16 promise that only nearly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from dspark.errors import InvalidRequest
from dspark.fast_path import compiled_linear, compiles
from dspark.int4 import Int4Linear, has_int4_kernel

Linear = Callable[[Tensor], Tensor]
"""`[rows, in_features] → [rows, out_features]`, in the activations' precision."""

WeightFormat = Literal["float", "int8", "int4"]


@dataclass(frozen=True)
class Precision:
    """How numbers are stored and computed.

    Attributes:
        activations: type of the hidden states, keys and values.
        embedding: type of the embedding table.
        layers: what the layers' linear maps keep; float is the precision of the activations.
        head: what the head keeps.
    """

    activations: torch.dtype
    embedding: torch.dtype
    layers: WeightFormat = "float"
    head: WeightFormat = "float"

    @property
    def of_drafter(self) -> Precision:
        """A drafter's beside a target of this one: not in int4, which no drafter is trained for."""
        return replace(self, layers=self.head)


PRECISIONS = {
    "float32": Precision(torch.float32, torch.float32),
    "bfloat16": Precision(torch.bfloat16, torch.bfloat16),
    "int8": Precision(torch.float32, torch.bfloat16, layers="int8", head="int8"),
    # Int8 takes the head no longer, and a head's errors are the ones that choose other tokens.
    "int4": Precision(torch.float32, torch.bfloat16, layers="int4", head="int8"),
}


def precision_named(dtype: str, device: torch.device) -> Precision:
    """One of `PRECISIONS`, if it can be computed with here.

    Raises:
        InvalidRequest: there is none of that name, or the device, the processor or this build of
            torch cannot compute in it.
    """
    if dtype not in PRECISIONS:
        raise InvalidRequest(f"dtype is {dtype!r}; it must be one of {', '.join(PRECISIONS)}")
    precision = PRECISIONS[dtype]
    if precision.head == "int8" and device.type != "cpu":
        raise InvalidRequest(f"{dtype} is computed on the CPU only; choose bfloat16 on {device}")
    if precision.head == "int8" and not (compiles() or torch._C._has_mkldnn):
        raise InvalidRequest(
            f"numba is not installed, or cannot be used on this processor, and this build of torch "
            f"has no oneDNN; {dtype} needs one of them: choose float32"
        )
    if precision.layers == "int4" and not (compiles() or has_int4_kernel()):
        raise InvalidRequest(
            "numba is not installed, or cannot be used on this processor, and torch multiplies "
            "4-bit weights quickly only on x86 processors with AVX2, and not on Windows: choose "
            "int8"
        )
    return precision


def fastest_dtype(device: str) -> str:
    """The precision that decodes fastest on this device and machine, of those it can compute in.

    `int4` comes first on a CPU: made for models that are in 4 bits already.
    """
    if torch.device(device).type != "cpu":
        return "bfloat16"
    for dtype in ("int4", "int8"):
        try:
            precision_named(dtype, torch.device(device))
        except InvalidRequest:
            continue
        return dtype
    return "float32"


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


# Without the VNNI instructions pairs of products are summed in 16 bits, which 7-bit activations
# cannot overflow.
_LEVELS = 127 if torch.cpu._is_vnni_supported() else 63

_ROWS_IN_CACHE = 256  # quantised at a time, so that what is computed of them stays in the cache


class Int8Linear:
    """Int8 weights with a scale for each output; float32 rows as two int8 digits, a scale each.

    One digit for the activations loses too much where a few channels are far larger than the
    rest, as they are behind every norm of a language model. The second digit is what rounding to
    the first left over. It costs little: both digits are rows of one product, and at the few rows
    of a decoding step the product's time is that of reading the weights.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._scales = torch.empty(len(weight))
        digits = torch.empty(weight.shape, dtype=torch.int8)
        for start in range(0, len(weight), _ROWS_IN_CACHE):
            rows = slice(start, start + _ROWS_IN_CACHE)
            largest = weight[rows].float().abs().amax(1)
            self._scales[rows] = largest.clamp_min_(torch.finfo(torch.float32).tiny) / 127
            digits[rows] = (weight[rows] * self._scales[rows].reciprocal()[:, None]).round_()
        self._packed = torch.ops.onednn.qlinear_prepack(digits, None)
        self._zeros = torch.zeros(len(weight), dtype=torch.int32)
        self._bias = bias
        # oneDNN takes unsigned rows: `_LEVELS + 1` stands for zero. The halves round by truncation.
        self._first_zero = torch.tensor(_LEVELS + 1.5)
        self._second_zero = torch.tensor(_LEVELS + 1.5 - _LEVELS)

    def __call__(self, rows: Tensor) -> Tensor:
        """Multiply each row with the weight and add the bias, if there is one."""
        largest = torch.linalg.vector_norm(rows, torch.inf, -1, keepdim=True).clamp_min_(1e-20)
        first = torch.addcmul(self._first_zero, rows, _LEVELS / largest)
        digits = torch.empty((2, *rows.shape), dtype=torch.uint8)
        digits[0] = first
        rest = first - digits[0]  # 0 … 1, with one half where nothing is left over
        digits[1] = torch.add(self._second_zero, rest, alpha=2 * _LEVELS)
        product = torch.ops.onednn.qlinear_pointwise(
            digits.flatten(0, 1),
            1.0,  # the row's scale comes after, because this is one for all rows
            _LEVELS + 1,
            self._packed,
            self._scales,
            self._zeros,
            None,
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "",
        )
        sums: Tensor = torch.add(*product.chunk(2), alpha=1 / (2 * _LEVELS))
        sums *= largest / _LEVELS
        return sums if self._bias is None else sums + self._bias


def linear(weight: Tensor, bias: Tensor | None, kept_in: WeightFormat) -> Linear:
    """The layer that keeps its weight in a format, if its shape is one that is computed in it.

    Shapes that 4 bits do not take are kept in 8, and those that 8 do not, in float.
    """
    if kept_in == "float":
        return FloatLinear(weight, bias)
    if (compiled := compiled_linear(weight, bias, kept_in)) is not None:
        return compiled
    if kept_in == "int4" and has_int4_kernel() and Int4Linear.fits(weight):
        return Int4Linear(weight, bias)
    if torch._C._has_mkldnn:
        return Int8Linear(weight, bias)
    return FloatLinear(weight.float(), bias)
