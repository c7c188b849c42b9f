"""Linear layers over rows of digits: which tiles, in which order."""

from __future__ import annotations

import math

import numpy as np

from dspark.compiled.jit import inlined
from dspark.compiled.matrix_int4 import height_of, matrix_int4_product, suits_matrix_int4
from dspark.compiled.matrix_int8 import matrix_int8_product, suits_matrix_int8
from dspark.compiled.tiles import (
    FINER,
    GROUP,
    INT4_GROUP_BYTES,
    LEVELS,
    int4_tile,
    int8_tile,
)
from dspark.compiled.vectors import (
    LANES,
    add,
    fma,
    largest,
    largest_of_two,
    load,
    load_whole,
    magnitude,
    multiply,
    nearest,
    splat,
    store_bytes,
    store_number,
    store_whole,
    subtract,
    total,
)

_int4_1, _int4_2, _int4_3, _int4_4 = (int4_tile(rows) for rows in (1, 2, 3, 4))
_int4_5, _int4_6, _int4_8 = (int4_tile(rows) for rows in (5, 6, 8))
_int8_1, _int8_2, _int8_3, _int8_4 = (int8_tile(rows) for rows in (1, 2, 3, 4))
_int8_5, _int8_6, _int8_8 = (int8_tile(rows) for rows in (5, 6, 8))
_FAR = np.float32(3)
_TINY = np.float32(1e-30)
_LEVELS = np.float32(LEVELS)


@inlined
def int4_digits(x: int, inputs: int, digits: int, grids: int) -> None:
    """Round a row to a signed byte an input, and to two where one would cost too much.

    Each group of 32 has a scale, by its largest magnitude. Behind a norm a few channels are far
    larger than the rest, and then rounding their neighbours to steps of that size makes most of
    the row's error. So a group with a number that is `_FAR` times the row's root mean square gets
    second digits: what rounding to the first left over.
    """
    groups = inputs // GROUP
    squares = splat(np.float32(0))
    for at in range(0, 4 * inputs, 4 * LANES):
        values = load(x + at)
        squares = fma(values, values, squares)
    far = _FAR * np.float32(math.sqrt(total(squares) / np.float32(inputs)))
    finer, nothing = splat(np.float32(FINER)), splat(np.float32(0))
    for group in range(groups):
        to = digits + GROUP * group
        low, high = load(x + 128 * group), load(x + 128 * group + 64)
        top = largest(largest_of_two(magnitude(low), magnitude(high)))
        scale = max(top, _TINY) / np.float32(127)
        inverse = splat(np.float32(1) / scale)
        low, high = multiply(low, inverse), multiply(high, inverse)
        first_low, first_high = nearest(low), nearest(high)
        store_bytes(to, first_low)
        store_bytes(to + LANES, first_high)
        sum_ = total(add(first_low, first_high))
        second_low = second_high = nothing
        if top > far:
            second_low = nearest(multiply(subtract(low, first_low), finer))
            second_high = nearest(multiply(subtract(high, first_high), finer))
            sum_ += total(add(second_low, second_high)) / np.float32(FINER)
        store_bytes(to + inputs, second_low)
        store_bytes(to + inputs + LANES, second_high)
        store_number(grids + 4 * group, scale)
        store_number(grids + 4 * (groups + group), scale * sum_)
        store_whole(grids + 4 * (2 * groups + group), 1 if top > far else 0)


@inlined
def int8_digits(x: int, inputs: int, digits: int, grids: int) -> None:
    """Round a row to two signed bytes an input; the second is what the first left over."""
    top = splat(_TINY)
    for at in range(0, inputs, LANES):
        top = largest_of_two(top, magnitude(load(x + 4 * at)))
    scale = largest(top) / _LEVELS
    inverse, finer = splat(np.float32(1) / scale), splat(2 * _LEVELS)
    firsts = seconds = splat(np.float32(0))
    for at in range(0, inputs, LANES):
        exact = multiply(load(x + 4 * at), inverse)
        first = nearest(exact)
        second = nearest(multiply(subtract(exact, first), finer))
        store_bytes(digits + at, first)
        store_bytes(digits + inputs + at, second)
        firsts, seconds = add(firsts, first), add(seconds, second)
    store_number(grids, scale)
    store_number(grids + 4, scale / (2 * _LEVELS))
    store_whole(grids + 8, 128 * np.intp(total(firsts)))
    store_whole(grids + 12, 128 * np.intp(total(seconds)))


