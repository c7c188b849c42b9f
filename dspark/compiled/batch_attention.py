"""Attention of one new token of every slot over a cache in bfloat16, for many slots at a time.

With many sequences reading their keys and values takes longest, so each is read once, as far as its
sequence goes and no further, and widened to float32 in the processor's own cache.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dspark.compiled.attention import attend
from dspark.compiled.jit import compiled, inlined
from dspark.compiled.layers import Array, first_address, in_use
from dspark.compiled.vectors import LANES, load_brain, store


@inlined
def _widened(source: int, to: int, numbers: int) -> None:
    for at in range(0, numbers, LANES):
        store(to + 4 * at, load_brain(source + 2 * at))


@compiled
def _attend_each(queries: Array, keys: Array, values: Array, counts: Array, out: Array) -> None:
    slots, kv_heads, context, head_dim = keys.shape
    group = queries.shape[1] // kv_heads
    share_stride = 4 * (context + LANES)
    wide_keys = np.zeros((context + LANES, head_dim), np.float32)
    wide_values = np.zeros((context + LANES, head_dim), np.float32)
    shares = np.empty(share_stride, np.float32)
    for slot in range(slots):
        count = counts[slot]
        for head in range(kv_heads):
            at = 2 * (slot * kv_heads + head) * context * head_dim
            _widened(first_address(keys) + at, first_address(wide_keys), count * head_dim)
            _widened(first_address(values) + at, first_address(wide_values), count * head_dim)
            place = 4 * (slot * kv_heads + head) * group * head_dim
            attend(
                first_address(queries) + place, group, first_address(wide_keys),
                first_address(wide_values), 0, 0, count, count, head_dim, first_address(shares),
                share_stride, first_address(out) + place,
            )  # fmt: skip
    for scratch in (wide_keys.ravel(), wide_values.ravel(), shares):
        in_use(scratch)


def attend_each(queries: Tensor, keys: Tensor, values: Tensor, counts: Tensor) -> Tensor:
    """One query token of every slot over the first keys and values of the slot.

    Args:
        queries: `[slots, heads, head_dim]`, whole vectors of sixteen in a head.
        keys: `[slots, kv_heads, context, head_dim]` bfloat16, not copied.
        values: the same.
        counts: `[slots]` int64, how many each sees: at least one.

    Returns:
        `[slots, heads, head_dim]` bfloat16.
    """
    wide = queries.float()
    out = torch.empty_like(wide)
    key_bits, value_bits = (cached.view(torch.int16).numpy() for cached in (keys, values))
    _attend_each(wide.numpy(), key_bits, value_bits, counts.numpy(), out.numpy())
    return out.bfloat16()
