"""How many drafted tokens each sequence verifies: as many as raise the tokens per millisecond.

Verification is lossless only if whether a token is verified does not depend on the token itself.
The confidence after it does (its head reads the token), so no rule here looks at a confidence
before everything in front of it has been taken up. `most_likely_first` makes that a property of
how candidates are produced, not of who consumes them. (Confidence-scheduled verification: DSpark,
arXiv 2607.05147.)
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, takewhile
from operator import mul
from typing import NamedTuple, Protocol

from dspark.generation import Priority
from dspark.tree import ANCHOR, TreeShape


class Drafting(NamedTuple):
    """What was drafted for a step.

    Attributes:
        sequences: for how many.
        tokens: how many, over all of them; of a tree, the longest path.
        sampled: how many of those were drawn from a distribution.
    """

    sequences: int = 0
    tokens: int = 0
    sampled: int = 0

    @classmethod
    def of(cls, drafts: Sequence[Drafted]) -> Drafting:
        """What these drafts, empty or not, are together."""
        lengths = [depth_of(draft, len(draft.confidence)) for draft in drafts]
        return cls(
            sequences=sum(length > 0 for length in lengths),
            tokens=sum(lengths),
            sampled=sum(
                length for draft, length in zip(drafts, lengths, strict=True) if draft.sampled
            ),
        )


class StepCost(Protocol):
    """What a step takes on this machine."""

    def cost_ms(self, tokens_in_step: int) -> float:
        """Milliseconds of a target step that computes so many tokens, at least one."""
        ...

    def draft_ms(self, drafting: Drafting) -> float:
        """Milliseconds of drafting that much."""
        ...


class Drafted(Protocol):
    """What the scheduler sees of a draft."""

    @property
    def confidence(self) -> Sequence[float]:
        """For each drafted token the estimated probability that it is accepted given that all
        before it are; empty for a sequence that has only its anchor in the step."""
        ...

    @property
    def tree(self) -> TreeShape | None:
        """Which token follows which; None if each follows the one before."""
        ...

    @property
    def sampled(self) -> bool:
        """Whether its tokens were drawn from distributions."""
        ...


@dataclass(frozen=True)
class DecodingStep:
    """The step that is decided about.

    Attributes:
        drafts: one for each sequence that is decoded, drafted for or not.
        priorities: theirs; candidates of confirmed sequences come before any of speculative ones.
        certain_tokens: what the step computes in any case: the anchors, and parts of prompts.
    """

    drafts: Sequence[Drafted]
    priorities: Sequence[Priority]
    certain_tokens: int

    @property
    def drafting(self) -> Drafting:
        """What was drafted for it."""
        return Drafting.of(self.drafts)


def depth_of(draft: Drafted, length: int) -> int:
    """How many of the first so many tokens of a draft follow each other, at most."""
    if draft.tree is None:
        return length
    return max(draft.tree.depths[:length], default=0)


def survival(draft: Drafted) -> Iterator[float]:
    """For each drafted token the probability that it is accepted, and all that has to be before it.

    That is what verifying the token adds to the tokens expected of the step: in a tree, too, since
    of the candidates for a place one at most is accepted. A confidence is read when the token's
    survival is asked for.
    """
    if draft.tree is None:
        return accumulate(draft.confidence, mul)
    return _survival_in_tree(draft.tree, draft.confidence)


def _survival_in_tree(tree: TreeShape, confidence: Sequence[float]) -> Iterator[float]:
    # What is left for a node's next child: that the node stands, and no child of it so far does.
    left = {ANCHOR: 1.0}
    for node, (parent, accepted) in enumerate(zip(tree.parents, confidence, strict=True)):
        left[node] = left[parent] * accepted
        left[parent] *= 1 - accepted
        yield left[node]


def most_likely_first(step: DecodingStep) -> Iterator[tuple[int, float]]:
    """Every candidate as (sequence, survival), by priority, then by descending survival.

    Equal ones come by their place in the block, then by sequence. A sequence's candidates always
    come in order, and a confidence is read only when the candidate before it has been consumed:
    leaving the iteration leaves the rest unseen.
    """
    survivals = [survival(draft) for draft in step.drafts]
    heap: list[tuple[Priority, float, int, int]] = []

    def offer(priority: Priority, place: int, index: int) -> None:
        if (survives := next(survivals[index], None)) is not None:
            heapq.heappush(heap, (priority, -survives, place, index))

    for index, priority in enumerate(step.priorities):
        offer(priority, 0, index)
    while heap:
        priority, negated, place, index = heapq.heappop(heap)
        yield index, -negated
        offer(priority, place + 1, index)


LEAST_SURVIVAL = 0.5
"""The threshold, if none is given."""


class Policy(Protocol):
    """A rule that gives every sequence the length of the prefix to verify."""

    def lengths(self, step: DecodingStep, cost: StepCost) -> list[int]:
        """How many tokens of each draft are verified."""
        ...


@dataclass(frozen=True)
class Full:
    """Everything that was drafted, or the first so many tokens of it, whatever they cost."""

    most: int | None = None

    def lengths(self, step: DecodingStep, cost: StepCost) -> list[int]:
        """See `Policy`."""
        return [len(draft.confidence[: self.most]) for draft in step.drafts]


@dataclass(frozen=True)
class Threshold:
    """Every token that survives with at least this probability, whatever it costs."""

    least_survival: float = LEAST_SURVIVAL

    def lengths(self, step: DecodingStep, cost: StepCost) -> list[int]:
        """See `Policy`."""
        return [
            sum(1 for _ in takewhile(self._is_likely, survival(draft))) for draft in step.drafts
        ]

    def _is_likely(self, survives: float) -> bool:
        return survives >= self.least_survival


@dataclass(frozen=True)
class EarlyStop:
    """Takes up candidates while each raises the step's tokens per millisecond.

    It ends at the first that does not, though a later one might. Where costs rise in stairs the
    best length may lie beyond, but to go there because later candidates are likely would be to
    decide about a token by what it has itself brought about.
    """

    def lengths(self, step: DecodingStep, cost: StepCost) -> list[int]:
        """See `Policy`."""
        lengths = [0] * len(step.drafts)
        best = _Throughput.of_anchors(step, cost)
        for index, throughput in _growth(step, cost):
            if not throughput.beats(best):
                break
            best = throughput
            lengths[index] += 1
        return lengths


class DelayedBudget:
    """Gives the present candidates as many places as were best for those of two steps ago.

    What was drafted two steps ago is settled, so the search for the best number may look at all
    of it and leap over stairs. The present confidences only decide whose candidates get the
    places. Until two steps have passed it is `EarlyStop`. The number is scaled when there are
    more or fewer sequences than there were.
    """

    def __init__(self) -> None:
        self._past: deque[tuple[int, int]] = deque(maxlen=2)  # (best number, drafted sequences)

    def lengths(self, step: DecodingStep, cost: StepCost) -> list[int]:
        """See `Policy`."""
        sequences = step.drafting.sequences
        if not sequences:
            return [0] * len(step.drafts)
        settled = self._past[0] if len(self._past) == 2 else None
        self._past.append((_best_count(step, cost), sequences))
        if settled is None:
            return EarlyStop().lengths(step, cost)
        count, drafted_then = settled
        budget = round(count * sequences / drafted_then)
        lengths = [0] * len(step.drafts)
        for index, _ in islice(most_likely_first(step), budget):
            lengths[index] += 1
        return lengths


class _Throughput(NamedTuple):
    """Expected tokens of a step, and its milliseconds with those of the drafting before it."""

    tokens: float
    ms: float

    @classmethod
    def of_anchors(cls, step: DecodingStep, cost: StepCost) -> _Throughput:
        """Of a step that verifies nothing: each sequence gets the one token after its anchor."""
        ms = cost.draft_ms(step.drafting) + cost.cost_ms(step.certain_tokens)
        return cls(len(step.drafts), ms)

    def beats(self, other: _Throughput) -> bool:
        """Whether this is more tokens per millisecond."""
        return self.tokens * other.ms > other.tokens * self.ms


def _growth(step: DecodingStep, cost: StepCost) -> Iterator[tuple[int, _Throughput]]:
    """The sequence of each next candidate, and the throughput with it and all before it."""
    draft_ms = cost.draft_ms(step.drafting)
    expected = float(len(step.drafts))
    candidates = most_likely_first(step)
    for tokens, (index, survives) in enumerate(candidates, step.certain_tokens + 1):
        expected += survives
        yield index, _Throughput(expected, draft_ms + cost.cost_ms(tokens))


def _best_count(step: DecodingStep, cost: StepCost) -> int:
    """With how many candidates the throughput is highest, wherever that is."""
    best, best_count = _Throughput.of_anchors(step, cost), 0
    for count, (_, throughput) in enumerate(_growth(step, cost), 1):
        if throughput.beats(best):
            best, best_count = throughput, count
    return best_count