@inlined
def _tile_of(rows: int) -> int:
    """How many of the rows that are left the next tile takes."""
    return 8 if rows >= 8 else 6 if rows >= 6 else rows


@inlined
def _share_second_digits(grids: int, grid_stride: int, groups: int, rows: int) -> None:
    """Let the first of some rows say where any of them has second digits."""
    flags = grids + 8 * groups
    for other in range(1, rows):
        for at in range(0, 4 * groups, 4):
            if load_whole(flags + other * grid_stride + at) != 0:
                store_whole(flags + at, 1)


@inlined
def int4_product(
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
    """Rows of digits times a 4-bit weight: float32 `[rows, outputs]` at `out`.

    `room` is the address of `matrix_int4_room`.
    """
    groups = inputs // GROUP
    stride = 4 * outputs
    if suits_matrix_int4(rows, inputs):
        height = height_of(rows)
        for row in range(0, rows, height):
            first = min(row, rows - height)
            _share_second_digits(grids + first * grid_stride, grid_stride, groups, height)
        matrix_int4_product(
            weights, outputs, inputs, digits, digit_stride, grids, grid_stride, rows, out, room
        )
        return
    row = 0
    while row < rows:
        tall = _tile_of(rows - row)
        _share_second_digits(grids + row * grid_stride, grid_stride, groups, tall)
        row += tall
    for tile in range(outputs // LANES):
        weight = weights + tile * groups * INT4_GROUP_BYTES
        row = 0
        while row < rows:
            x, grid = digits + row * digit_stride, grids + row * grid_stride
            to = out + row * stride + 4 * LANES * tile
            tall = _tile_of(rows - row)
            if tall == 8:
                _int4_8(weight, groups, x, digit_stride, grid, grid_stride, to, stride)
            elif tall == 6:
                _int4_6(weight, groups, x, digit_stride, grid, grid_stride, to, stride)
            elif tall == 5:
                _int4_5(weight, groups, x, digit_stride, grid, grid_stride, to, stride)
            elif tall == 4:
                _int4_4(weight, groups, x, digit_stride, grid, grid_stride, to, stride)
            elif tall == 3:
                _int4_3(weight, groups, x, digit_stride, grid, grid_stride, to, stride)
            elif tall == 2:
                _int4_2(weight, groups, x, digit_stride, grid, grid_stride, to, stride)
            else:
                _int4_1(weight, groups, x, digit_stride, grid, grid_stride, to, stride)
            row += tall


@inlined
def int8_product(
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
    """Rows of digits times an 8-bit weight: float32 `[rows, outputs]` at `out`.

    `room` is the address of `matrix_int8_room`.
    """
    if suits_matrix_int8(rows, inputs):
        matrix_int8_product(
            weights, scales, outputs, inputs, digits, digit_stride, grids, grid_stride, rows, out,
            room,
        )  # fmt: skip
        return
    quads = inputs // 4
    stride = 4 * outputs
    for tile in range(outputs // LANES):
        weight = weights + tile * inputs * LANES
        scale = scales + 4 * LANES * tile
        row = 0
        while row < rows:
            x, grid = digits + row * digit_stride, grids + row * grid_stride
            to = out + row * stride + 4 * LANES * tile
            tall = _tile_of(rows - row)
            if tall == 8:
                _int8_8(weight, quads, x, digit_stride, grid, grid_stride, scale, to, stride)
            elif tall == 6:
                _int8_6(weight, quads, x, digit_stride, grid, grid_stride, scale, to, stride)
            elif tall == 5:
                _int8_5(weight, quads, x, digit_stride, grid, grid_stride, scale, to, stride)
            elif tall == 4:
                _int8_4(weight, quads, x, digit_stride, grid, grid_stride, scale, to, stride)
            elif tall == 3:
                _int8_3(weight, quads, x, digit_stride, grid, grid_stride, scale, to, stride)
            elif tall == 2:
                _int8_2(weight, quads, x, digit_stride, grid, grid_stride, scale, to, stride)
            else:
                _int8_1(weight, quads, x, digit_stride, grid, grid_stride, scale, to, stride)
            row += tall
