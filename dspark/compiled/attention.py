"""Attention of a row to the keys it sees, in their order, whoever else is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.ir as ir
import numpy as np
from numba.core import cgutils, types

from dspark.compiled.elementwise import exponential
from dspark.compiled.jit import inlined
from dspark.compiled.vectors import (
    FLOAT,
    I64,
    LANES,
    Builder,
    add,
    constant,
    emitting,
    first_lanes,
    floats,
    fused,
    largest,
    largest_of_two,
    load,
    load_vector,
    multiply,
    pointer,
    splat,
    splat_value,
    store,
    subtract,
    sum_of_each,
    total,
    variable,
    vector,
)

_BYTES = 4 * LANES
_LEAST = np.float32(-3.4e38)


@emitting
def _sixteen_scores(typing: Any, query: Any, keys: Any, stride: Any) -> Any:
    """The products of a query with sixteen neighbouring keys, `stride` bytes each."""

    def emit(_context: Any, builder: Builder, _signature: Any, arguments: Any) -> Any:
        query, keys, stride = arguments
        rows = [
            builder.add(keys, builder.mul(stride, ir.Constant(I64, row))) for row in range(LANES)
        ]
        sums = [variable(builder, constant(FLOAT, 0.0)) for _ in rows]
        with cgutils.for_range(builder, builder.sdiv(stride, ir.Constant(I64, _BYTES))) as loop:
            at = builder.mul(loop.index, ir.Constant(I64, _BYTES))
            part = load_vector(builder, builder.add(query, at), FLOAT)
            for row, sum_ in zip(rows, sums, strict=True):
                key = load_vector(builder, builder.add(row, at), FLOAT)
                builder.store(fused(builder, part, key, builder.load(sum_)), sum_)
        return sum_of_each(builder, [builder.load(sum_) for sum_ in sums])

    return floats(types.intp, types.intp, types.intp), emit


def _weighted_sum(heads: int, vectors: int) -> Callable[..., Any]:
    """`(shares, share_stride, values, value_stride, count, out, out_stride)`: addresses.

    Adds `count` values, of so many vectors each, to what stands at `out`, once for each head with
    the head's shares.
    """

    @emitting
    def weighted(
        typing: Any, shares: Any, share_stride: Any, values: Any, value_stride: Any, count: Any,
        out: Any, out_stride: Any,
    ) -> Any:  # fmt: skip
        def emit(context: Any, builder: Builder, _signature: Any, arguments: Any) -> Any:
            shares, share_stride, values, value_stride, count, out, out_stride = arguments
            places = [
                [
                    builder.add(
                        builder.add(out, builder.mul(out_stride, ir.Constant(I64, head))),
                        ir.Constant(I64, _BYTES * part),
                    )
                    for part in range(vectors)
                ]
                for head in range(heads)
            ]
            sums = [
                [variable(builder, load_vector(builder, place, FLOAT)) for place in of_head]
                for of_head in places
            ]
            with cgutils.for_range(builder, count) as loop:
                at = builder.add(values, builder.mul(loop.index, value_stride))
                parts = [
                    load_vector(builder, builder.add(at, ir.Constant(I64, _BYTES * part)), FLOAT)
                    for part in range(vectors)
                ]
                four = builder.mul(loop.index, ir.Constant(I64, 4))
                for head in range(heads):
                    place = builder.add(builder.mul(share_stride, ir.Constant(I64, head)), four)
                    place = pointer(builder, builder.add(shares, place), FLOAT)
                    share = splat_value(builder, builder.load(place, align=1))
                    for sum_, part in zip(sums[head], parts, strict=True):
                        builder.store(fused(builder, share, part, builder.load(sum_)), sum_)
            for of_head, in_head in zip(places, sums, strict=True):
                for place, sum_ in zip(of_head, in_head, strict=True):
                    to = pointer(builder, place, vector(FLOAT))
                    builder.store(builder.load(sum_), to, align=1)
            return context.get_dummy_value()

        return types.void(*[types.intp] * 7), emit

    return weighted


_one_head, _two_heads, _three_heads, _four_heads = (
    _weighted_sum(heads, 2) for heads in (1, 2, 3, 4)
)


@inlined
def _shares(
    query: int, keys: int, tail_keys: int, near: int, count: int, head_dim: int, shares: int
) -> None:
    """Softmax of a query's scores; see `attend`."""
    stride = 4 * head_dim
    scale = splat(np.float32(1) / np.float32(np.sqrt(np.float32(head_dim))))
    top = splat(_LEAST)
    for start in range(0, count, LANES):
        at = keys + start * stride if start < near else tail_keys + (start - near) * stride
        scores = multiply(_sixteen_scores(query, at, stride), scale)
        scores = first_lanes(scores, count - start, _LEAST)
        store(shares + 4 * start, scores)
        top = largest_of_two(top, scores)
    highest = splat(largest(top))
    sums = splat(np.float32(0))
    for start in range(0, count, LANES):
        raised = exponential(subtract(load(shares + 4 * start), highest))
        raised = first_lanes(raised, count - start, np.float32(0))
        store(shares + 4 * start, raised)
        sums = add(sums, raised)
    inverse = splat(np.float32(1) / total(sums))
    for start in range(0, count, LANES):
        store(shares + 4 * start, multiply(load(shares + 4 * start), inverse))


@inlined
def _sum(
    heads: int, shares: int, share_stride: int, values: int, stride: int, count: int, out: int
) -> None:
    if heads == 1:
        _one_head(shares, share_stride, values, stride, count, out, stride)
    elif heads == 2:
        _two_heads(shares, share_stride, values, stride, count, out, stride)
    elif heads == 3:
        _three_heads(shares, share_stride, values, stride, count, out, stride)
    else:
        _four_heads(shares, share_stride, values, stride, count, out, stride)


@inlined
def attend(
    queries: int,
    group: int,
    keys: int,
    values: int,
    tail_keys: int,
    tail_values: int,
    near: int,
    count: int,
    head_dim: int,
    shares: int,
    share_stride: int,
    out: int,
) -> None:
    """Attention of the query heads that share a key head.

    Args:
        queries: address of `[group, head_dim]`.
        group: how many heads.
        keys: address of the first `near` keys, `[positions, head_dim]`.
        values: the same.
        tail_keys: address of the keys after them, with room for whole vectors of positions.
        tail_values: the same.
        near: how many lie at `keys`: whole vectors, or all.
        count: how many keys are seen, at least one.
        head_dim: numbers in a head.
        shares: address of room for four times as many numbers as there are keys.
        share_stride: a quarter of it, in bytes.
        out: address of `[group, head_dim]`.
    """
    stride = 4 * head_dim
    near = min(near, count)
    for at in range(0, group * stride, _BYTES):
        store(out + at, splat(np.float32(0)))
    head = 0
    while head < group:
        heads = min(4, group - head)
        for each in range(heads):
            query = queries + (head + each) * stride
            _shares(query, keys, tail_keys, near, count, head_dim, shares + each * share_stride)
        for part in range(0, stride, 2 * _BYTES):
            to = out + head * stride + part
            _sum(heads, shares, share_stride, values + part, stride, near, to)
            if near < count:
                rest = shares + 4 * near
                _sum(heads, rest, share_stride, tail_values + part, stride, count - near, to)
        head += heads
