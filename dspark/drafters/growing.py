"""Trees grown from what a drafter thinks of the next token: level by level, for several anchors."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from dspark.drafters.protocol import Anchor, Draft
from dspark.sampling import draw
from dspark.tree import ANCHOR, TreeShape


class Outlook(NamedTuple):
    """What a drafter thinks of the next token at several places.

    Attributes:
        logits: `[places, vocab]`.
        confidence: for each place, that its first candidate stands.
        evidence: for each, what the confidence was estimated by (see `Draft`).
    """

    logits: Tensor
    confidence: Sequence[float]
    evidence: Sequence[Hashable | None]


@dataclass
class GrowingTree:
    """One anchor's tree as far as it has grown.

    Attributes:
        anchor: where it hangs.
        shape: what it grows into. Nodes for which no token is left are missing, with all that
            would hang on them.
        tokens: by node.
    """

    anchor: Anchor
    shape: TreeShape
    tokens: dict[int, int] = field(default_factory=dict)
    _distributions: dict[int, Tensor] = field(default_factory=dict)
    _confidence: dict[int, float] = field(default_factory=dict)
    _evidence: dict[int, Hashable | None] = field(default_factory=dict)

    def token(self, node: int) -> int:
        """The token of a node, or of `ANCHOR`."""
        return self.anchor.token if node == ANCHOR else self.tokens[node]

    def branch(
        self, parent: int, logits: Tensor, confidence: float, evidence: Hashable | None
    ) -> None:
        """Choose the candidates after a node by its `[vocab]` logits."""
        children = self.shape.children(parent)
        before = [self.tokens[node] for node in self.shape.path(parent)]
        sampler = self.anchor.sampler
        if sampler.params.greedy:
            best = sampler.processed(logits, before).topk(min(len(children), len(logits)))
            self.tokens.update(zip(children, best.indices.tolist(), strict=False))
        else:
            # Without replacement: a candidate that was refused would be refused again.
            left = sampler.distribution(logits, before)
            for node in children:
                token = draw(left, sampler.rng)
                self.tokens[node], self._distributions[node] = token, left
                left = left.clone()
                left[token] = 0
                total = left.sum()
                if not total > 0:
                    break
                left /= total
        for node in children:
            self._confidence[node], self._evidence[node] = confidence, evidence

    def draft(self) -> Draft:
        """What has grown."""
        nodes = sorted(self.tokens)
        return Draft(
            tuple(self.tokens[node] for node in nodes),
            tuple(self._distributions[node] for node in nodes if self._distributions),
            tuple(self._confidence[node] for node in nodes),
            self.shape.taking(nodes),
            tuple(self._evidence[node] for node in nodes),
        )


Place = tuple[int, int]
"""Which tree, and which of its nodes, or `ANCHOR`."""

LookOut = Callable[[Sequence[GrowingTree], Sequence[Place]], Outlook]
"""Asked about nodes of one depth of all trees; they come from the anchors downwards."""


def grow(anchors: Sequence[Anchor], shape: TreeShape, look_out: LookOut) -> list[Draft]:
    """Grow a tree of a shape after each anchor."""
    trees = [GrowingTree(anchor, shape) for anchor in anchors]
    for level in ((ANCHOR,), *shape.levels()):
        places = [
            (index, node)
            for index, tree in enumerate(trees)
            for node in level
            if shape.children(node) and (node == ANCHOR or node in tree.tokens)
        ]
        if not places:
            break
        outlook = look_out(trees, places)
        for row, (index, node) in enumerate(places):
            trees[index].branch(
                node, outlook.logits[row], outlook.confidence[row], outlook.evidence[row]
            )
    return [tree.draft() for tree in trees]


def stacked(rows: Sequence[Tensor]) -> Tensor:
    """Rows of the same width below each other."""
    return rows[0] if len(rows) == 1 else torch.cat(list(rows))
