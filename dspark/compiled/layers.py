"""All layers of a decoder in one call."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dspark.compiled.attention import attend
from dspark.compiled.elementwise import add_to, gate, rms_norm, rotate
from dspark.compiled.jit import compiled, inlined
from dspark.compiled.linear import int4_digits, int4_product, int8_digits, int8_product
from dspark.compiled.matrix_int4 import matrix_int4_room
from dspark.compiled.matrix_int8 import matrix_int8_room
from dspark.compiled.tiles import GROUP
from dspark.compiled.vectors import LANES, LINE, load, splat, store

Array = npt.NDArray[Any]
Linear = tuple[Array, Array, Array]
"""Weights, scales and biases of a layer of every decoder layer (see `product`)."""


@inlined
def aligned(address: int) -> int:
    """The first address from there on at which a line of memory begins."""
    return (address + LINE - 1) // LINE * LINE


@inlined
def first_address(array: Array) -> int:
    """Where an array begins."""
    return np.intp(array.ctypes.data)  # type: ignore[return-value]


@inlined
def in_use(array: Array) -> None:
    """Say, at a function's end, that it used a local array's memory by its address until here.

    Numba frees an array behind the last mention of its name, and an address mentions none.
    """
    array[0] = 0


@inlined
def row_address(array: Array, index: int) -> int:
    """Where a matrix's row begins."""
    at: int = first_address(array) + index * array.shape[1] * array.itemsize
    return at


@inlined
def product(
    rows: int,
    x: int,
    x_stride: int,
    weights: Array,
    scales: Array,
    biases: Array,
    layer: int,
    inputs: int,
    outputs: int,
    digits: int,
    out: int,
) -> None:
    """Rows, `x_stride` bytes apart, times a layer's weight, plus its bias.

    Args:
        rows: how many.
        x: address of the first.
        x_stride: bytes from a row to the next.
        weights: `[layers, bytes]`, in 4 bits where `scales` has no columns, otherwise in 8.
        scales: `[layers, outputs]` float32 of 8-bit weights.
        biases: `[layers, outputs]` float32, or without columns.
        layer: which.
        inputs: of a row.
        outputs: of a row.
        digits: address of `product_room`, at the beginning of a line of memory.
        out: address of `[rows, outputs]` float32.
    """
    in_four_bits = scales.shape[1] == 0
    digit_stride = 2 * inputs
    grid_stride = 12 * inputs // GROUP if in_four_bits else 16
    grids = digits + rows * digit_stride
    room = aligned(grids + rows * grid_stride)
    weight = row_address(weights, layer)
    for row in range(rows):
        at, to, grid = x + row * x_stride, digits + row * digit_stride, grids + row * grid_stride
        if in_four_bits:
            int4_digits(at, inputs, to, grid)
        else:
            int8_digits(at, inputs, to, grid)
    if in_four_bits:
        int4_product(
            weight, outputs, inputs, digits, digit_stride, grids, grid_stride, rows, out, room
        )
    else:
        int8_product(
            weight, row_address(scales, layer), outputs, inputs, digits, digit_stride, grids,
            grid_stride, rows, out, room,
        )  # fmt: skip
    if biases.shape[1] > 0:
        bias = row_address(biases, layer)
        for row in range(rows):
            add_to(out + row * 4 * outputs, bias, outputs)


