"""Attention of a token tree, branch by branch, in the very sums of plain decoding.

Depth first, a tree falls into runs of tokens that follow each other. When a run's turn has come,
the nodes on the way to it lie in the slot at their positions, since every run before it that went
deeper hung on them. So each run is attended to as a span like any other, and puts its own keys and
values at its positions, over those of the branch before. A token's sums are then those of plain
decoding, term by term: with a mask over the tree's tokens side by side the same terms would lie
elsewhere, and be added in another order.

Since runs overwrite each other, all tokens' keys and values are put down again after the layer,
side by side in the order of the span.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from dspark.attention import Attention, Placed
from dspark.cached_rows import CachedRows
from dspark.kv_cache import KvCache
from dspark.tree import ANCHOR, TreeShape


@dataclass(frozen=True)
class Run:
    """Tokens that follow each other, at their positions (see `Placed`)."""

    slot: int
    start: int
    length: int

    @property
    def stop(self) -> int:
        """The position after the last token."""
        return self.start + self.length


class PlacedTree(Placed, Protocol):
    """Tokens of one sequence whose last ones are a tree (see `dspark.target.Span`)."""

    @property
    def tree(self) -> TreeShape | None:
        """Which of the last tokens follows which; None if all follow each other."""
        ...


class TreeRows:
    """An `Attention` over runs that leaves the keys and values of whole spans behind.

    Args:
        attention: over the runs of the spans, in order.
        spans: in the order in which their tokens lie in the step's rows.
        cache: where they are left, at the spans' places.
    """

    def __init__(self, attention: Attention, spans: Sequence[PlacedTree], cache: KvCache) -> None:
        self._attention = attention
        self._cache = cache
        self._spans = spans

    def rows(self) -> CachedRows:
        """Where the rows' keys and values are put and which they see (see `CachedRows`)."""
        places: list[tuple[int, int, int]] = []
        tails: list[Sequence[int]] = []
        for span in self._spans:
            nodes = 0 if span.tree is None else len(span.tree)
            first = span.stop - nodes
            for place in range(span.start, span.stop):
                tail = [] if span.tree is None else span.tree.path(max(ANCHOR, place - first))
                places.append((span.slot, place, min(place + 1, first) + len(tail)))
                tails.append([first + node for node in tail])
        return CachedRows.of(self._cache, places, tails)

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """See `Attention`."""
        attended = self._attention(layer, queries, keys, values)
        row = 0
        for span in self._spans:
            rows = slice(row, row + span.stop - span.start)
            self._cache.append(layer, span.slot, span.start, keys[rows], values[rows])
            row = rows.stop
        return attended
