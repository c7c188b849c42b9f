"""Token trees: several candidates for a place, each with continuations of its own.

A tree is verified in one step. Its nodes all see what came before it, and of the tree itself each
sees only the nodes on the way to it from the anchor (SpecInfer, arXiv 2305.09781). Where one
candidate is refused, the next one gets its chance, so more of the target's probability is covered
than by a single guess, at the price of more tokens in the step.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from dspark.errors import InvalidRequest

ANCHOR = -1
"""The parent of the first candidates."""


@dataclass(frozen=True)
class TreeShape:
    """Which candidate follows which; a node's children are its candidates, the best guess first.

    A prefix of the nodes is a tree again, so however many of them are verified, it is the first.

    Attributes:
        parents: for each node the one before it, `ANCHOR` for the first candidates. Parents come
            before their children.
    """

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        if not all(ANCHOR <= parent < node for node, parent in enumerate(self.parents)):
            raise InvalidRequest(f"{self.parents} is no tree: parents must come before children")

    def __len__(self) -> int:
        return len(self.parents)

    @classmethod
    def of_widths(cls, *widths: int) -> TreeShape:
        """So many candidates after the anchor, so many after each of those, and so on."""
        if not widths or min(widths) < 1:
            raise InvalidRequest(f"the tree's widths are {widths}; give numbers of at least 1")
        parents: list[int] = []
        level = [ANCHOR]
        for width in widths:
            first = len(parents)
            parents += [node for node in level for _ in range(width)]
            level = list(range(first, len(parents)))
        return cls(tuple(parents))

    @classmethod
    def likeliest(
        cls, nodes: int, acceptance: Sequence[float] = (0.6, 0.15, 0.07, 0.04), depth: int = 8
    ) -> TreeShape:
        """The tree of so many nodes that is expected to give most tokens.

        A node stands if every node on the way to it does. With an acceptance that depends on the
        place among siblings alone, taking the likeliest node again and again is the best there is
        (as Sequoia's dynamic programme finds it, arXiv 2402.12374).

        Args:
            nodes: how many there are.
            acceptance: the probability that the first, second … candidate is the one that stands.
            depth: how long a path may be.
        """
        if nodes < 1 or depth < 1 or not acceptance:
            raise InvalidRequest("a tree needs at least one node, one candidate and a depth of 1")
        parents: list[int] = []
        # Every place where the tree could grow, the likeliest first, then the oldest.
        places = [(-acceptance[0], ANCHOR, 0, 1.0, 1)]
        while places and len(parents) < nodes:
            negated, parent, rank, before, place_depth = heapq.heappop(places)
            node = len(parents)
            parents.append(parent)
            if rank + 1 < len(acceptance):
                sibling = -before * acceptance[rank + 1]
                heapq.heappush(places, (sibling, parent, rank + 1, before, place_depth))
            if place_depth < depth:
                child = negated * acceptance[0]
                heapq.heappush(places, (child, node, 0, -negated, place_depth + 1))
        return cls(tuple(parents))

    @classmethod
    def with_seconds(cls, depth: int, seconds: int) -> TreeShape:
        """One token after the other, and a second candidate for each of the first places.

        Nothing hangs on a second candidate, so a drafter whose places share one pass proposes them
        for nothing.

        Args:
            depth: how many tokens follow each other.
            seconds: for how many of them there is a second candidate.
        """
        if not 0 <= seconds <= depth or not depth:
            raise InvalidRequest(
                f"{depth} tokens with {seconds} second candidates are no tree: give a depth of at "
                "least 1 and no more second candidates than that"
            )
        # The likelier a node stands the earlier it comes, as far as that is known beforehand.
        places = sorted(
            [(0.5**place, place, 0) for place in range(1, depth + 1)]
            + [(0.15 * 0.5 ** (place - 1), place, 1) for place in range(1, seconds + 1)],
            key=lambda each: -each[0],
        )
        nodes = {(place, rank): node for node, (_, place, rank) in enumerate(places)}
        return cls(tuple(nodes.get((place - 1, 0), ANCHOR) for _, place, _ in places))

    @classmethod
    def parse(cls, text: str) -> TreeShape:
        """A shape as it is written on a command line.

        `8` is so many nodes, `3x2x1` are widths, and `5+2` five tokens with second candidates for
        the first two.

        Raises:
            InvalidRequest: it is none of these.
        """
        try:
            chain = [int(each) for each in text.split("+")] if "+" in text else []
            numbers = [] if chain else [int(each) for each in text.split("x")]
            if len(chain) > 2:
                raise ValueError
        except ValueError:
            raise InvalidRequest(
                f"the tree is {text!r}; give a number of nodes, as 8, widths, as 3x2x1, or a "
                "chain with second candidates for its first places, as 5+2"
            ) from None
        if chain:
            return cls.with_seconds(*chain)
        return cls.likeliest(numbers[0]) if len(numbers) == 1 else cls.of_widths(*numbers)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """How many tokens after the anchor each node is."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ANCHOR else depths[parent] + 1)
        return tuple(depths)

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """How many siblings come before each node."""
        return tuple(self.children(parent).index(node) for node, parent in enumerate(self.parents))

    @cached_property
    def is_chain(self) -> bool:
        """Whether each node hangs on the one before it, as in a draft that is no tree."""
        return self.parents == tuple(range(ANCHOR, len(self) - 1))

    @cached_property
    def seconds(self) -> int | None:
        """For how many places there is a second candidate; None unless that and one chain is all.

        See `with_seconds`.
        """
        # A first candidate always hangs on a first one: nothing hangs on the others.
        if any(rank > 1 for rank in self.ranks):
            return None
        if any(self.ranks[parent] for parent in self.parents if parent != ANCHOR):
            return None
        return max((d for d, rank in zip(self.depths, self.ranks, strict=True) if rank), default=0)

    @property
    def depth(self) -> int:
        """The length of the longest path."""
        return max(self.depths, default=0)

    def children(self, node: int) -> tuple[int, ...]:
        """The candidates after a node, or after `ANCHOR`."""
        return self._children.get(node, ())

    @cached_property
    def _children(self) -> dict[int, tuple[int, ...]]:
        children: dict[int, tuple[int, ...]] = {}
        for node, parent in enumerate(self.parents):
            children[parent] = (*children.get(parent, ()), node)
        return children

    def levels(self) -> Iterator[tuple[int, ...]]:
        """The nodes of each depth."""
        for depth in range(1, self.depth + 1):
            yield tuple(node for node, own in enumerate(self.depths) if own == depth)

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes from the anchor's candidate to this one; empty for `ANCHOR`."""
        return () if node == ANCHOR else (*self.path(self.parents[node]), node)

    def within(self, depth: int, nodes: int) -> tuple[int, ...]:
        """The first so many nodes that are no deeper."""
        return tuple(node for node, own in enumerate(self.depths) if own <= depth)[: max(0, nodes)]

    def depth_first(self) -> tuple[int, ...]:
        """All nodes so that each comes directly after its parent or after a sibling's branch."""
        order: list[int] = []
        waiting = list(self.children(ANCHOR)[::-1])
        while waiting:
            node = waiting.pop()
            order.append(node)
            waiting += self.children(node)[::-1]
        return tuple(order)

    def taking(self, nodes: Sequence[int]) -> TreeShape:
        """The tree of these nodes, numbered in this order; the parents of all must be among them
        and come first."""
        return _taken(self, tuple(nodes))

    def runs(self) -> Iterator[range]:
        """Nodes that follow each other directly, in the order in which they are numbered."""
        begin = 0
        for node in range(1, len(self) + 1):
            if node == len(self) or self.parents[node] != node - 1:
                yield range(begin, node)
                begin = node


@lru_cache(maxsize=1024)
def _taken(shape: TreeShape, nodes: tuple[int, ...]) -> TreeShape:
    """See `TreeShape.taking`: every step asks, mostly for the same one, which knows its paths."""
    place = {node: index for index, node in enumerate(nodes)} | {ANCHOR: ANCHOR}
    return TreeShape(tuple(place[shape.parents[node]] for node in nodes))
