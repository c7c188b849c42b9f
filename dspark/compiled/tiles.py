"""Sixteen outputs of a linear layer for a few rows: the innermost loops, spelled out for LLVM.

A weight is unpacked once for all rows of a tile, and lies in memory in the order in which it is
read. However many rows a tile has, each goes through the same operations in the same order.

Layout of a 4-bit tile, for each group of 32 inputs: 256 bytes of codes, sixteen scales and sixteen
offsets in float16. Of byte vector v, lane i holds output i's codes of inputs 4v … 4v+3 in the low
halves of its bytes and those of inputs 16+4v … 16+4v+3 in the high halves.

Layout of an 8-bit tile, for each four inputs: 64 bytes, lane i those of output i, 128 added.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.ir as ir
from numba.core import cgutils, types

from dspark.compiled.dot import BYTES, dot_of, flavour_for, signed_levels
from dspark.compiled.jit import FEATURES
from dspark.compiled.vectors import (
    FLOAT,
    HALF,
    I8,
    I16,
    I32,
    I64,
    LANES,
    Builder,
    constant,
    emitting,
    fused,
    load_vector,
    pointer,
    prefetch,
    splat_value,
    variable,
    vector,
)

GROUP = 32
FINER = 254
"""How many second digits make one first: a first digit leaves at most half of it over."""
INT4_GROUP_BYTES = GROUP * LANES // 2 + 2 * 2 * LANES
FLAVOUR = flavour_for(FEATURES)
LEVELS = signed_levels(FLAVOUR)

_dot = dot_of(FLAVOUR)
_VECTORS = GROUP * LANES // 2 // BYTES


# A core that waits for memory has few requests under way, and the processor's own guesses at what
# comes next stop at every page. Asking this far ahead keeps memory busy all the time: one token
# takes two thirds of what it took. Beyond the last weight the request is for nothing, and harmless.
_AHEAD_BYTES = 5120


def _ask_ahead(builder: Builder, address: Any, size: int) -> None:
    """Begin to fetch what will be read in a while, as much as is read now."""
    prefetch(builder, builder.add(address, ir.Constant(I64, _AHEAD_BYTES)), size)


def _bytes_at(builder: Builder, address: Any, offset: int) -> Any:
    return load_vector(builder, builder.add(address, ir.Constant(I64, offset)), I8, BYTES)


def _four_everywhere(builder: Builder, address: Any, offset: int) -> Any:
    """Four neighbouring bytes in every lane."""
    at = pointer(builder, builder.add(address, ir.Constant(I64, offset)), I32)
    return builder.bitcast(splat_value(builder, builder.load(at, align=1)), vector(I8, BYTES))


def _float_everywhere(builder: Builder, address: Any) -> Any:
    return splat_value(builder, builder.load(pointer(builder, address, FLOAT), align=1))


def _rows(builder: Builder, address: Any, stride: Any, rows: int) -> list[Any]:
    return [builder.add(address, builder.mul(stride, ir.Constant(I64, row))) for row in range(rows)]


def int4_tile(rows: int) -> Callable[..., Any]:
    """`(weights, groups, digits, digit_stride, grids, grid_stride, out, out_stride)`: addresses.

    A row of `digits` is the first digit of each input, and then the second of each. A row of
    `grids` is a scale for each group; then, for each group, the scale times the sum of its
    digits; and then an int32 for each group, 0 if all second digits of all the tile's rows are 0
    there (the first row's is looked at).
    """

    @emitting
    def tile(
        typing: Any, weights: Any, groups: Any, digits: Any, digit_stride: Any, grids: Any,
        grid_stride: Any, out: Any, out_stride: Any,
    ) -> Any:  # fmt: skip
        def emit(context: Any, builder: Builder, _signature: Any, arguments: Any) -> Any:
            weights, groups, digits, digit_stride, grids, grid_stride, out, out_stride = arguments
            digit_rows = _rows(builder, digits, digit_stride, rows)
            grid_rows = _rows(builder, grids, grid_stride, rows)
            sums = [variable(builder, constant(FLOAT, 0.0)) for _ in range(rows)]
            half = ir.Constant(I64, INT4_GROUP_BYTES - 4 * LANES)
            with cgutils.for_range(builder, groups) as loop:
                at = builder.add(
                    weights, builder.mul(loop.index, ir.Constant(I64, INT4_GROUP_BYTES))
                )
                _ask_ahead(builder, at, INT4_GROUP_BYTES)
                packed = [_bytes_at(builder, at, BYTES * index) for index in range(_VECTORS)]
                codes = [builder.and_(each, constant(I8, 15, BYTES)) for each in packed]
                for each in packed:
                    words = builder.lshr(
                        builder.bitcast(each, vector(I16, 2 * LANES)), constant(I16, 4, 2 * LANES)
                    )
                    high = builder.bitcast(words, vector(I8, BYTES))
                    codes.append(builder.and_(high, constant(I8, 15, BYTES)))
                place = builder.add(at, half)
                scale = builder.fpext(load_vector(builder, place, HALF), vector(FLOAT))
                place = builder.add(place, ir.Constant(I64, 2 * LANES))
                offset = builder.fpext(load_vector(builder, place, HALF), vector(FLOAT))
                inputs = builder.mul(loop.index, ir.Constant(I64, GROUP))
                quad = builder.mul(loop.index, ir.Constant(I64, 4))
                column = builder.mul(groups, ir.Constant(I64, 4))  # of the grids, in bytes

                def add_digits(row: int, first_input: Any, finer: float) -> None:
                    x = builder.add(digit_rows[row], first_input)
                    exact = constant(I32, 0)
                    for index, code in enumerate(codes):
                        exact = _dot(builder, exact, code, _four_everywhere(builder, x, 4 * index))
                    step = _float_everywhere(builder, builder.add(grid_rows[row], quad))
                    if finer != 1:
                        step = builder.fmul(step, constant(FLOAT, 1 / finer))
                    number = builder.sitofp(exact, vector(FLOAT))
                    value = fused(
                        builder, number, builder.fmul(scale, step), builder.load(sums[row])
                    )
                    builder.store(value, sums[row])

                for row in range(rows):
                    add_digits(row, inputs, 1)
                    at = builder.add(builder.add(grid_rows[row], quad), column)
                    total = _float_everywhere(builder, at)
                    builder.store(fused(builder, offset, total, builder.load(sums[row])), sums[row])
                at = builder.add(builder.add(grid_rows[0], quad), builder.add(column, column))
                wanted = builder.load(pointer(builder, at, I32), align=1)
                with builder.if_then(builder.icmp_signed("!=", wanted, ir.Constant(I32, 0))):
                    seconds = builder.add(inputs, builder.mul(groups, ir.Constant(I64, GROUP)))
                    for row in range(rows):
                        add_digits(row, seconds, FINER)
            for row, at in enumerate(_rows(builder, out, out_stride, rows)):
                place = pointer(builder, at, vector(FLOAT))
                builder.store(builder.load(sums[row]), place, align=1)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 8), emit

    return tile


def int8_tile(rows: int) -> Callable[..., Any]:
    """`(weights, quads, digits, digit_stride, grids, grid_stride, scales, out, out_stride)`.

    A row of `digits` is the first digit of each input, and then the second of each. A row of
    `grids` is the scales of both, and 128 times the sum of either, as int32.
    """

    @emitting
    def tile(
        typing: Any, weights: Any, quads: Any, digits: Any, digit_stride: Any, grids: Any,
        grid_stride: Any, scales: Any, out: Any, out_stride: Any,
    ) -> Any:  # fmt: skip
        def emit(context: Any, builder: Builder, _signature: Any, arguments: Any) -> Any:
            weights, quads, digits, digit_stride, grids, grid_stride = arguments[:6]
            scales, out, out_stride = arguments[6:]
            digit_rows = _rows(builder, digits, digit_stride, rows)
            second = builder.mul(quads, ir.Constant(I64, 4))
            pairs = [(x, builder.add(x, second)) for x in digit_rows]
            sums = [[variable(builder, constant(I32, 0)) for _ in pair] for pair in pairs]
            with cgutils.for_range(builder, quads) as loop:
                at = builder.add(weights, builder.mul(loop.index, ir.Constant(I64, BYTES)))
                _ask_ahead(builder, at, BYTES)
                weight = _bytes_at(builder, at, 0)
                inputs = builder.mul(loop.index, ir.Constant(I64, 4))
                for pair, both in zip(pairs, sums, strict=True):
                    for x, sum_ in zip(pair, both, strict=True):
                        four = _four_everywhere(builder, builder.add(x, inputs), 0)
                        builder.store(_dot(builder, builder.load(sum_), weight, four), sum_)
            scale = load_vector(builder, scales, FLOAT)
            grid_rows = _rows(builder, grids, grid_stride, rows)
            for row, at in enumerate(_rows(builder, out, out_stride, rows)):
                value = None
                for digit in (1, 0):  # the smaller first
                    grid = builder.add(grid_rows[row], ir.Constant(I64, 4 * digit))
                    zero = pointer(builder, builder.add(grid, ir.Constant(I64, 8)), I32)
                    exact = builder.sub(
                        builder.load(sums[row][digit]),
                        splat_value(builder, builder.load(zero, align=1)),
                    )
                    number = builder.sitofp(exact, vector(FLOAT))
                    step = _float_everywhere(builder, grid)
                    value = (
                        builder.fmul(number, step)
                        if value is None
                        else fused(builder, number, step, value)
                    )
                place = pointer(builder, at, vector(FLOAT))
                builder.store(builder.fmul(value, scale), place, align=1)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 9), emit

    return tile
