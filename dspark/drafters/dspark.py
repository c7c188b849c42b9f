"""The DSpark drafter: a whole block in one parallel pass, then a cheap pass from token to token.

Source: arXiv 2607.05147, and the checkpoint layout of its published drafters. The block reads the
anchor followed by mask tokens. Every position of it sees the whole block and, at the positions
before, not a cache of the drafter's own past but features of the target: its hidden states at
a few layers, which hold far more than a small model would find out by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from dspark.attention import Attention, SlotAttention
from dspark.cached_rows import CachedRows, rows_of
from dspark.calibration import Calibrations
from dspark.checkpoint import Checkpoint, Weights, find_checkpoint
from dspark.decoder import DecoderConfig, DecoderLayer, Rotation
from dspark.drafters.dspark_checkpoint import (
    check_match,
    drafted_vocabulary,
    embedding_of_previous,
    integer,
    partial_head,
    tapped_layers,
)
from dspark.drafters.greedy import GreedyBlocks, takes_likeliest
from dspark.drafters.growing import GrowingTree, Outlook, Place, grow
from dspark.drafters.heads import NONE, ConfidenceHead, NoHead, VanillaHead, sequential_head
from dspark.drafters.protocol import Anchor, Draft
from dspark.fast_path import compiled_drafting, compiled_stack
from dspark.kv_cache import KvCache
from dspark.target import Target
from dspark.tree import TreeShape

if TYPE_CHECKING:
    from dspark.compiled.drafting import CompiledDrafting
    from dspark.compiled.stack import CompiledStack

ARCHITECTURE = "Qwen3DSparkModel"
"""What a checkpoint's `config.json` calls it."""


@dataclass(frozen=True)
class _Block:
    """An anchor and the masked positions after it, as a span of rows."""

    slot: int
    start: int
    stop: int


