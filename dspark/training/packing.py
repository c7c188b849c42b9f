"""Many blocks of a few dialogues in one batch, none seeing more than it will when drafting.

Every token of an answer can be an anchor. The blocks behind all anchors of a dialogue share its
context features: a block sees those of the positions before its anchor, and itself. It never sees
another block, and no feature of its anchor or beyond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from dspark.training.corpus import Dialogue
from dspark.training.features import DialogueFeatures


class Piece(NamedTuple):
    """One dialogue's part of a batch: rows of its context, and its anchors."""

    context: slice
    anchors: slice


@dataclass(frozen=True)
class Batch:
    """Blocks behind anchors, and what the target says about their tokens.

    Attributes:
        taps: `[context, taps × hidden]`, dialogue after dialogue.
        context_positions: `[context]`.
        pieces: which context belongs to which anchors.
        anchor_positions: `[anchors]`.
        tokens: `[anchors, block + 1]`, the anchor and the block; arbitrary where not valid.
        valid: `[anchors, block]`, whether the answer goes that far.
        finals: `[positions, hidden]`, the target's last hidden states.
        log_normalisers: `[positions]`.
        predicting: `[anchors, block]`, which row of those predicts each token of the block.
    """

    taps: Tensor
    context_positions: Tensor
    pieces: tuple[Piece, ...]
    anchor_positions: Tensor
    tokens: Tensor
    valid: Tensor
    finals: Tensor
    log_normalisers: Tensor
    predicting: Tensor

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        moved = {name: value.to(device) for name, value in vars(self).items() if name != "pieces"}
        return Batch(pieces=self.pieces, **moved)


def possible_anchors(dialogue: Dialogue) -> range:
    """The positions that have something to predict: all of the answer but its last token."""
    return range(len(dialogue.prompt), len(dialogue.tokens) - 1)


def pack(parts: Sequence[tuple[Dialogue, DialogueFeatures, Sequence[int]]], block: int) -> Batch:
    """Put dialogues, their features and the chosen anchors (ascending, at least one) together."""
    taps, context_positions, pieces = [], [], []
    anchor_positions, tokens, valid = [], [], []
    finals, log_normalisers, predicting = [], [], []
    offsets = torch.arange(block + 1)
    contexts = blocks = answers = 0
    for dialogue, features, chosen in parts:
        anchors = torch.tensor(chosen)
        seen = int(anchors[-1])  # positions before the last anchor are all the context there is
        last = len(dialogue.tokens) - 1
        positions = anchors[:, None] + offsets
        within = positions.clamp_max(last)
        taps.append(features.taps[:seen])
        context_positions.append(torch.arange(seen))
        pieces.append(Piece(slice(contexts, contexts + seen), slice(blocks, blocks + len(anchors))))
        anchor_positions.append(anchors)
        tokens.append(torch.tensor(dialogue.tokens)[within])
        valid.append(positions[:, 1:] <= last)
        finals.append(features.finals)
        log_normalisers.append(features.log_normalisers)
        predicting.append(within[:, :-1] - len(dialogue.prompt) + answers)
        contexts += seen
        blocks += len(anchors)
        answers += len(features.finals)
    return Batch(
        torch.cat(taps),
        torch.cat(context_positions),
        tuple(pieces),
        torch.cat(anchor_positions),
        torch.cat(tokens),
        torch.cat(valid),
        torch.cat(finals),
        torch.cat(log_normalisers),
        torch.cat(predicting),
    )


class PackedAttention:
    """Attention of every block over its own context and itself (see `dspark.attention.Attention`).

    A dialogue is one call: the blocks' own keys lie behind those of the context, and a mask hides
    from each block what is not before its anchor, and all other blocks.

    Args:
        batch: which anchors belong to which context.
        keys: of the context, `[context, layers, kv_heads, head_dim]`, rotated.
        values: likewise.
    """

    def __init__(self, batch: Batch, keys: Tensor, values: Tensor) -> None:
        self._keys = keys
        self._values = values
        self._block = batch.valid.shape[1]
        self._pieces = [(piece, self._visible(batch, piece)) for piece in batch.pieces]

    def _visible(self, batch: Batch, piece: Piece) -> Tensor:
        """`[blocks' tokens, context and blocks' tokens]`, of one dialogue."""
        anchors = batch.anchor_positions[piece.anchors].repeat_interleave(self._block)
        of_context = batch.context_positions[piece.context] < anchors[:, None]
        blocks = torch.arange(len(anchors), device=anchors.device) // self._block
        return torch.cat((of_context, blocks == blocks[:, None]), 1)

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """`[anchors × block, heads, head_dim]` → `[anchors × block, heads × head_dim]`."""
        group = queries.shape[1] // keys.shape[1]
        attended = []
        for piece, visible in self._pieces:
            rows = slice(piece.anchors.start * self._block, piece.anchors.stop * self._block)
            found = functional.scaled_dot_product_attention(
                _by_key_head(queries[rows], group),
                _by_key_head(torch.cat((self._keys[piece.context, layer], keys[rows])), 1),
                _by_key_head(torch.cat((self._values[piece.context, layer], values[rows])), 1),
                attn_mask=visible.repeat_interleave(group, 0),
            )
            found = found.reshape(keys.shape[1], -1, group, keys.shape[2]).transpose(0, 1)
            attended.append(found.flatten(1))
        return torch.cat(attended)


def _by_key_head(rows: Tensor, group: int) -> Tensor:
    """`[tokens, heads, head_dim]` → `[1, key heads, tokens × group, head_dim]`.

    The queries that share a key head lie where those of several tokens would.
    """
    by_group = rows.view(len(rows), -1, group, rows.shape[2])
    return by_group.transpose(0, 1).flatten(1, 2)[None]
