"""Attention of a few tokens over cached keys and values, the same bits whoever shares the step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from dspark.cached_rows import CachedRows
from dspark.kv_cache import KvCache, padded

Attention = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""`(layer, queries [tokens, heads, head_dim], keys and values [tokens, kv_heads, head_dim])`
→ `[tokens, heads × head_dim]`."""

_LEAST_ROWS = 4
_SHORT_HEAD = 16
_MOST_ROWS_OF_SHORT_HEADS = 48


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
        self._placed = spans
        self._runs = [run for span in spans for run in _cut(span, cache, heads, causal)]
        self._cache = cache
        self._heads = heads
        self._causal = causal
        self._lengths = [run.stop - run.start for run in self._runs]

    def rows(self) -> CachedRows:
        """See `CachedRows`."""
        return CachedRows.of(
            self._cache,
            (
                (span.slot, place, place + 1 if self._causal else span.stop)
                for span in self._placed
                for place in range(span.start, span.stop)
            ),
        )

    @cached_property
    def _spans(self) -> list[_SpanAttention]:
        return [_SpanAttention(run, self._cache, self._heads, self._causal) for run in self._runs]

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Store the spans' keys and values, and attend (see `Attention`)."""
        if len(self._spans) == 1:
            return self._spans[0](layer, queries, keys, values)
        pieces = [torch.split_with_sizes(rows, self._lengths) for rows in (queries, keys, values)]
        return torch.cat(
            [span(layer, *piece) for span, *piece in zip(self._spans, *pieces, strict=True)]
        )


@dataclass(frozen=True)
class _Run:
    """A part of a span (see `Placed`)."""

    slot: int
    start: int
    stop: int


def _cut(span: Placed, cache: KvCache, heads: int, causal: bool) -> Sequence[Placed]:
    """A span in parts that are attended to one after the other; most are whole.

    MKL sums products of many rows of short heads in another order.
    """
    kv_heads, _, head_dim = cache.keys.shape[2:]
    most = _MOST_ROWS_OF_SHORT_HEADS // (heads // kv_heads)
    if not causal or head_dim >= _SHORT_HEAD or span.stop - span.start <= most:
        return [span]
    starts = range(span.start, span.stop, most)
    return [_Run(span.slot, start, min(start + most, span.stop)) for start in starts]


class _SpanAttention:
    """Attention of one span, with what is the same in every layer made once.

    The query heads that share a key head are laid beside each other as further rows, so keys and
    values are read in place, once, whatever the group's size.

    Matrix products of few rows, or with a ragged edge, are summed in another order than others.
    A token's attention would then differ in its last bits with the number of tokens beside it.
    So there are never fewer than four rows, and positions come in whole tiles; for those the
    order is always the same.
    """

    def __init__(self, span: Placed, cache: KvCache, heads: int, causal: bool) -> None:
        kv_heads, _, head_dim = cache.keys.shape[2:]
        self._tokens = span.stop - span.start
        self._group = heads // kv_heads
        self._scale = head_dim**-0.5
        self._own = cache.by_layer(span.slot, span.start, span.stop)
        self._context = cache.by_layer(span.slot, 0, padded(span.stop))
        self._mask = self._scores_mask(span, causal).to(cache.keys)
        self._rows = cache.keys.new_zeros(kv_heads, len(self._mask), head_dim)
        self._queries = self._by_token(self._rows)

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        for own, new in zip(self._own[layer], (keys, values), strict=True):
            own.copy_(new.transpose(0, 1))
        self._queries.copy_(queries.view(self._queries.shape))
        all_keys, all_values = self._context[layer]
        scores = torch.baddbmm(self._mask, self._rows, all_keys.mT, alpha=self._scale)
        attended = torch.bmm(scores.softmax(-1), all_values)
        return self._by_token(attended).reshape(self._tokens, -1)

    def _by_token(self, rows: Tensor) -> Tensor:
        """`[kv_heads, rows, head_dim]` as `[tokens, kv_heads, group, head_dim]`, not copied."""
        used = rows[:, : self._group * self._tokens]
        return used.view(len(rows), self._group, self._tokens, -1).permute(2, 0, 1, 3)

    def _scores_mask(self, span: Placed, causal: bool) -> Tensor:
        """`[rows, positions]`, 0 where a row sees a position and -infinity where it does not.

        There is a row for each token of each head of a group, and rows that see everything to
        make up four.
        """
        positions = torch.arange(padded(span.stop))
        own = positions[span.start : span.stop, None]
        visible = positions <= (own if causal else own[-1])
        mask = torch.zeros(self._tokens, len(positions)).masked_fill_(~visible, -math.inf)
        rows = self._group * self._tokens
        return functional.pad(mask.repeat(self._group, 1), (0, 0, 0, max(0, _LEAST_ROWS - rows)))
