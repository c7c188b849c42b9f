"""Makes a drafter propose trees instead of one token after the other."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from torch import Tensor

from dspark.drafters.dspark import DSparkDrafter
from dspark.drafters.protocol import Anchor, Branching, Draft, Drafter, ReadsTargetCache
from dspark.errors import InvalidRequest
from dspark.kv_cache import KvCache
from dspark.tree import TreeShape

_LATER_CANDIDATE = 0.2
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
        return [
            _with_later_candidates(draft)
            for draft in self._of_trees.draft_trees(cache, anchors, self._shape)
        ]


class _WithSeconds(Branched):
    """A `Branched` drafter that proposes trees to greedy requests alone."""

    def draft(self, cache: KvCache | None, anchors: Sequence[Anchor]) -> list[Draft]:
        """Propose a tree after each greedy request's anchor, and a block after the others'."""
        greedy = [each for each in anchors if each.sampler.params.greedy]
        others = [each for each in anchors if not each.sampler.params.greedy]
        drafts: dict[int, Draft] = {}
        if greedy:
            drafts |= zip((each.slot for each in greedy), super().draft(cache, greedy), strict=True)
        if others:
            chains = self._drafter.draft(cache, others)
            drafts |= zip((each.slot for each in others), chains, strict=True)
        return [drafts[each.slot] for each in anchors]


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


def with_seconds(drafter: Drafter, seconds: int = 2) -> Drafter:
    """The drafter, naming second candidates too where that costs next to nothing.

    That is for greedy requests of a DSpark drafter whose proposals are compiled: it has the
    probabilities of all tokens at hand. Drawing two without replacement would cost more.

    Args:
        drafter: any; others are given back as they are.
        seconds: for how many of the first places.
    """
    if not isinstance(drafter, DSparkDrafter) or not drafter.has_seconds:
        return drafter
    shape = TreeShape.with_seconds(drafter.block_size, min(seconds, drafter.block_size))
    return _WithSeconds(drafter, drafter, shape)


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
