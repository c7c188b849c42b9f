"""8-bit layers for a few rows, by the matrix unit.

An 8-bit tile (see `dspark.compiled.tiles`) lies in memory as the unit takes it. A row's first and
second digits are rows of their own, and lie one after the other already.
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
from numba.core import cgutils, types

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
from dspark.compiled.tiles import ask_ahead, store_int8_outputs
from dspark.compiled.vectors import I32, I64, LANES, LINE, Builder, emitting, load_vector

MOST_ROWS = 8
"""Two digits of so many rows are all that a tile holds."""

_FEWEST_ROWS = 2
_STEP_INPUTS = LINE
_STEP_BYTES = _STEP_INPUTS * LANES


@emitting
def _multiply(typing: Any, weights: Any, inputs: Any, digits: Any, sums: Any) -> Any:
    """Write the exact sums of sixteen outputs: for each row of its first digits, then second."""

    def emit(context: Any, builder: Builder, _signature: Any, arguments: Any) -> Any:
        if not MATRIX_UNIT:
            return context.get_dummy_value()
        weights, inputs, digits, sums = arguments
        line, step = ir.Constant(I64, LINE), ir.Constant(I64, _STEP_INPUTS)
        clear_tile(builder, SUMS)
        with cgutils.for_range(builder, builder.sdiv(inputs, step)) as loop:
            at = builder.add(weights, builder.mul(loop.index, ir.Constant(I64, _STEP_BYTES)))
            ask_ahead(builder, at, 0, _STEP_BYTES // LINE)
            x = builder.add(digits, builder.mul(loop.index, step))
            load_tile(builder, SIGNED, x, inputs)
            load_tile(builder, UNSIGNED, at, line)
            add_products(builder, SUMS, SIGNED, UNSIGNED)
        store_tile(builder, SUMS, sums, line)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 4), emit


@emitting
def _finish(typing: Any, sums: Any, grid: Any, scales: Any, to: Any) -> Any:
    """Write a row's sixteen outputs."""

    def emit(context: Any, builder: Builder, _signature: Any, arguments: Any) -> Any:
        sums, grid, scales, to = arguments
        places = [builder.add(sums, ir.Constant(I64, LINE * digit)) for digit in range(2)]
        exact = [load_vector(builder, place, I32) for place in places]
        store_int8_outputs(builder, exact, grid, scales, to)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 4), emit


@inlined
def suits_matrix_int8(rows: int, inputs: int) -> bool:
    """Whether there is a matrix unit, and `matrix_int8_product` is faster for so many rows."""
    return MATRIX_UNIT and rows >= _FEWEST_ROWS and inputs % _STEP_INPUTS == 0


@inlined
def matrix_int8_product(
    weights: int,
    scales: int,
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
    """Rows of digits times an 8-bit weight.

    `room` is the address of `matrix_int8_room`, at the beginning of a line of memory.
    """
    times = (rows + MOST_ROWS - 1) // MOST_ROWS
    height = (rows + times - 1) // times
    sums = room + CONFIG_BYTES
    configure(room, 2 * height)
    for tile in range(outputs // LANES):
        weight = weights + tile * inputs * LANES
        scale = scales + 4 * LANES * tile
        for part in range(times):
            first = min(part * height, rows - height)  # some come twice; tiles keep their shape
            _multiply(weight, inputs, digits + first * digit_stride, sums)
            for row in range(height):
                to = out + 4 * ((first + row) * outputs + LANES * tile)
                grid = grids + (first + row) * grid_stride
                _finish(sums + 2 * LINE * row, grid, scale, to)
    release()


@inlined
def matrix_int8_room() -> int:
    """How many bytes of room `matrix_int8_product` needs."""
    return CONFIG_BYTES + MOST_ROWS * 2 * LINE
