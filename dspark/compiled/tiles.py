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
from dspark.compiled.processor import FEATURES
from dspark.compiled.vectors import (
    FLOAT,
    HALF,
    I8,
    I16,
    I32,
    I64,
    LANES,
    LINE,
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


def ask_ahead(builder: Builder, address: Any, line: int, lines: int) -> None:
    """Begin to fetch some of the lines that will be read in a while, as here some are read now."""
    prefetch(
        builder, builder.add(address, ir.Constant(I64, _AHEAD_BYTES + LINE * line)), LINE * lines
    )


def _bytes_at(builder: Builder, address: Any, offset: int) -> Any:
    return load_vector(builder, builder.add(address, ir.Constant(I64, offset)), I8, BYTES)


def _four_everywhere(builder: Builder, address: Any, offset: int) -> Any:
    """Four neighbouring bytes in every lane."""
    at = pointer(builder, builder.add(address, ir.Constant(I64, offset)), I32)
    return builder.bitcast(splat_value(builder, builder.load(at, align=1)), vector(I8, BYTES))


def float_everywhere(builder: Builder, address: Any) -> Any:
    """The number at an address in every lane."""
    return splat_value(builder, builder.load(pointer(builder, address, FLOAT), align=1))


def rows_from(builder: Builder, address: Any, stride: Any, rows: int) -> list[Any]:
    """The addresses of so many rows, `stride` bytes apart."""
    return [builder.add(address, builder.mul(stride, ir.Constant(I64, row))) for row in range(rows)]


def codes_of(builder: Builder, address: Any) -> list[Any]:
    """The codes of a 4-bit group, in the order of its inputs, four to a vector (see above)."""
    packed = [_bytes_at(builder, address, BYTES * index) for index in range(_VECTORS)]
    low = constant(I8, 15, BYTES)
    words = [builder.bitcast(each, vector(I16, 2 * LANES)) for each in packed]
    shifted = [builder.lshr(each, constant(I16, 4, 2 * LANES)) for each in words]
    halves = [*packed, *(builder.bitcast(each, vector(I8, BYTES)) for each in shifted)]
    return [builder.and_(each, low) for each in halves]


def scale_and_offset(builder: Builder, address: Any) -> tuple[Any, Any]:
    """Those of a 4-bit group, for each output."""
    scales = builder.add(address, ir.Constant(I64, INT4_GROUP_BYTES - 4 * LANES))
    offsets = builder.add(scales, ir.Constant(I64, 2 * LANES))
    scale, offset = (load_vector(builder, each, HALF) for each in (scales, offsets))
    return builder.fpext(scale, vector(FLOAT)), builder.fpext(offset, vector(FLOAT))


def add_group(
    builder: Builder,
    sums: list[Any],
    scale: Any,
    offset: Any,
    grids: list[Any],
    column: Any,
    firsts: Callable[[int], Any],
    seconds: Callable[[int], Any],
) -> None:
    """Add to each row's sums what a group is worth.

    Args:
        builder: where the code goes.
        sums: variables, one a row.
        scale: the group's, for each output.
        offset: likewise.
        grids: where in each row's grids the group's scale lies (see `int4_tile`).
        column: bytes from there to its sum, and from there to its mark.
        firsts: a row's exact sums of codes times first digits.
        seconds: of second digits; asked for only where there are any.
    """
    numbers = [
        variable(builder, builder.sitofp(firsts(row), vector(FLOAT))) for row in range(len(sums))
    ]
    mark = pointer(builder, builder.add(builder.add(grids[0], column), column), I32)
    wanted = builder.icmp_signed("!=", builder.load(mark, align=1), ir.Constant(I32, 0))
    with builder.if_then(wanted):
        for row, number in enumerate(numbers):
            finer = builder.sitofp(seconds(row), vector(FLOAT))
            whole = fused(builder, finer, constant(FLOAT, 1 / FINER), builder.load(number))
            builder.store(whole, number)
    for number, grid, sum_ in zip(numbers, grids, sums, strict=True):
        step = builder.fmul(scale, float_everywhere(builder, grid))
        value = fused(builder, builder.load(number), step, builder.load(sum_))
        total = float_everywhere(builder, builder.add(grid, column))
        builder.store(fused(builder, offset, total, value), sum_)


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
            digit_rows = rows_from(builder, digits, digit_stride, rows)
            grid_rows = rows_from(builder, grids, grid_stride, rows)
            sums = [variable(builder, constant(FLOAT, 0.0)) for _ in range(rows)]
            with cgutils.for_range(builder, groups) as loop:
                at = builder.add(
                    weights, builder.mul(loop.index, ir.Constant(I64, INT4_GROUP_BYTES))
                )
                ask_ahead(builder, at, 0, INT4_GROUP_BYTES // LINE)
                codes = codes_of(builder, at)
                scale, offset = scale_and_offset(builder, at)
                inputs = builder.mul(loop.index, ir.Constant(I64, GROUP))
                quad = builder.mul(loop.index, ir.Constant(I64, 4))
                column = builder.mul(groups, ir.Constant(I64, 4))  # of the grids, in bytes

                seconds = builder.add(inputs, builder.mul(groups, ir.Constant(I64, GROUP)))

                def products(row: int, first_input: Any) -> Any:
                    x = builder.add(digit_rows[row], first_input)
                    exact = constant(I32, 0)
                    for index, code in enumerate(codes):
                        exact = _dot(builder, exact, code, _four_everywhere(builder, x, 4 * index))
                    return exact

                add_group(
                    builder,
                    sums,
                    scale,
                    offset,
                    [builder.add(each, quad) for each in grid_rows],
                    column,
                    lambda row: products(row, inputs),
                    lambda row: products(row, seconds),
                )
            for row, at in enumerate(rows_from(builder, out, out_stride, rows)):
                place = pointer(builder, at, vector(FLOAT))
                builder.store(builder.load(sums[row]), place, align=1)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 8), emit

    return tile


def store_int8_outputs(builder: Builder, sums: list[Any], grid: Any, scales: Any, to: Any) -> None:
    """Write what a row's exact sums, of first and of second digits, are worth.

    Args:
        builder: where the code goes.
        sums: of codes times digits.
        grid: address of the row's grids (see `int8_tile`).
        scales: address of the sixteen outputs' scales.
        to: address.
    """
    value = None
    for digit in (1, 0):  # the smaller first
        at = builder.add(grid, ir.Constant(I64, 4 * digit))
        zero = pointer(builder, builder.add(at, ir.Constant(I64, 8)), I32)
        exact = builder.sub(sums[digit], splat_value(builder, builder.load(zero, align=1)))
        number = builder.sitofp(exact, vector(FLOAT))
        step = float_everywhere(builder, at)
        value = builder.fmul(number, step) if value is None else fused(builder, number, step, value)
    scaled = builder.fmul(value, load_vector(builder, scales, FLOAT))
    builder.store(scaled, pointer(builder, to, vector(FLOAT)), align=1)


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
            digit_rows = rows_from(builder, digits, digit_stride, rows)
            second = builder.mul(quads, ir.Constant(I64, 4))
            pairs = [(x, builder.add(x, second)) for x in digit_rows]
            sums = [[variable(builder, constant(I32, 0)) for _ in pair] for pair in pairs]
            with cgutils.for_range(builder, quads) as loop:
                at = builder.add(weights, builder.mul(loop.index, ir.Constant(I64, BYTES)))
                ask_ahead(builder, at, 0, 1)
                weight = _bytes_at(builder, at, 0)
                inputs = builder.mul(loop.index, ir.Constant(I64, 4))
                for pair, both in zip(pairs, sums, strict=True):
                    for x, sum_ in zip(pair, both, strict=True):
                        four = _four_everywhere(builder, builder.add(x, inputs), 0)
                        builder.store(_dot(builder, builder.load(sum_), weight, four), sum_)
            grid_rows = rows_from(builder, grids, grid_stride, rows)
            outs = rows_from(builder, out, out_stride, rows)
            for both, grid, to in zip(sums, grid_rows, outs, strict=True):
                store_int8_outputs(builder, [builder.load(each) for each in both], grid, scales, to)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 9), emit

    return tile
