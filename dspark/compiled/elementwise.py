"""What happens to rows between the linear layers: norms, rotations, gates."""

from __future__ import annotations

import math

import numpy as np

from dspark.compiled.jit import inlined
from dspark.compiled.vectors import (
    LANES,
    Vector,
    add,
    divide,
    fma,
    largest_of_two,
    load,
    multiply,
    nearest,
    power_of_two,
    splat,
    store,
    subtract,
    total,
)

_BYTES = 4 * LANES
_ZERO, _ONE = np.float32(0), np.float32(1)
_LOG2_E = np.float32(math.log2(math.e))
_MINUS_LN2 = np.float32(-0.693359375)  # to few digits, so that products with it are exact,
_MINUS_LN2_REST = np.float32(2.12194440e-4)  # and the rest of it
_LEAST_EXPONENT = np.float32(-87)
# Of exp(r) = 1 + r + r² · P(r) for |r| ≤ ln(2) / 2: Cephes, expf.
_P = tuple(
    np.float32(coefficient)
    for coefficient in (
        1.9875691500e-4,
        1.3981999507e-3,
        8.3334519073e-3,
        4.1665795894e-2,
        1.6666665459e-1,
        5.0000001201e-1,
    )
)
_P0, _P1, _P2, _P3, _P4, _P5 = _P


@inlined
def exponential(x: Vector) -> Vector:
    """e to the power of each lane, at most 88; what is below -87 counts as -87."""
    x = largest_of_two(x, splat(_LEAST_EXPONENT))
    whole = nearest(multiply(x, splat(_LOG2_E)))
    rest = fma(whole, splat(_MINUS_LN2), x)
    rest = fma(whole, splat(_MINUS_LN2_REST), rest)
    series = fma(splat(_P0), rest, splat(_P1))
    series = fma(series, rest, splat(_P2))
    series = fma(series, rest, splat(_P3))
    series = fma(series, rest, splat(_P4))
    series = fma(series, rest, splat(_P5))
    series = fma(multiply(series, rest), rest, add(rest, splat(_ONE)))
    return multiply(series, power_of_two(whole))


@inlined
def rms_norm(x: int, weight: int, size: int, epsilon: float, out: int) -> None:
    """Scale `size` numbers to a root mean square of one, and each by its weight."""
    squares = splat(_ZERO)
    for at in range(0, 4 * size, _BYTES):
        values = load(x + at)
        squares = fma(values, values, squares)
    mean = total(squares) / np.float32(size)
    scale = splat(_ONE / np.float32(math.sqrt(mean + np.float32(epsilon))))
    for at in range(0, 4 * size, _BYTES):
        store(out + at, multiply(multiply(load(x + at), scale), load(weight + at)))


@inlined
def add_to(x: int, addend: int, size: int) -> None:
    """`x += addend`."""
    for at in range(0, 4 * size, _BYTES):
        store(x + at, add(load(x + at), load(addend + at)))


@inlined
def rotate(head: int, cosines: int, sines: int, size: int) -> None:
    """Rotate a head in place, whose pairs lie half of it apart."""
    half = 2 * size  # in bytes
    for at in range(0, half, _BYTES):
        first, second = load(head + at), load(head + half + at)
        cosine, sine = load(cosines + at), load(sines + at)
        store(head + at, subtract(multiply(first, cosine), multiply(second, sine)))
        store(head + half + at, fma(first, sine, multiply(second, cosine)))


@inlined
def gate(gate_up: int, size: int) -> None:
    """`silu(gate) · up`, in place of the gates; the ups lie behind them."""
    for at in range(0, 4 * size, _BYTES):
        value = load(gate_up + at)
        bounded = largest_of_two(value, splat(_LEAST_EXPONENT))
        away = exponential(subtract(splat(_ZERO), bounded))
        lit = divide(value, add(splat(_ONE), away))
        store(gate_up + at, multiply(lit, load(gate_up + 4 * size + at)))
