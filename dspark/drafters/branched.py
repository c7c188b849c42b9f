"""Makes a drafter propose trees instead of one token after the other."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence
from dataclasses import replace

from torch import Tensor

from dspark.drafters.protocol import Anchor, Branching, Draft, Drafter, ReadsTargetCache
from dspark.errors import InvalidRequest
from dspark.kv_cache import KvCache
from dspark.policies import survival
from dspark.tree import ANCHOR, TreeShape

_LATER_CANDIDATE = 0.3
"""How likely a second or later candidate stands once those before it do not; until it is learnt."""

_CONFIDENCE_STEPS = 4
"""Into how many ranges of the first candidate's confidence the later ones' acceptance is kept."""


class Branched:
    """A `Drafter` that proposes trees of one shape; see `Drafter` and `branched`.

    What a drafter is confident of is its first candidate. How likely a later one stands is learnt
    as the engine goes, by its rank and by the confidence in the first.
    """

    def __init__(self, drafter: Drafter, of_trees: Branching, shape: TreeShape) -> None:
        self._drafter = drafter
        self._of_trees = of_trees
        self._shape = shape
        self.taps = drafter.taps
        self.block_size = shape.depth

    def new_cache(self, slots: int, context_tokens: int) -> KvCache | None:
        """The drafter's."""
        return self._drafter.new_cache(slots, context_tokens + len(self._shape))

    def extend(self, cache: KvCache | None, slot: int, start: int, features: Tensor) -> None:
        """See `Drafter`."""
        self._drafter.extend(cache, slot, start, features)

    def draft(self, cache: KvCache | None, anchors: Sequence[Anchor]) -> list[Draft]:
        """Propose a tree after each anchor."""
        drafts = map(
            _with_later_candidates, self._of_trees.draft_trees(cache, anchors, self._shape)
        )
        return [
            likeliest_first(draft) if anchor.sampler.params.greedy else draft
            for anchor, draft in zip(anchors, drafts, strict=True)
        ]


class _BranchedInTargetCache(Branched, ReadsTargetCache):
    """A `Branched` drafter that reads the target's cache."""


def branched(drafter: Drafter, shape: TreeShape) -> Drafter:
    """The drafter, proposing trees of this shape.

    Raises:
        InvalidRequest: it can propose one token after the other only.
    """
    if not isinstance(drafter, Branching):
        raise InvalidRequest(
            f"{type(drafter).__name__} proposes one token after the other: open the engine "
            "without tree, or choose a drafter that has draft_trees"
        )
    kind = _BranchedInTargetCache if isinstance(drafter, ReadsTargetCache) else Branched
    return kind(drafter, drafter, shape)


def likeliest_first(draft: Draft) -> Draft:
    """The tree in the order in which its nodes are likely to stand; only for a greedy request.

    A schedule verifies the first nodes. Which they are may depend on how likely all of them are if
    tokens are not drawn: then the answer is the same whatever is verified.
    """
    if draft.tree is None:
        return draft
    survives = tuple(survival(draft))
    order: list[int] = []
    waiting: list[tuple[float, int]] = []

    def offer(candidates: Sequence[int], rank: int) -> None:
        if rank < len(candidates):
            heapq.heappush(waiting, (-survives[candidates[rank]], candidates[rank]))

    offer(draft.tree.children(ANCHOR), 0)
    while waiting:
        _, node = heapq.heappop(waiting)
        order.append(node)
        offer(draft.tree.children(draft.tree.parents[node]), draft.tree.ranks[node] + 1)
        offer(draft.tree.children(node), 0)
    return draft if order == list(range(len(order))) else draft.taking(order)


def _with_later_candidates(draft: Draft) -> Draft:
    if draft.tree is None:
        return draft
    own = draft.evidence or (None,) * len(draft.tokens)
    confidence: list[float] = []
    evidence: list[Hashable | None] = []
    for rank, of_first, given in zip(draft.tree.ranks, draft.confidence, own, strict=True):
        step = int(of_first * _CONFIDENCE_STEPS)
        confidence.append(of_first if rank == 0 else _LATER_CANDIDATE)
        evidence.append(given if rank == 0 else ("later candidate", rank, step))
    return replace(draft, confidence=tuple(confidence), evidence=tuple(evidence))
