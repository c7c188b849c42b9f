"""Drafting with a language model, one token after the other: what small models and early layers do.

The draft costs a forward of the model for each token, one for each level of a tree.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from dspark.drafters.growing import GrowingTree, Outlook, Place, grow, stacked
from dspark.drafters.protocol import Anchor, Draft
from dspark.kv_cache import KvCache
from dspark.target import Span, Target
from dspark.tree import ANCHOR, TreeShape

DEFAULT_BLOCK_SIZE = 4

_CONFIDENCE_STEPS = 10
"""Into how many ranges of the model's own probability acceptance is kept."""


class AutoregressiveDrafter(ABC):
    """Base of drafters that draft with a causal language model; see `Drafter` and `Branching`.

    A token's confidence starts from the model's largest probability in its place, which does not
    depend on what is drawn there, and is learnt from then on.

    Args:
        model: drafts.
        vocab_size: the target's; the model's logits are cut to it, or filled up.
        block_size: how many tokens are proposed, without a tree.
    """

    taps: Sequence[int] = ()

    def __init__(self, model: Target, vocab_size: int, block_size: int) -> None:
        self.model = model
        self.block_size = block_size
        self._vocab_size = vocab_size

    @abstractmethod
    def new_cache(self, slots: int, context_tokens: int) -> KvCache | None:
        """See `Drafter`."""

    @abstractmethod
    def first_span(self, cache: KvCache, anchor: Anchor, tokens_left: int) -> Span:
        """What has to be computed up to the anchor.

        If that is more than `tokens_left`, then only so much of it, and no logits are asked for.
        """

    @abstractmethod
    def computed(self, cache: KvCache, slot: int, stop: int, tokens: Sequence[int]) -> None:
        """Told what the slot holds now: whatever it held up to `stop`, and then these tokens."""

    def extend(  # noqa: B027  # without taps nothing is shown
        self, cache: KvCache | None, slot: int, start: int, features: Tensor
    ) -> None:
        """It reads no features."""

    def draft(self, cache: KvCache | None, anchors: Sequence[Anchor]) -> list[Draft]:
        """Propose a block after each anchor; nothing where the model is still behind."""
        assert cache is not None
        capacity = cache.keys.shape[3]
        rows = self._first_rows(cache, anchors)
        blocks = {anchor.slot: _Block(anchor) for anchor in anchors if anchor.slot in rows}
        for place in range(1, self.block_size + 1):
            for slot, logits in rows.items():
                blocks[slot].choose(logits)
            # The last token drafted is not computed: nothing is drafted after it.
            spans = [
                Span(slot, blocks[slot].anchor.position + place, blocks[slot].tokens[-1:])
                for slot in rows
                if place < self.block_size and blocks[slot].anchor.position + place < capacity
            ]
            if not spans:
                break
            rows = self._rows_after(cache, spans)
        for slot, block in blocks.items():
            self.computed(cache, slot, block.anchor.position + 1, block.tokens[:-1])
        return [
            blocks[anchor.slot].draft() if anchor.slot in blocks else Draft() for anchor in anchors
        ]

    def draft_trees(
        self, cache: KvCache | None, anchors: Sequence[Anchor], shape: TreeShape
    ) -> list[Draft]:
        """Propose a tree after each anchor; nothing where the model is still behind.

        At each level what has grown so far is computed anew: few rows more, which cost little
        beside the model's weights, and no room in the cache but the tree's own.
        """
        assert cache is not None
        room = min((cache.keys.shape[3] - 1 - anchor.position for anchor in anchors), default=0)
        shape = shape.taking(shape.within(len(shape), room))
        rows = self._first_rows(cache, anchors)
        caught_up = [anchor for anchor in anchors if anchor.slot in rows]

        def look_out(trees: Sequence[GrowingTree], places: Sequence[Place]) -> Outlook:
            if places[0][1] == ANCHOR:
                logits = torch.stack([rows[trees[index].anchor.slot] for index, _ in places])
            else:
                logits = self._after_nodes(cache, trees, places)
            confidence = logits.softmax(-1).amax(-1).tolist()
            return Outlook(logits, confidence, [_evidence(each) for each in confidence])

        grown = grow(caught_up, shape, look_out)
        drafts = {anchor.slot: draft for anchor, draft in zip(caught_up, grown, strict=True)}
        return [drafts.get(anchor.slot, Draft()) for anchor in anchors]

    def _first_rows(self, cache: KvCache, anchors: Sequence[Anchor]) -> dict[int, Tensor]:
        """The logits `[vocab]` after each anchor, by slot, of those that the model has reached."""
        spans: list[Span] = []
        left = CATCH_UP_TOKENS
        for anchor in anchors:
            span = self.first_span(cache, anchor, max(1, left))
            spans.append(span)
            left -= len(span.tokens)
        rows = self._rows_after(cache, spans)
        for span in spans:
            self.computed(cache, span.slot, span.start, span.tokens)
        return rows

    def _rows_after(self, cache: KvCache, spans: Sequence[Span]) -> dict[int, Tensor]:
        """The logits `[vocab]` after each span that wants any, by slot."""
        logits = self.model.forward(spans, cache).logits
        return {
            span.slot: self._fitted(each)[0]
            for span, each in zip(spans, logits, strict=True)
            if span.logits
        }

    def _after_nodes(
        self, cache: KvCache, trees: Sequence[GrowingTree], places: Sequence[Place]
    ) -> Tensor:
        """The logits after nodes that have grown, `[places, vocab]`."""
        spans: list[Span] = []
        row_of: dict[Place, int] = {}
        row = 0
        for index in dict.fromkeys(index for index, _ in places):
            tree = trees[index]
            asked = [node for other, node in places if other == index]
            grown = sorted({each for node in asked for each in tree.shape.path(node)})
            shape = tree.shape.taking(grown)
            order = [grown[each] for each in shape.depth_first()]
            tokens = [tree.anchor.token, *(tree.tokens[node] for node in order)]
            spans.append(
                Span(
                    tree.anchor.slot,
                    tree.anchor.position,
                    self.known(tokens),
                    logits=len(order),
                    tree=tree.shape.taking(order),
                )
            )
            row_of |= {(index, node): row + place for place, node in enumerate(order)}
            row += len(order)
        logits = stacked(self.model.forward(spans, cache).logits)
        return self._fitted(logits[[row_of[place] for place in places]])

    def known(self, tokens: Sequence[int]) -> Sequence[int]:
        """Tokens as the model takes them: those beyond its table, which only padding is, as 0."""
        if self.model.vocab_size >= self._vocab_size:
            return tokens
        return [token if token < self.model.vocab_size else 0 for token in tokens]

    def _fitted(self, logits: Tensor) -> Tensor:
        """Logits `[rows, model's vocab]` as `[rows, target's vocab]`."""
        missing = self._vocab_size - logits.shape[-1]
        if missing == 0:
            return logits
        return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)


CATCH_UP_TOKENS = 64
"""How many tokens the model takes in before a draft, over all sequences: a long prompt comes in
pieces, as it does in the target's steps, so that it holds up nobody's tokens."""


class _Block:
    """One anchor's draft as far as it has come."""

    def __init__(self, anchor: Anchor) -> None:
        self.anchor = anchor
        self.tokens: list[int] = []
        self._distributions: list[Tensor] = []
        self._confidence: list[float] = []

    def choose(self, logits: Tensor) -> None:
        self._confidence.append(float(logits.softmax(-1).amax()))
        choice = self.anchor.sampler.choose(logits, self.tokens)
        self.tokens.append(choice.token)
        if choice.distribution is not None:
            self._distributions.append(choice.distribution)

    def draft(self) -> Draft:
        return Draft(
            tuple(self.tokens),
            tuple(self._distributions),
            tuple(self._confidence),
            evidence=tuple(_evidence(each) for each in self._confidence),
        )


def _evidence(confidence: float) -> Hashable:
    return "largest probability", int(confidence * _CONFIDENCE_STEPS)
