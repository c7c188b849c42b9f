"""Whether the next step's sequences are drafted for at all, and how much of each draft is verified.

How much, a policy says (`dspark.policies`); whether at all, a switch that watches what drafting
brings (`dspark.speculation_switch`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from dspark.draft_length import DraftLength
from dspark.errors import InvalidRequest
from dspark.generation import Priority
from dspark.policies import (
    LEAST_SURVIVAL,
    DecodingStep,
    DelayedBudget,
    Drafted,
    Drafting,
    EarlyStop,
    Full,
    Policy,
    StepCost,
    Threshold,
    depth_of,
    survival,
)
from dspark.speculation_switch import SpeculationSwitch

SCHEDULES = ("off", "full", "threshold", "confidence", "confidence_delayed")
"""What `Scheduler.named` knows. `full:2` verifies two tokens of a draft at most, and a threshold
may be given as in `threshold:0.7`."""

WEIGHING_COSTS = ("confidence", "confidence_delayed")
"""Those of them that need to know what steps cost."""


class Scheduler:
    """One engine's decisions: whether to draft at all, and how much of each draft to verify.

    Every decoding step goes: draft if `drafting`, `most_drafted` tokens, `schedule`, verify,
    `record`.

    Args:
        policy: chooses the lengths; None never drafts.
        cost: what steps take; without it every step takes the same.
        switch: stops the drafting while it does not pay; None never does.
    """

    def __init__(
        self,
        policy: Policy | None,
        cost: StepCost | None = None,
        switch: SpeculationSwitch | None = None,
    ) -> None:
        self._policy = policy
        self._cost = cost or _EqualSteps()
        self._switch = switch
        self._length = DraftLength()
        self._expected: float | None = None  # tokens of the step that was scheduled last

    @classmethod
    def named(
        cls,
        schedule: str,
        cost: StepCost | None = None,
        confidence_threshold: float = LEAST_SURVIVAL,
    ) -> Scheduler:
        """A scheduler by one of the names in `SCHEDULES`.

        `confidence` (`EarlyStop`) and `confidence_delayed` (`DelayedBudget`) weigh costs, and stop
        drafting while it does not pay; the others do as they are told. `confidence_threshold` is
        that of `threshold`, unless its name brings its own.

        Raises:
            InvalidRequest: there is no such schedule, its threshold is no probability, or it
                weighs costs and was given none.
        """
        name, _, argument = schedule.partition(":")
        if name not in SCHEDULES or (argument and name not in ("full", "threshold")):
            raise InvalidRequest(
                f"schedule is {schedule!r}; it must be one of {', '.join(SCHEDULES)}"
            )
        if name == "off":
            return cls(None, cost)
        if name == "full":
            return cls(Full(_count(argument) if argument else None), cost)
        if name == "threshold":
            return cls(Threshold(_probability(argument or confidence_threshold)), cost)
        if cost is None:
            raise InvalidRequest(
                f"the schedule {name!r} weighs what steps cost: profile the machine first, or "
                "choose full or threshold"
            )
        policy = EarlyStop() if name == "confidence" else DelayedBudget()
        return cls(policy, cost, SpeculationSwitch())

    @property
    def drafting(self) -> bool:
        """Whether the next step's sequences are to be drafted for."""
        return self._policy is not None and (self._switch is None or self._switch.on)

    @property
    def most_drafted(self) -> int | None:
        """How many tokens are worth drafting for a sequence; None for as many as there can be."""
        return self._policy.most if isinstance(self._policy, Full) else self._length.most

    def schedule(
        self,
        certain_tokens: int,
        drafts: Sequence[Drafted],
        priorities: Sequence[Priority] | None = None,
    ) -> list[int]:
        """How many tokens of each draft the step verifies.

        Args:
            certain_tokens: what the step computes in any case: the anchors, and parts of prompts.
            drafts: one for each sequence that is decoded in the step, empty if not drafted for.
            priorities: theirs; without them all are confirmed.
        """
        if self._policy is None or not any(draft.confidence for draft in drafts):
            return [0] * len(drafts)
        priorities = priorities or [Priority.CONFIRMED] * len(drafts)
        step = DecodingStep(drafts, priorities, certain_tokens)
        lengths = self._policy.lengths(step, self._cost)
        self._length.record(
            max(depth_of(draft, length) for draft, length in zip(drafts, lengths, strict=True))
        )
        self._expected = len(drafts) + sum(
            sum(islice(survival(draft), length))
            for draft, length in zip(drafts, lengths, strict=True)
        )
        return lengths

    def record(
        self,
        certain_tokens: int,
        *,
        sequences: int,
        drafting: Drafting,
        verified: int,
        committed: int,
    ) -> None:
        """Tell what came of a step, so that drafting stops, and is tried again, when it should.

        Args:
            certain_tokens: as for `schedule`.
            sequences: how many were decoded.
            drafting: what was drafted for them.
            verified: how many drafted tokens were verified, over all sequences.
            committed: how many tokens the step gave, over all sequences.
        """
        if self._switch is None or sequences == 0:
            return
        if drafting.sequences == 0:
            self._switch.record_plain()
            return
        cost = self._cost

        def plain_ms(tokens: float) -> float:
            # Plain decoding would have had the prompts' parts in its first step only.
            return cost.cost_ms(certain_tokens) + (tokens / sequences - 1) * cost.cost_ms(sequences)

        self._switch.record_drafted(
            spent_ms=cost.draft_ms(drafting) + cost.cost_ms(certain_tokens + verified),
            plain_ms=plain_ms(committed),
            expected_plain_ms=plain_ms(committed if self._expected is None else self._expected),
        )


class _EqualSteps:
    """Steps that all take a millisecond: what is known when nothing was measured."""

    def cost_ms(self, tokens_in_step: int) -> float:
        return 1.0

    def draft_ms(self, drafting: Drafting) -> float:
        return 0.0


def _count(value: str) -> int:
    if not value.isdecimal() or int(value) == 0:
        raise InvalidRequest(f"{value!r} tokens are to be verified; it must be a number from 1")
    return int(value)


def _probability(value: float | str) -> float:
    try:
        probability = float(value)
    except ValueError:
        probability = -1.0
    if not 0.0 <= probability <= 1.0:
        raise InvalidRequest(f"the threshold is {value!r}; it must be a number from 0 to 1")
    return probability