class DSparkDrafter:
    """Drafts for one target, whose embedding and head it shares.

    A drafter may draft from a part of the vocabulary: `draft_vocab_size` in its configuration, and
    in its weights `d2t [draft_vocab_size]`, the target's ids of those tokens, with `markov_w2` and,
    unless those rows of the target's are to be taken, `lm_head` for them alone. The head is most
    of a small drafter's work. Other tokens then have probability 0 in the draft, which leaves
    verification as lossless as it was.

    Attributes:
        block_size: how many tokens it proposes.
        taps: the target layers it reads.
        shape: of its own layers.
        mask_token: stands for the tokens that are to be found.
        head: its sequential stage.
        calibrations: of its confidences.
    """

    def __init__(self, checkpoint: Checkpoint, target: Target) -> None:
        config = checkpoint.config
        shape = DecoderConfig.from_config(config)
        self.shape = shape
        self._target = target.decoder
        self.block_size = integer(config, "block_size")
        self.taps = tapped_layers(config)
        self.mask_token = integer(config, "mask_token_id")
        check_match(checkpoint, shape, self.taps, target)

        weights = Weights(checkpoint, self._target.precision.of_drafter, self._target.device)
        kind = config.get("markov_head_type", "vanilla")
        hidden, rank = shape.hidden_size, 0 if kind == NONE else integer(config, "markov_rank")
        self._fuse = weights.linear(["fc"], [hidden], hidden * len(self.taps))
        self._feature_norm = weights.dense("hidden_norm.weight", (hidden,))
        self._final_norm = weights.dense("norm.weight", (hidden,))
        self._layers = [
            DecoderLayer(shape, index, weights, f"layers.{index}") for index in range(shape.layers)
        ]
        self._stack = compiled_stack(shape, self._layers)
        # Features go through no layer on their way to the keys and values of each, so those of
        # all layers are one product.
        self._context = weights.linear(
            [f"layers.{i}.self_attn.{n}_proj" for i in range(shape.layers) for n in "kv"],
            [shape.kv_width] * (2 * shape.layers),
            hidden,
            bias=shape.qkv_bias,
        )
        self._key_norms = torch.stack(
            [
                weights.dense(f"layers.{index}.self_attn.k_norm.weight", (shape.head_dim,))
                for index in range(shape.layers)
            ]
        )
        self._previous = embedding_of_previous(weights, shape.vocab_size, rank)
        self._vocabulary = drafted_vocabulary(checkpoint, shape.vocab_size, weights)
        drafted = shape.vocab_size if self._vocabulary is None else len(self._vocabulary)
        self._head = (
            self._target.head
            if self._vocabulary is None
            else partial_head(weights, target, self._vocabulary.ids)
        )
        self.head = sequential_head(kind, weights, drafted, hidden, rank)
        self._confidence = None
        if config.get("enable_confidence_head"):
            with_markov = bool(config.get("confidence_head_with_markov"))
            self._confidence = ConfidenceHead(weights, hidden, rank, with_markov)
        self.calibrations = Calibrations.of_checkpoint(checkpoint.folder)
        self._inverse_wavelengths = shape.rope.inverse_wavelengths(shape.head_dim).to(
            self._target.device
        )
        self._compiled = self._compiled_drafting()

    @classmethod
    def load(cls, source: str | Path, target: Target) -> DSparkDrafter:
        """Load it from a folder or hub id, in the target's precision and on its device.

        Raises:
            CheckpointError: it is not there, incomplete, or of an unknown kind.
            DrafterMismatch: it was trained for another model.
        """
        checkpoint = Checkpoint(find_checkpoint(source))
        with torch.inference_mode():
            return cls(checkpoint, target)

    def new_cache(self, slots: int, context_tokens: int) -> KvCache:
        """Keys and values of the target's features, with room for a block behind the context."""
        shape = self.shape
        return KvCache(
            layers=shape.layers,
            slots=slots,
            kv_heads=shape.kv_heads,
            context_tokens=context_tokens + self.block_size,
            head_dim=shape.head_dim,
            dtype=self._target.dtype,
            device=self._target.device,
        )

    def extend(self, cache: KvCache | None, slot: int, start: int, features: Tensor) -> None:
        """Take in the target's tapped outputs `[tokens, taps × hidden]` at `start …`."""
        assert cache is not None
        if self._compiled is not None and self._stack is not None:
            rotations = self._stack.rotations_between(start, start + len(features))
            self._compiled.take_in(cache, slot, start, features, rotations)
            return
        positions = torch.arange(start, start + len(features), device=features.device)
        keys, values = self.context(features, positions)
        for layer in range(self.shape.layers):
            cache.append(layer, slot, start, keys[:, layer], values[:, layer])

    def context(self, features: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """What the layers see of the target.

        Args:
            features: its tapped outputs `[tokens, taps × hidden]`.
            positions: theirs, `[tokens]`.

        Returns:
            Keys and values, `[tokens, layers, kv_heads, head_dim]`.
        """
        shape = self.shape
        fused = self._norm(self._fuse(features), self._feature_norm)
        both = self._context(fused).view(
            len(features), shape.layers, 2, shape.kv_heads, shape.head_dim
        )
        normed = functional.rms_norm(both[:, :, 0], (shape.head_dim,), eps=shape.norm_epsilon)
        keys = (normed * self._key_norms[:, None]).flatten(1, 2)
        return self._rotation(positions)(keys).view_as(normed), both[:, :, 1]

    def draft(self, cache: KvCache | None, anchors: Sequence[Anchor]) -> list[Draft]:
        """Propose a block after each anchor."""
        assert cache is not None
        if (greedy := self._greedy(anchors)) is not None:
            return greedy.chains(self._before_norm(cache, anchors), anchors)
        hidden = self.block_hidden(cache, anchors)
        base = self.base_logits(hidden)
        tokens: list[list[int]] = [[] for _ in anchors]
        distributions: list[list[Tensor]] = [[] for _ in anchors]
        confidences: list[Tensor] = []
        previous = [anchor.token for anchor in anchors]
        vocabulary = self._vocabulary
        samplers = [
            anchor.sampler if vocabulary is None else vocabulary.sampler(anchor.sampler)
            for anchor in anchors
        ]
        chosen: list[list[int]] = [[] for _ in anchors]  # as places in the drafter's vocabulary
        for logits, confidence in self._positions(hidden, base, previous):
            confidences.append(confidence)
            for row, sampler in enumerate(samplers):
                choice = sampler.choose(logits[row], chosen[row])
                chosen[row].append(choice.token)
                if vocabulary is not None:
                    choice = vocabulary.choice(choice)
                if choice.distribution is not None:
                    distributions[row].append(choice.distribution)
                previous[row] = choice.token
                tokens[row].append(choice.token)
        confidence_rows = torch.stack(confidences, -1).sigmoid().tolist()
        return [
            Draft(
                tuple(tokens[row]),
                tuple(distributions[row]),
                self.calibrations.of(greedy=anchor.sampler.params.greedy).apply(
                    confidence_rows[row]
                ),
            )
            for row, anchor in enumerate(anchors)
        ]

    def draft_trees(
        self, cache: KvCache | None, anchors: Sequence[Anchor], shape: TreeShape
    ) -> list[Draft]:
        """Propose a tree after each anchor, no deeper than a block, or than anchors have use for.

        A place's hidden state is the same for all its candidates: the sequential stage tells them
        apart, by the token before.
        """
        assert cache is not None
        shape = shape.taking(shape.within(self._wanted(anchors), len(shape)))
        greedy = None if shape.seconds is None else self._greedy(anchors)
        if greedy is not None:
            return greedy.with_seconds(self._before_norm(cache, anchors), anchors, shape)
        hidden = self.block_hidden(cache, anchors)
        base = self.base_logits(hidden)
        states: dict[Place, Tensor] = {}
        calibrations = [
            self.calibrations.of(greedy=anchor.sampler.params.greedy) for anchor in anchors
        ]

        def look_out(trees: Sequence[GrowingTree], places: Sequence[Place]) -> Outlook:
            rows = [index for index, _ in places]
            nodes = [node for _, node in places]
            depth = len(shape.path(nodes[0]))
            if depth == 0:
                state = self.head.start(len(places))
            else:
                state = torch.stack([states[index, shape.parents[node]] for index, node in places])
            logits, confidence, state = self.position(
                hidden[rows, depth],
                base[rows, depth],
                [trees[index].token(node) for index, node in places],
                state,
            )
            states.update(zip(places, state, strict=True))
            calibrated = [
                calibrations[row].at(depth, each)
                for row, each in zip(rows, confidence.sigmoid().tolist(), strict=True)
            ]
            return Outlook(logits, calibrated, (None,) * len(places))

        return grow(anchors, shape, look_out)

    def block_hidden(self, cache: KvCache, anchors: Sequence[Anchor]) -> Tensor:
        """The parallel stage: `[anchors, tokens, hidden]`, after the final norm.

        That is a block, or the first tokens of one, if no anchor has use for more.
        """
        hidden = self._norm(self._before_norm(cache, anchors), self._final_norm)
        return hidden.view(len(anchors), -1, self.shape.hidden_size)

    def _before_norm(self, cache: KvCache, anchors: Sequence[Anchor]) -> Tensor:
        size = self._wanted(anchors)
        if self._stack is not None:
            return self._through_stack(self._stack, cache, anchors, size)
        blocks = [_Block(each.slot, each.position, each.position + size) for each in anchors]
        masks = [self.mask_token] * (size - 1)
        token_ids = [token for anchor in anchors for token in (anchor.token, *masks)]
        positions = [position for block in blocks for position in range(block.start, block.stop)]
        device = self._target.device
        # The block's own keys and values lie where the next features will overwrite them.
        return self._through_layers(
            torch.tensor(token_ids, device=device),
            torch.tensor(positions, device=device),
            SlotAttention(blocks, cache, heads=self.shape.heads, causal=False),
        )

    def _through_stack(
        self, stack: CompiledStack, cache: KvCache, anchors: Sequence[Anchor], size: int
    ) -> Tensor:
        rows = CachedRows.of_blocks(
            cache, [each.slot for each in anchors], [each.position for each in anchors], size
        )
        masks = [self.mask_token] * (size - 1)
        token_ids = [token for anchor in anchors for token in (anchor.token, *masks)]
        hidden = self._target.embed(torch.tensor(token_ids))
        stack(hidden, rows.places[:, 1], rows)
        return hidden

    def _wanted(self, anchors: Sequence[Anchor]) -> int:
        """How many places are drafted: a block, or fewer if no anchor has use for more."""
        wanted = max(self.block_size if each.most is None else each.most for each in anchors)
        return min(self.block_size, wanted)

    def block(self, token_ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """The parallel stage of blocks laid one after the other.

        Args:
            token_ids: `[tokens]`, of each block the anchor and then masks.
            positions: `[tokens]`.
            attention: who holds the context.

        Returns:
            `[tokens, hidden]`, after the final norm.
        """
        return self._norm(self._through_layers(token_ids, positions, attention), self._final_norm)

    def _through_layers(self, token_ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        hidden = self._target.embed(token_ids)
        if self._stack is not None and (rows := rows_of(attention)) is not None:
            self._stack(hidden, positions, rows)
        else:
            rotation = self._rotation(positions)
            for layer in self._layers:
                hidden = layer(hidden, rotation, attention)
        return hidden

    def base_logits(self, hidden: Tensor) -> Tensor:
        """`[anchors, block_size, hidden]` → `[anchors, block_size, drafted vocab]` float32."""
        return self._head(hidden.flatten(0, 1)).float().view(*hidden.shape[:2], -1)

    def position(
        self, hidden: Tensor, base: Tensor, previous: Sequence[int] | Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The sequential stage at one position.

        Args:
            hidden: `[anchors, hidden]` of that position.
            base: its base logits.
            previous: the token before it, one an anchor.
            state: the head's.

        Returns:
            Logits `[anchors, vocab]` float32, the confidence's logits `[anchors]`, and the state.
        """
        logits, confidence, state = self._own_position(hidden, base, previous, state)
        whole = logits if self._vocabulary is None else self._vocabulary.spread(logits)
        return whole, confidence, state

    def _positions(
        self, hidden: Tensor, base: Tensor, previous: Sequence[int]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Logits and the confidence's logits of one position after the other.

        Args:
            hidden: `[anchors, block_size, hidden]`.
            base: its base logits.
            previous: the token before the position that is asked for next, one an anchor. It is
                looked at anew for each, and never where there is no sequential stage.
        """
        if isinstance(self.head, NoHead):
            yield from zip(base.unbind(1), self._confidences(hidden).unbind(1), strict=True)
            return
        state = self.head.start(len(previous))
        for here, base_here in zip(hidden.unbind(1), base.unbind(1), strict=True):
            logits, confidence, state = self._own_position(here, base_here, previous, state)
            yield logits, confidence

    def _own_position(
        self, hidden: Tensor, base: Tensor, previous: Sequence[int] | Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `position`; logits of the drafter's own vocabulary alone."""
        before = functional.embedding(
            torch.as_tensor(previous, device=hidden.device), self._previous
        ).to(hidden.dtype)
        bias, state = self.head(hidden, before, state)
        return base + bias.float(), self._confidences(hidden, before), state

    def _confidences(self, hidden: Tensor, before: Tensor | None = None) -> Tensor:
        """Logits `[…]` of `[…, hidden]` and what is known of the token before, `[…, rank]`."""
        if self._confidence is None:
            return torch.full(hidden.shape[:-1], torch.inf, device=hidden.device)
        return self._confidence(hidden, hidden[..., :0] if before is None else before)

    def _greedy(self, anchors: Sequence[Anchor]) -> GreedyBlocks | None:
        """What chooses the blocks of these in one compiled call, if that can be done."""
        if self._compiled is None or not all(takes_likeliest(each.sampler) for each in anchors):
            return None
        return GreedyBlocks(self._compiled, self._vocabulary, self.calibrations.of(greedy=True))

    def _compiled_drafting(self) -> CompiledDrafting | None:
        confidence, rank = self._confidence, self._previous.shape[1]
        if self._stack is None or confidence is None or type(self.head) is not VanillaHead:
            return None
        if confidence.weight.shape[1] != self.shape.hidden_size + rank:
            return None
        ids = torch.arange(self.shape.vocab_size)
        return compiled_drafting(
            fuse=self._fuse,
            feature_norm=self._feature_norm,
            context=self._context,
            key_norms=self._key_norms,
            norm=self._final_norm,
            head=self._head,
            ids=ids if self._vocabulary is None else self._vocabulary.ids,
            embedding=self._previous,
            spread=self.head.out,
            confidence=confidence.weight[0],
            doubt=float(confidence.bias),
            epsilon=self.shape.norm_epsilon,
            taps=len(self.taps),
        )

    def _rotation(self, positions: Tensor) -> Rotation:
        return Rotation.at(positions, self._inverse_wavelengths, self._target.dtype)

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(hidden, weight.shape, weight, self.shape.norm_epsilon)
