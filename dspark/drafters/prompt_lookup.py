"""Prompt lookup: what followed the last few tokens when they came before may follow them again.

It costs next to nothing and needs no model. It pays where an answer repeats its prompt or itself:
summaries, code, forms, quotations (Saxena, "Prompt Lookup Decoding", 2023).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dspark.drafters.protocol import Anchor, Draft
from dspark.kv_cache import KvCache
from dspark.target import Target
from dspark.tree import ANCHOR, TreeShape

DEFAULT_BLOCK_SIZE = 5


class PromptLookupDrafter:
    """Drafts from the prompt and the answer so far; see `Drafter` and `Branching`.

    It proposes what followed the longest and, among those as long, the latest match. Its
    proposals are certain, so each one's distribution is one-hot. How much a match of some length
    is worth is learnt.

    Args:
        target: whose tokens are drafted.
        block_size: how many are proposed.
        longest_match: how many tokens are compared at most.
        shortest_match: how many have to agree.
    """

    taps: Sequence[int] = ()

    def __init__(
        self,
        target: Target,
        block_size: int = DEFAULT_BLOCK_SIZE,
        longest_match: int = 4,
        shortest_match: int = 2,
    ) -> None:
        self.block_size = block_size
        self._longest = longest_match
        self._shortest = shortest_match
        self._vocab_size = target.vocab_size
        self._device = target.decoder.device

    def new_cache(self, slots: int, context_tokens: int) -> KvCache | None:
        """It needs none."""
        return None

    def extend(self, cache: KvCache | None, slot: int, start: int, features: Tensor) -> None:
        """It reads no features."""

    def draft(self, cache: KvCache | None, anchors: Sequence[Anchor]) -> list[Draft]:
        """Propose what followed the best match, if there is one."""
        return [self._draft(anchor) for anchor in anchors]

    def draft_trees(
        self, cache: KvCache | None, anchors: Sequence[Anchor], shape: TreeShape
    ) -> list[Draft]:
        """Propose what followed each of several matches, with what they share laid together.

        Of the shape only its size counts, and how deep it is.
        """
        return [self._tree(anchor, len(shape), shape.depth) for anchor in anchors]

    def _draft(self, anchor: Anchor) -> Draft:
        tokens, ends, lengths = self._matches(anchor)
        if not len(ends):
            return Draft()
        after, matched = int(ends[0]) + 1, int(lengths[0])
        proposed = tuple(tokens[after : after + self.block_size].tolist())
        return Draft(
            proposed,
            self._one_hot(anchor, proposed),
            (_prior(matched),) * len(proposed),
            evidence=tuple(_evidence(matched, place) for place in range(len(proposed))),
        )

    def _tree(self, anchor: Anchor, nodes: int, depth: int) -> Draft:
        tokens, ends, lengths = self._matches(anchor)
        parents: list[int] = []
        proposed: list[int] = []
        confidence: list[float] = []
        evidence: list[Hashable] = []
        node_of: dict[tuple[int, int], int] = {}  # by parent and token
        for end, matched in zip(ends.tolist(), lengths.tolist(), strict=True):
            parent = ANCHOR
            for place, token in enumerate(tokens[end + 1 : end + 1 + depth].tolist()):
                if (parent, token) not in node_of:
                    if len(parents) == nodes:
                        break
                    node_of[parent, token] = len(parents)
                    parents.append(parent)
                    proposed.append(token)
                    confidence.append(_prior(matched))
                    evidence.append(_evidence(matched, place))
                parent = node_of[parent, token]
            if len(parents) == nodes:
                break
        return Draft(
            tuple(proposed),
            self._one_hot(anchor, proposed),
            tuple(confidence),
            TreeShape(tuple(parents)),
            tuple(evidence),
        )

    def _matches(
        self, anchor: Anchor
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The sequence's tokens, where in it matches of its end end, and how long they are.

        The best come first.
        """
        sampler = anchor.sampler
        tokens = np.array([*sampler.prompt, *sampler.answer], dtype=np.int64)
        last = len(tokens) - 1
        ends = np.flatnonzero(tokens[:last] == tokens[last])
        lengths = np.ones_like(ends)
        agrees = np.ones(len(ends), dtype=bool)
        for back in range(1, min(self._longest, len(tokens))):
            # Where it would begin before the first token, index -1 is compared, and does not count.
            agrees &= (ends >= back) & (tokens[ends - back] == tokens[last - back])
            lengths += agrees
        enough = lengths >= self._shortest
        ends, lengths = ends[enough], lengths[enough]
        order = np.lexsort((-ends, -lengths))
        return tokens, ends[order], lengths[order]

    def _one_hot(self, anchor: Anchor, tokens: Sequence[int]) -> tuple[Tensor, ...]:
        if anchor.sampler.params.greedy or not tokens:
            return ()
        rows = torch.zeros((len(tokens), self._vocab_size), device=self._device)
        rows[range(len(tokens)), list(tokens)] = 1
        return rows.unbind()


def _prior(matched: int) -> float:
    """How likely the next token is the same again, until that is learnt."""
    return matched / (matched + 2)


def _evidence(matched: int, place: int) -> Hashable:
    return "match", matched, place
