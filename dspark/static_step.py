"""A target's forward in static shapes: `[rows, length]` tokens, padded, made of tensors alone.

The ragged forward of `dspark.target` computes just the tokens there are, and looks at each
sequence for itself. Here every sequence is a row of one tensor, whatever is padding goes to a
spare slot of the cache, and which position sees which is computed from the positions on the
device. So a step does the same kernels whatever is in it, and can be recorded (`dspark.graphs`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from dspark.graphs import Graphs
from dspark.kv_cache import TILE, KvCache
from dspark.static_shapes import InputTable, StaticShapes
from dspark.target import Forward, Span, Target


@dataclass(frozen=True)
class Rows:
    """Where the tokens of a step lie; all int64.

    Attributes:
        slots: `[rows]`, whose context each row looks at.
        stores: `[rows, length]`, the slot that each token's keys and values go to: the row's own,
            or the spare one for padding.
        positions: `[rows, length]`; 0 for padding.
    """

    slots: Tensor
    stores: Tensor
    positions: Tensor

    @classmethod
    def at(cls, slots: Tensor, starts: Tensor, counts: Tensor, length: int, spare: int) -> Rows:
        """Rows of `counts` tokens from position `starts` on: each `[rows]`, and then padding."""
        offsets = torch.arange(length, device=slots.device)
        padding = offsets >= counts[:, None]
        stores = slots[:, None].expand(-1, length).masked_fill(padding, spare)
        return cls(slots, stores, (starts[:, None] + offsets).masked_fill(padding, 0))

    def store(self, cached: Tensor, new: Tensor) -> None:
        """Put `[rows × length, kv_heads, head_dim]` into one layer's keys or values."""
        cached[self.stores, :, self.positions] = new.view(*self.positions.shape, *new.shape[1:])


