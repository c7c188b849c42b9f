"""Attention of a few tokens over cached keys and values, the same bits whoever shares the step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from dspark.kv_cache import KvCache, padded

Attention = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""`(layer, queries [tokens, heads, head_dim], keys and values [tokens, kv_heads, head_dim])`
→ `[tokens, heads × head_dim]`."""

_LEAST_ROWS = 4


class Placed(Protocol):
    """Consecutive tokens of one sequence: which slot they lie in and which positions they have."""

    @property
    def slot(self) -> int:
        """The cache slot."""
        ...

    @property
    def start(self) -> int:
        """Position of the first token; everything before it is in the cache."""
        ...

    @property
    def stop(self) -> int:
        """The position after the last token."""
        ...


class SlotAttention:
    """Attention of each span over its own slot: what came before it, and itself.

    Args:
        spans: in the order in which their tokens lie in the step's rows.
        cache: where the spans' keys and values are put and their predecessors' are found.
        heads: how many query heads there are.
        causal: whether a token sees only itself and what came before; otherwise every token of
            a span sees the whole span.
    """

    def __init__(
        self, spans: Sequence[Placed], cache: KvCache, *, heads: int, causal: bool
    ) -> None:
        self._cache = cache
        self._spans: list[tuple[Placed, slice, int, Tensor]] = []
        group = heads // cache.keys.shape[2]
        row = 0
        for span in spans:
            rows = slice(row, row + span.stop - span.start)
            tiles_end = padded(span.stop)
            positions = torch.arange(tiles_end, device=cache.keys.device)
            own = positions[span.start : span.stop, None]
            visible = positions <= (own if causal else own[-1])
            mask = scores_mask(visible.expand(len(own), -1), group).to(cache.keys.dtype)
            self._spans.append((span, rows, tiles_end, mask))
            row = rows.stop

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Store the spans' keys and values, and attend (see `Attention`)."""
        attended = []
        for span, rows, tiles_end, mask in self._spans:
            self._cache.append(layer, span.slot, span.start, keys[rows], values[rows])
            context = self._cache.read(layer, span.slot, tiles_end)
            attended.append(grouped_attention(queries[rows], *context, mask))
        return attended[0] if len(attended) == 1 else torch.cat(attended)


def scores_mask(visible: Tensor, group: int) -> Tensor:
    """What `grouped_attention` adds to its scores so that each token sees what it may.

    Matrix products of few rows, or with a ragged edge, are summed in another order than others.
    A token's attention would then differ in its last bits with the number of tokens beside it.
    So there are never fewer than four rows, and positions come in whole tiles; for those the
    order is always the same.

    Args:
        visible: `[tokens, positions]` bool, positions in whole tiles.
        group: how many query heads share a key head.

    Returns:
        `[rows, positions]` of 0 and -infinity, float32; a row for each token of each head of a
        group, and rows that see everything to make up four.
    """
    mask = torch.zeros(visible.shape, device=visible.device).masked_fill_(~visible, -math.inf)
    rows = group * visible.shape[0]
    return functional.pad(mask.repeat(group, 1), (0, 0, 0, max(0, _LEAST_ROWS - rows)))


def grouped_attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Softmax attention in which several query heads share a key head.

    The query heads of a group are laid beside each other as further rows, so keys and values
    are read in place, once, whatever the group's size.

    Args:
        queries: `[tokens, heads, head_dim]`.
        keys: `[kv_heads, positions, head_dim]`.
        values: as keys.
        mask: from `scores_mask`, in the queries' precision.

    Returns:
        `[tokens, heads × head_dim]`.
    """
    tokens, heads, head_dim = queries.shape
    kv_heads = keys.shape[0]
    group = heads // kv_heads
    used = group * tokens
    rows = queries.view(tokens, kv_heads, group, head_dim).permute(1, 2, 0, 3)
    rows = rows.reshape(kv_heads, used, head_dim)
    if used < mask.shape[0]:
        rows = functional.pad(rows, (0, 0, 0, mask.shape[0] - used))
    scores = torch.baddbmm(mask, rows, keys.transpose(1, 2), alpha=head_dim**-0.5)
    attended = torch.bmm(scores.softmax(-1), values)[:, :used]
    attended = attended.view(kv_heads, group, tokens, head_dim).permute(2, 0, 1, 3)
    return attended.reshape(tokens, heads * head_dim)