@inlined
def product_room(rows: int, inputs: int) -> int:
    """How many bytes the digits of rows take at most, with their grids and what works on them."""
    digits = rows * (2 * inputs + max(16, 12 * inputs // GROUP))
    return digits + LINE + max(matrix_int4_room(rows, inputs), matrix_int8_room())


@compiled
def multiply_rows(x: Array, weights: Array, scales: Array, biases: Array, out: Array) -> None:
    """`x [rows, inputs]` float32 times one weight (see `product`) into `out [rows, outputs]`."""
    rows, inputs = x.shape
    digits = np.empty(product_room(rows, inputs) + LINE, np.uint8)
    product(
        rows, first_address(x), 4 * inputs, weights, scales, biases, 0, inputs,
        out.shape[1], aligned(first_address(digits)), first_address(out),
    )  # fmt: skip
    in_use(digits)


@inlined
def copied(from_: int, to: int, size: int) -> None:
    """`size` numbers, from one address to another."""
    for at in range(0, 4 * size, 4 * LANES):
        store(to + at, load(from_ + at))


@compiled
def run_layers(
    hidden: Array,
    rotations: Array,
    places: Array,
    tails: Array,
    keys: Array,
    values: Array,
    taps: Array,
    tapped: Array,
    heads: int,
    mlp_size: int,
    epsilon: float,
    attention_norms: Array,
    mlp_norms: Array,
    qk_norms: Array,
    qkv: Linear,
    output: Linear,
    gate_up: Linear,
    down: Linear,
) -> None:
    """Run every layer on the rows of `hidden [rows, size]`, in place.

    Args:
        hidden: float32.
        rotations: `[rows, 2, head_dim / 2]` float32, cosines and sines.
        places: `[rows, 4]` int64: a row's slot, where in the slot its key and value are put,
            how many keys it sees, and how many of them, the last ones, lie where `tails` says.
            The others are the first of the slot.
        tails: `[rows, length]` int64: places in the slot, in the order in which they are seen.
        keys: the cache `[layers, slots, kv_heads, context, head_dim]` float32.
        values: the same.
        taps: `[layers]` int64: where in `tapped` a layer's output is kept, or -1.
        tapped: `[rows, taps, size]` float32.
        heads: how many query heads.
        mlp_size: width of the feed-forward network.
        epsilon: of the norms.
        attention_norms: `[layers, size]`.
        mlp_norms: `[layers, size]`.
        qk_norms: `[layers, 2 × head_dim]`, or without columns.
        qkv: weights, scales and biases (see `product`); likewise the other three.
    """
    rows, size = hidden.shape
    layers = attention_norms.shape[0]
    _, slots, kv_heads, context, head_dim = keys.shape
    group = heads // kv_heads
    attention_size = heads * head_dim
    qkv_size = attention_size + 2 * kv_heads * head_dim
    head_bytes = 4 * head_dim
    slot_bytes = kv_heads * context * head_bytes

    narrow_bytes = 4 * rows * max(size, attention_size)
    wide_bytes = 4 * rows * max(qkv_size, 2 * mlp_size)
    most_digits = max(
        max(product_room(rows, size), product_room(rows, attention_size)),
        product_room(rows, mlp_size),
    )
    share_stride = 4 * (context + tails.shape[1] + LANES) // LINE * LINE
    tail_bytes = (tails.shape[1] + 2 * LANES) * head_bytes
    room = np.empty(
        2 * narrow_bytes + wide_bytes + most_digits + 4 * share_stride + 2 * tail_bytes
        + 7 * LINE,
        np.uint8,
    )  # fmt: skip
    normed = aligned(first_address(room))
    narrow = aligned(normed + narrow_bytes)
    wide = aligned(narrow + narrow_bytes)
    digits = aligned(wide + wide_bytes)
    shares = aligned(digits + most_digits)
    tail_keys = aligned(shares + 4 * share_stride)
    tail_values = aligned(tail_keys + tail_bytes)
    for at in range(0, 2 * tail_bytes, 4 * LANES):
        store(tail_keys + at, splat(np.float32(0)))  # what is masked out is still multiplied

    x = first_address(hidden)
    for layer in range(layers):
        for row in range(rows):
            rms_norm(
                x + row * 4 * size, row_address(attention_norms, layer), size, epsilon,
                normed + row * 4 * size,
            )  # fmt: skip
        product(rows, normed, 4 * size, qkv[0], qkv[1], qkv[2], layer, size, qkv_size, digits, wide)
        layer_keys = first_address(keys) + layer * slots * slot_bytes
        layer_values = first_address(values) + layer * slots * slot_bytes
        for row in range(rows):
            at = wide + row * 4 * qkv_size
            cosines = first_address(rotations) + row * head_bytes
            for head in range(heads + kv_heads):
                if qk_norms.shape[1] > 0:
                    weight = row_address(qk_norms, layer) + (head_bytes if head >= heads else 0)
                    rms_norm(at + head * head_bytes, weight, head_dim, epsilon,
                             at + head * head_bytes)  # fmt: skip
                rotate(at + head * head_bytes, cosines, cosines + head_bytes // 2, head_dim)
            place = places[row, 0] * slot_bytes + places[row, 1] * head_bytes
            for head in range(kv_heads):
                key = at + (heads + head) * head_bytes
                to = place + head * context * head_bytes
                copied(key, layer_keys + to, head_dim)
                copied(key + kv_heads * head_bytes, layer_values + to, head_dim)
        for row in range(rows):
            slot, count, own = places[row, 0], places[row, 2], places[row, 3]
            near = count if own == 0 else (count - own) // LANES * LANES
            for head in range(kv_heads):
                at = slot * slot_bytes + head * context * head_bytes
                for index in range(near, count):
                    seen = count - own
                    found = index if index < seen else tails[row, index - seen]
                    to = (index - near) * head_bytes
                    copied(layer_keys + at + found * head_bytes, tail_keys + to, head_dim)
                    copied(layer_values + at + found * head_bytes, tail_values + to, head_dim)
                attend(
                    wide + row * 4 * qkv_size + head * group * head_bytes, group,
                    layer_keys + at, layer_values + at, tail_keys, tail_values, near, count,
                    head_dim, shares, share_stride,
                    narrow + row * 4 * attention_size + head * group * head_bytes,
                )  # fmt: skip
        product(
            rows, narrow, 4 * attention_size, output[0], output[1], output[2], layer,
            attention_size, size, digits, normed,
        )  # fmt: skip
        for row in range(rows):
            add_to(x + row * 4 * size, normed + row * 4 * size, size)
            rms_norm(
                x + row * 4 * size,
                row_address(mlp_norms, layer),
                size,
                epsilon,
                normed + row * 4 * size,
            )
        product(
            rows, normed, 4 * size, gate_up[0], gate_up[1], gate_up[2], layer, size,
            2 * mlp_size, digits, wide,
        )  # fmt: skip
        for row in range(rows):
            gate(wide + row * 8 * mlp_size, mlp_size)
        product(
            rows, wide, 8 * mlp_size, down[0], down[1], down[2], layer, mlp_size, size, digits,
            normed,
        )  # fmt: skip
        for row in range(rows):
            add_to(x + row * 4 * size, normed + row * 4 * size, size)
            if taps[layer] >= 0:
                to = first_address(tapped) + (row * tapped.shape[1] + taps[layer]) * 4 * size
                copied(x + row * 4 * size, to, size)
    in_use(room)
