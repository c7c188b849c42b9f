"""How often drafted tokens stand, learnt while they are verified.

A trained drafter brings confidences of its own. A small model brings probabilities that mean
something else, and prompt lookup brings nothing but the length of what matched. Counting what
became of earlier tokens with the same evidence turns either into a probability that the schedule
can weigh, for this target, this drafter and the texts of the day.

That keeps verification lossless: evidence depends on nothing that comes with the token or after
it (`Draft`), and the counts only on what is settled.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from dspark.drafters.protocol import Draft
from dspark.tree import ANCHOR

PRIOR_TOKENS = 4.0
"""How many verified tokens a drafter's own estimate weighs as much as."""

REMEMBERED_TOKENS = 500.0
"""Over about how many tokens of the same evidence acceptance is averaged."""


@dataclass
class _Count:
    verified: float = 0.0
    accepted: float = 0.0

    def add(self, accepted: bool) -> None:
        keep = 1 - 1 / REMEMBERED_TOKENS
        self.verified = self.verified * keep + 1
        self.accepted = self.accepted * keep + accepted


class RunningAcceptance:
    """Replaces confidences that come with evidence by what that evidence was worth so far."""

    def __init__(self) -> None:
        self._counts: dict[Hashable, _Count] = {}

    def applied(self, draft: Draft) -> Draft:
        """The draft, with the confidences of tokens that have evidence estimated anew."""
        if not draft.evidence:
            return draft
        return replace(
            draft,
            confidence=tuple(
                own if evidence is None else self._estimate(evidence, own)
                for own, evidence in zip(draft.confidence, draft.evidence, strict=True)
            ),
        )

    def learn(self, draft: Draft, path: Sequence[int]) -> None:
        """Take in what became of a draft, all of which was verified.

        Args:
            draft: what was verified.
            path: its tokens that stand.
        """
        if not draft.evidence:
            return
        for parent, accepted in zip((ANCHOR, *path), (*path, None), strict=True):
            # Of the candidates for a place each was looked at until one stood.
            for node in candidates(draft, parent):
                self._add(draft.evidence[node], node == accepted)
                if node == accepted:
                    break

    def _estimate(self, evidence: Hashable, prior: float) -> float:
        count = self._counts.get(evidence)
        if count is None:
            return prior
        return (count.accepted + PRIOR_TOKENS * prior) / (count.verified + PRIOR_TOKENS)

    def _add(self, evidence: Hashable | None, accepted: bool) -> None:
        if evidence is not None:
            self._counts.setdefault(evidence, _Count()).add(accepted)


def candidates(draft: Draft, parent: int) -> Sequence[int]:
    """A draft's tokens for the place after one of them, or after `ANCHOR`, in their order."""
    if draft.tree is not None:
        return draft.tree.children(parent)
    return (parent + 1,) if parent + 1 < len(draft.tokens) else ()
