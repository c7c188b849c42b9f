"""What the engine asks of a drafter, and what it gets."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from dspark.kv_cache import KvCache
from dspark.sampling import Sampler
from dspark.tree import TreeShape


@dataclass(frozen=True)
class Anchor:
    """Where one sequence stands: its last token, known but not yet computed by the target.

    Attributes:
        slot: its place in the caches.
        position: the token's position.
        token: its id.
        sampler: chooses drafted tokens as the request wants its tokens chosen.
        most: how many tokens, one after the other, are of use at most; a drafter may propose more.
            None: any number.
    """

    slot: int
    position: int
    token: int
    sampler: Sampler
    most: int | None = None


@dataclass(frozen=True)
class Draft:
    """What may follow an anchor.

    Attributes:
        tokens: the proposed tokens, in order.
        distributions: for each, the `[vocab]` distribution it was drawn from, after all of the
            request's settings, and without the siblings before it in a tree; one-hot for a token
            that nothing else could have been. Empty for a greedy request.
        confidence: for each, the estimated probability that it is accepted given that all before
            it are: in a tree, the nodes on the way to it, and none of the siblings before it. The
            estimate for a token must not depend on that token or on later ones.
        tree: which token follows which; None if each follows the one before.
        evidence: for each, what its confidence was estimated by, which must depend on no more than
            the confidence may. The engine then puts in its place how often tokens with the same
            evidence were accepted so far (see `dspark.acceptance`). Empty, or None for a token,
            if the confidence is to stay as it is.
    """

    tokens: tuple[int, ...] = ()
    distributions: tuple[Tensor, ...] = ()
    confidence: tuple[float, ...] = ()
    tree: TreeShape | None = None
    evidence: tuple[Hashable | None, ...] = ()

    @property
    def sampled(self) -> bool:
        """Whether its tokens were drawn from distributions."""
        return bool(self.distributions)

    def taking(self, nodes: Sequence[int]) -> Draft:
        """The draft of these tokens, in this order (see `TreeShape.taking`)."""
        drawn = len(self.distributions)
        return Draft(
            tuple(self.tokens[node] for node in nodes),
            tuple(self.distributions[node] for node in nodes if node < drawn),
            tuple(self.confidence[node] for node in nodes),
            None if self.tree is None else self.tree.taking(nodes),
            tuple(self.evidence[node] for node in nodes) if self.evidence else (),
        )


class Drafter(Protocol):
    """Proposes tokens.

    What it has to know of a sequence lies in a cache that the engine keeps for it, or comes with
    the anchor; a slot's sequence may be another at the next call.
    """

    @property
    def taps(self) -> Sequence[int]:
        """The target layers whose outputs it reads (see `Decoder.hidden_states`)."""
        ...

    @property
    def block_size(self) -> int:
        """How many tokens it proposes at most."""
        ...

    def new_cache(self, slots: int, context_tokens: int) -> KvCache | None:
        """The cache it needs for that many sequences of that length."""
        ...

    def extend(self, cache: KvCache | None, slot: int, start: int, features: Tensor) -> None:
        """Take in the target's outputs `[tokens, taps × hidden]` at positions `start …`.

        Called for every token that stands, in order and before the draft that needs it, unless
        there are no taps. What was taken in at `start` and beyond is void.
        """
        ...

    def draft(self, cache: KvCache | None, anchors: Sequence[Anchor]) -> list[Draft]:
        """Propose what follows each anchor, from everything before it."""
        ...


class ReadsTargetCache:
    """Base of drafters that are given the target's own cache, with every position before an anchor.

    From the anchor on they may leave whatever they like there: the step that follows overwrites it.
    """


@runtime_checkable
class Branching(Protocol):
    """A drafter that can propose several candidates for a place."""

    def draft_trees(
        self, cache: KvCache | None, anchors: Sequence[Anchor], shape: TreeShape
    ) -> list[Draft]:
        """Propose a tree after each anchor: `shape`, or as much of it as there is to propose.

        All children of a node come with the confidence that is had in the first of them.
        """
        ...
