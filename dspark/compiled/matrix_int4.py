"""4-bit layers for a few rows, by the matrix unit.

The unit sums products of 64 inputs, but every group of 32 has scales of its own. So it is given
two groups at a time and twice as many rows, each with zeros in the place of one of the groups:

    row 0 of the first group     digits | zeros
    row 1 of the first group     digits | zeros
    row 0 of the second group    zeros  | digits
    row 1 of the second group    zeros  | digits

A row's first digits and its second digits are rows of their own. What comes out are the integers
that the other tiles (`dspark.compiled.tiles`) sum, and what is done with them here is done there,
in the same order: a row has the same bits either way.

A group goes through three loops, not one after the other through all of one: the unit waits for
what was just written, and in a loop of its own nothing was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.ir as ir
import numpy as np
from numba.core import cgutils, types

from dspark.compiled.dot import BYTES
from dspark.compiled.jit import inlined
from dspark.compiled.matrix_unit import (
    CONFIG_BYTES,
    SIGNED,
    SUMS,
    UNSIGNED,
    add_products,
    clear_tile,
    configure,
    load_tile,
    release,
    store_tile,
)
from dspark.compiled.processor import MATRIX_UNIT
from dspark.compiled.tiles import (
    GROUP,
    INT4_GROUP_BYTES,
    add_group,
    ask_ahead,
    codes_of,
    rows_from,
    scale_and_offset,
)
from dspark.compiled.vectors import (
    FLOAT,
    I8,
    I32,
    I64,
    LANES,
    LINE,
    Builder,
    constant,
    emitting,
    load,
    load_vector,
    pointer,
    splat,
    store,
    variable,
    vector,
)

MOST_ROWS = 4
"""Two digits of two groups of so many rows are all that a tile holds."""

_FEWEST_ROWS = 3
_BLOCK_GROUPS = 18
"""So many groups' codes and sums lie in the first-level cache together."""

_CODES_BYTES = GROUP * LANES
_SUMS_BYTES = MOST_ROWS * 2 * 4 * LANES  # of a group
_VALUES_BYTES = 4 * LANES  # of a row
_WORK_BYTES = CONFIG_BYTES + _BLOCK_GROUPS * (_CODES_BYTES + _SUMS_BYTES)


def _scaled(builder: Builder, index: Any, size: int) -> Any:
    return builder.mul(index, ir.Constant(I64, size))


@emitting
def _unpack(typing: Any, weights: Any, count: Any, codes: Any) -> Any:
    """Write so many groups' codes where the unit can load them, a byte each."""

    def emit(context: Any, builder: Builder, _signature: Any, arguments: Any) -> Any:
        weights, count, codes = arguments
        with cgutils.for_range(builder, count) as loop:
            at = builder.add(weights, _scaled(builder, loop.index, INT4_GROUP_BYTES))
            to = builder.add(codes, _scaled(builder, loop.index, _CODES_BYTES))
            ask_ahead(builder, at, 0, 2)
            for index, each in enumerate(codes_of(builder, at)):
                place = builder.add(to, ir.Constant(I64, BYTES * index))
                builder.store(each, pointer(builder, place, vector(I8, BYTES)), align=LINE)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 3), emit


@emitting
def _multiply(
    typing: Any, weights: Any, count: Any, digits: Any, codes: Any, sums: Any, sums_bytes: Any
) -> Any:
    """Write the sums of so many groups, an even number, `sums_bytes` each."""

    def emit(context: Any, builder: Builder, _signature: Any, arguments: Any) -> Any:
        if not MATRIX_UNIT:
            return context.get_dummy_value()
        weights, count, digits, codes, sums, sums_bytes = arguments
        line, both = ir.Constant(I64, LINE), builder.add(sums_bytes, sums_bytes)
        with cgutils.for_range(builder, builder.sdiv(count, ir.Constant(I64, 2))) as loop:
            at = builder.add(weights, _scaled(builder, loop.index, 2 * INT4_GROUP_BYTES))
            for group in range(2):
                of_group = ir.Constant(I64, group * INT4_GROUP_BYTES)
                ask_ahead(builder, builder.add(at, of_group), 2, 2)
            of_rows = builder.mul(loop.index, both)
            clear_tile(builder, SUMS)
            load_tile(builder, SIGNED, builder.add(digits, of_rows), line)
            of_codes = _scaled(builder, loop.index, 2 * _CODES_BYTES)
            load_tile(builder, UNSIGNED, builder.add(codes, of_codes), line)
            add_products(builder, SUMS, SIGNED, UNSIGNED)
            store_tile(builder, SUMS, builder.add(sums, of_rows), line)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 6), emit