class StaticAttention:
    """Attention of rows over the first positions of their slots (see `dspark.attention`).

    The contexts of the rows are gathered into one tensor, tile by tile. That reads and writes them
    once more than attention alone would: little beside the weights until contexts are long.

    Args:
        rows: where the tokens lie.
        cache: one slot more than sequences use; the last is the spare one.
        heads: how many query heads there are.
        context: how many positions are looked at, in whole tiles; all rows' positions lie below.
        causal: whether a token sees only itself and what came before; otherwise every token of
            a row sees the whole row.
    """

    def __init__(
        self, rows: Rows, cache: KvCache, *, heads: int, context: int, causal: bool
    ) -> None:
        kv_heads, positions = cache.keys.shape[2:4]
        device = rows.slots.device
        self._rows = rows
        self._cache = cache
        self._context = context
        self._group = heads // kv_heads
        # Where the tiles of the rows lie among all tiles of a layer, for each key head.
        head = rows.slots[:, None] * kv_heads + torch.arange(kv_heads, device=device)
        tile = torch.arange(context // TILE, device=device)
        self._tiles = (head[:, :, None] * (positions // TILE) + tile).view(-1)
        last = rows.positions if causal else rows.positions[:, -1:].expand_as(rows.positions)
        hidden = torch.arange(context, device=device) > last[:, :, None]
        mask = torch.zeros(hidden.shape, dtype=cache.keys.dtype, device=device)
        mask = mask.masked_fill(hidden, -torch.inf)
        # Query heads that share a key head are laid beside each other, as further rows: then keys
        # and values need not be repeated for them.
        mask = mask[:, None].repeat(1, kv_heads, self._group, 1)
        self._mask = mask.view(-1, self._group * rows.positions.shape[1], context)

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Store the rows' keys and values, and attend."""
        rows, length = self._rows.positions.shape
        kv_heads, head_dim = keys.shape[1:]
        all_keys = self._context_with(self._cache.keys[layer], keys)
        all_values = self._context_with(self._cache.values[layer], values)
        grouped = queries.reshape(rows, length, kv_heads, self._group, head_dim)
        grouped = grouped.permute(0, 2, 3, 1, 4).reshape(rows * kv_heads, -1, head_dim)
        scores = torch.baddbmm(self._mask, grouped, all_keys.mT, alpha=head_dim**-0.5)
        attended = torch.bmm(scores.softmax(-1), all_values)
        attended = attended.view(rows, kv_heads, self._group, length, head_dim)
        return attended.permute(0, 3, 1, 2, 4).reshape(rows * length, -1)

    def _context_with(self, cached: Tensor, new: Tensor) -> Tensor:
        """`[rows × kv_heads, context, head_dim]` of a layer, with the new ones stored in it."""
        self._rows.store(cached, new)
        head_dim = new.shape[-1]
        tiles = cached.view(-1, TILE * head_dim).index_select(0, self._tiles)
        return tiles.view(-1, self._context, head_dim)


TakeIn = Callable[[Tensor, Rows], None]
"""`(features [rows × length, taps × hidden], rows)`: what a drafter does with a step's features,
made of tensors alone. It may take in what will not stand, since what stands comes again."""

_SLOT, _START, _COUNT, _TOKENS = range(4)  # columns of the input


class StaticForward:
    """Computes spans as `Target.forward` does, in static shapes where they are short.

    Trees, and spans that are longer than the longest shape, pieces of prompts, go the ragged way.

    Args:
        target: the model.
        cache: one slot more than there are sequences.
        shapes: what steps are padded to.
        graphs: runs them.
        taps: layers whose outputs are wanted as features.
        take_in: what becomes of the features of static steps, inside the step; they are given
            back as those of other steps are if it is None.
    """

    def __init__(
        self,
        target: Target,
        cache: KvCache,
        shapes: StaticShapes,
        graphs: Graphs,
        *,
        taps: Sequence[int] = (),
        take_in: TakeIn | None = None,
    ) -> None:
        self._target = target
        self._decoder = target.decoder
        self._cache = cache
        self._shapes = shapes
        self._graphs = graphs
        self._taps = tuple(taps)
        self._take_in = take_in
        self._spare = cache.keys.shape[1] - 1
        self._longest = shapes.lengths[-1]
        device = target.decoder.device
        rows = shapes.rows[-1]
        self._inputs = InputTable(rows, _TOKENS + self._longest, torch.int64, device)
        # Laid out by the step's own shape, not by the largest, hence flat.
        most = rows * self._longest
        self._logits = torch.zeros((most, target.vocab_size), device=device)
        width = 0 if take_in is not None else len(self._taps) * target.decoder.config.hidden_size
        self._features = torch.zeros((most, width), dtype=target.decoder.dtype, device=device)

    def __call__(self, spans: Sequence[Span]) -> Forward:
        """Compute the spans' tokens, storing their keys and values.

        What is returned is overwritten by the next call. Features that have been taken in are
        None.
        """
        short = [span for span in spans if self._is_short(span)]
        long = [span for span in spans if not self._is_short(span)]
        found: dict[int, tuple[Tensor, Tensor | None]] = {}
        if long:
            ragged = self._target.forward(long, self._cache, self._taps)
            features = ragged.features or [None] * len(long)
            found |= {
                span.slot: each
                for span, each in zip(long, zip(ragged.logits, features, strict=True), strict=True)
            }
        if short:
            found |= {
                span.slot: each for span, each in zip(short, self._together(short), strict=True)
            }
        ordered = [found[span.slot] for span in spans]
        return Forward([logits for logits, _ in ordered], [features for _, features in ordered])

    def _is_short(self, span: Span) -> bool:
        return span.tree is None and len(span.tokens) <= self._longest

    def prepare(self) -> None:
        """Record every shape, on padding alone."""
        self._inputs.send([], (self._spare, 0, 0))
        for shape in self._shapes:
            self._graphs.prepare(("target", *shape), partial(self._step, *shape))

    def _together(self, spans: Sequence[Span]) -> list[tuple[Tensor, Tensor | None]]:
        rows, length, context = self._shapes.fit(
            len(spans), max(len(span.tokens) for span in spans), max(span.stop for span in spans)
        )
        self._inputs.send(
            [(span.slot, span.start, len(span.tokens), *span.tokens) for span in spans],
            padding=(self._spare, 0, 0),
        )
        step = partial(self._step, rows, length, context)
        self._graphs.run(("target", rows, length, context), step)
        logits = self._logits[: rows * length].view(rows, length, -1)
        features = self._features[: rows * length].view(rows, length, -1)
        given_back = bool(self._taps) and self._take_in is None
        return [
            (
                logits[row, len(span.tokens) - span.logits : len(span.tokens)],
                features[row, : len(span.tokens)] if given_back else None,
            )
            for row, span in enumerate(spans)
        ]

    def _step(self, rows: int, length: int, context: int) -> None:
        inputs = self._inputs.table[:rows]
        placed = Rows.at(
            inputs[:, _SLOT], inputs[:, _START], inputs[:, _COUNT], length, self._spare
        )
        attention = StaticAttention(
            placed,
            self._cache,
            heads=self._decoder.config.heads,
            context=context,
            causal=True,
        )
        hidden, features = self._decoder.hidden_states(
            inputs[:, _TOKENS : _TOKENS + length].reshape(-1),
            placed.positions.view(-1),
            attention,
            self._taps,
        )
        self._logits[: rows * length] = self._decoder.logits(hidden)
        if features is None:
            return
        if self._take_in is not None:
            self._take_in(features, placed)
        else:
            self._features[: rows * length] = features