def _accumulate(rows: int) -> Callable[..., Any]:
    """`(weights, count, sums, grids, grid_stride, groups, values)`: addresses.

    Adds what the sums of so many groups are worth to the rows' values, sixteen float32 each.
    """

    @emitting
    def accumulate(
        typing: Any, weights: Any, count: Any, sums: Any, grids: Any, grid_stride: Any,
        groups: Any, values: Any,
    ) -> Any:  # fmt: skip
        def emit(context: Any, builder: Builder, _signature: Any, arguments: Any) -> Any:
            weights, count, sums, grids, grid_stride, groups, kept = arguments
            places = rows_from(builder, kept, ir.Constant(I64, _VALUES_BYTES), rows)
            values = [variable(builder, load_vector(builder, at, FLOAT)) for at in places]
            grid_rows = rows_from(builder, grids, grid_stride, rows)
            column = _scaled(builder, groups, 4)
            with cgutils.for_range(builder, count) as loop:
                at = builder.add(weights, _scaled(builder, loop.index, INT4_GROUP_BYTES))
                ask_ahead(builder, at, 4, 1)
                scale, offset = scale_and_offset(builder, at)
                exact = builder.add(sums, _scaled(builder, loop.index, 2 * 4 * LANES * rows))
                grid = [builder.add(each, _scaled(builder, loop.index, 4)) for each in grid_rows]

                def sums_of(row: int, digit: int) -> Any:
                    place = builder.add(exact, ir.Constant(I64, 4 * LANES * (2 * row + digit)))
                    return load_vector(builder, place, I32)

                add_group(
                    builder,
                    values,
                    scale,
                    offset,
                    grid,
                    column,
                    lambda row: sums_of(row, 0),
                    lambda row: sums_of(row, 1),
                )
            for value, at in zip(values, places, strict=True):
                builder.store(builder.load(value), pointer(builder, at, vector(FLOAT)), align=1)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 7), emit

    return accumulate


_accumulate_3, _accumulate_4 = (_accumulate(rows) for rows in (3, 4))


@inlined
def _times(rows: int) -> int:
    return (rows + MOST_ROWS - 1) // MOST_ROWS


@inlined
def height_of(rows: int) -> int:
    """How many rows are multiplied at a time, of three at least: three or four.

    It is as many each time, so that tiles keep their shape; for that some rows come twice.
    """
    return (rows + _times(rows) - 1) // _times(rows)


@inlined
def first_row(part: int, rows: int) -> int:
    """Where the rows begin that are multiplied the next time."""
    return min(part * height_of(rows), rows - height_of(rows))


@inlined
def suits_matrix_int4(rows: int, inputs: int) -> bool:
    """Whether there is one, and `matrix_int4_product` is the faster one for so many rows."""
    return MATRIX_UNIT and rows >= _FEWEST_ROWS and inputs % (2 * GROUP) == 0


@inlined
def matrix_int4_room(rows: int, inputs: int) -> int:
    """How many bytes of room `matrix_int4_product` needs; none where it is not suited."""
    if not suits_matrix_int4(rows, inputs):
        return 0
    return (rows + MOST_ROWS) * (4 * inputs + _VALUES_BYTES) + _WORK_BYTES


@emitting
def _copy_group(typing: Any, source: Any, to: Any, zeros: Any) -> Any:
    """A group's digits from one address to another, and as many zeros to a third."""

    def emit(context: Any, builder: Builder, _signature: Any, arguments: Any) -> Any:
        source, *places = arguments
        values = load_vector(builder, source, I8, GROUP), constant(I8, 0, GROUP)
        for value, place in zip(values, places, strict=True):
            builder.store(value, pointer(builder, place, vector(I8, GROUP)), align=1)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 3), emit


@inlined
def _spread(digits: int, digit_stride: int, inputs: int, rows: int, to: int) -> None:
    """Lay rows of digits as the unit takes them (see above), two groups after the other."""
    for group in range(inputs // GROUP):
        own = GROUP * (group % 2)
        pair = to + group // 2 * rows * 4 * LINE + group % 2 * rows * 2 * LINE
        for row in range(rows):
            for digit in range(2):
                at = digits + row * digit_stride + digit * inputs + group * GROUP
                line = pair + (2 * row + digit) * LINE
                _copy_group(at, line + own, line + GROUP - own)


@inlined
def matrix_int4_product(
    weights: int,
    outputs: int,
    inputs: int,
    digits: int,
    digit_stride: int,
    grids: int,
    grid_stride: int,
    rows: int,
    out: int,
    room: int,
) -> None:
    """Rows of digits, three at least, times a 4-bit weight of an even number of groups.

    `room` is the address of `matrix_int4_room`, at the beginning of a line of memory.
    """
    groups = inputs // GROUP
    stride = 4 * outputs
    height, times = height_of(rows), _times(rows)
    codes = room + CONFIG_BYTES
    sums = codes + _BLOCK_GROUPS * _CODES_BYTES
    values = room + _WORK_BYTES
    spread = values + times * height * _VALUES_BYTES
    for part in range(times):
        at = digits + first_row(part, rows) * digit_stride
        _spread(at, digit_stride, inputs, height, spread + part * height * 4 * inputs)
    configure(room, 4 * height)
    for tile in range(outputs // LANES):
        for at in range(values, spread, 4 * LANES):
            store(at, splat(np.float32(0)))
        for first in range(0, groups, _BLOCK_GROUPS):
            count = min(_BLOCK_GROUPS, groups - first)
            weight = weights + (tile * groups + first) * INT4_GROUP_BYTES
            _unpack(weight, count, codes)
            for part in range(times):
                x = spread + part * height * 4 * inputs + first * height * 2 * LINE
                _multiply(weight, count, x, codes, sums, height * 2 * LINE)
                grid = grids + first_row(part, rows) * grid_stride + 4 * first
                to = values + part * height * _VALUES_BYTES
                if height == 3:
                    _accumulate_3(weight, count, sums, grid, grid_stride, groups, to)
                else:
                    _accumulate_4(weight, count, sums, grid, grid_stride, groups, to)
        for part in range(times):
            for row in range(height):
                at = values + (part * height + row) * _VALUES_BYTES
                to = out + (first_row(part, rows) + row) * stride
                store(to + 4 * LANES * tile, load(at))
    release()
