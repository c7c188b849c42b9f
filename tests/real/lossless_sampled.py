"""The sampled half of `lossless_acceptance`: the joint distribution of three tokens."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

import torch

from dspark import SamplingParams, Scheduler, StepCostTable
from dspark.drafters import Draft
from dspark.policies import DecodingStep, StepCost
from dspark.sampling import Sampler, distribution, draw
from dspark.scheduler import SCHEDULES
from dspark.verification import verify
from tests.real.lossless_record import Comparison, Outcome
from tests.unit.dspark.test_tree import DRAFTS
from tests.unit.dspark.test_tree import answer as tree_answer
from tests.unit.dspark.test_verification import (
    BLOCK,
    DRAFTER,
    LENGTH,
    PROMPT,
    SETTINGS,
    TARGET,
    Tokens,
    chi_square,
    exact,
)

DRAWS = 50_000
TOGETHER = 2  # sequences that share each step
FAMILY_QUANTILE = 4.0
"""Of the normal distribution: one comparison in 30,000 goes beyond it by chance."""

# With stairs, so that schedules have something to weigh.
COSTS = StepCostTable((10.0, 10.5, 11.0, 13.5, 13.6, 13.8, 18.0, 18.2), (0.5, 0.6))


@dataclass(eq=False)
class RememberingSampler(Sampler):
    """Computes the target's distribution once for every sequence of tokens."""

    seen: dict[Tokens, torch.Tensor] = field(default_factory=dict)

    def distribution(self, logits: torch.Tensor, drafted: Sequence[int] = ()) -> torch.Tensor:
        tokens = (*self.answer, *drafted)
        if tokens not in self.seen:
            self.seen[tokens] = super().distribution(logits, drafted)
        return self.seen[tokens]


class LooksAhead:
    """What a schedule must not do: verifies a token if it is confident about the one after it."""

    def lengths(self, step: DecodingStep, cost: StepCost) -> list[int]:
        return [int(draft.confidence[1] > 0.5) for draft in step.drafts]


@cache
def confidence(previous: int, place: int) -> float:
    """Arbitrary, and dependent on the token before, as a confidence head's is."""
    return random.Random(100 * place + previous).choice((0.15, 0.4, 0.7, 0.95))


@cache
def stacked(context: Tokens, draft: Tokens) -> torch.Tensor:
    """The target's logits after the context and after each drafted token."""
    return torch.stack([TARGET([*context, *draft[:k]]) for k in range(len(draft) + 1)])


class Decoding:
    """Draws answers of three tokens as an engine does, some at a time.

    Attributes:
        scheduled: how many drafted tokens were verified.
        accepted: how many of them stood.
        steps: how many steps there were.
    """

    def __init__(self, params: SamplingParams, scheduler: Scheduler) -> None:
        self._params = params
        self._scheduler = scheduler
        self._random = random.Random(9)
        self._of_target: dict[Tokens, torch.Tensor] = {}
        self._of_drafter: dict[Tokens, torch.Tensor] = {}
        self.scheduled = self.accepted = self.steps = 0

    def answers(self, count: int) -> Iterator[Tokens]:
        """So many answers, every one that was begun."""
        begun = 0
        running: list[Sampler] = []
        while begun < count or running:
            while begun < count and len(running) < TOGETHER:
                running.append(
                    RememberingSampler(self._params, PROMPT, [], self._random, self._of_target)
                )
                begun += 1
            self._step(running)
            yield from (
                tuple(each.answer[:LENGTH]) for each in running if len(each.answer) >= LENGTH
            )
            running = [each for each in running if len(each.answer) < LENGTH]

    def _step(self, running: Sequence[Sampler]) -> None:
        drafting = self._scheduler.drafting
        drafts = [self._draft(each) if drafting else Draft() for each in running]
        lengths = self._scheduler.schedule(len(running), drafts)
        committed = 0
        for sampler, draft, length in zip(running, drafts, lengths, strict=True):
            logits = stacked(tuple(sampler.answer), draft.tokens[:length])
            verdict = verify(logits, draft, sampler)
            assert isinstance(sampler.answer, list)
            sampler.answer += [*draft.tokens[: verdict.accepted], verdict.token]
            committed += verdict.accepted + 1
            self.scheduled += length
            self.accepted += verdict.accepted
        self._scheduler.record(
            len(running),
            sequences=len(running),
            drafted=len(running) if drafting else 0,
            verified=sum(lengths),
            committed=committed,
        )
        self.steps += 1

    def _draft(self, sampler: Sampler) -> Draft:
        tokens: list[int] = []
        distributions = []
        confidences = []
        previous = [*PROMPT, *sampler.answer][-1]
        for place in range(BLOCK):
            context = (*sampler.answer, *tokens)
            if context not in self._of_drafter:
                logits = DRAFTER(context)
                self._of_drafter[context] = distribution(logits, self._params, PROMPT, context)
            confidences.append(confidence(previous, place))
            distributions.append(self._of_drafter[context])
            previous = draw(distributions[-1], self._random)
            tokens.append(previous)
        return Draft(tuple(tokens), tuple(distributions), tuple(confidences))


def deviation(statistic: float, degrees: int) -> float:
    """A chi-square statistic as a normal one, after Wilson and Hilferty."""
    spread = 2 / (9 * degrees)
    return float(((statistic / degrees) ** (1 / 3) - (1 - spread)) / spread**0.5)


HEADING = "option           schedule            statistic  degrees       p  verified/step  accepted"


def comparisons(draws: int) -> Iterator[Comparison]:
    """One for each sampling option and schedule, then for trees, and one that must be bad."""
    for name, schedule in itertools.product(SETTINGS, SCHEDULES):
        title = f"{name:15}  {schedule:18}"
        yield title, partial(compared, name, scheduler(schedule), draws)
    for name, schedule in itertools.product(SETTINGS, SCHEDULES[1:]):
        for kind in DRAFTS:
            title = f"{name:15}  {schedule:18}  tree, {kind}"
            yield title, partial(compared_trees, name, scheduler(schedule), kind, draws // 5)
    yield f"{'temperature 1':15}  {'(looks ahead)':18}", partial(found_out, draws)


def scheduler(schedule: str) -> Scheduler:
    """A new one."""
    return Scheduler.named(schedule, COSTS, confidence_threshold=0.3)


def compared(name: str, scheduler: Scheduler, draws: int) -> Outcome:
    """Whether answers of one option are distributed as they should be."""
    decoding = Decoding(SETTINGS[name], scheduler)
    with torch.inference_mode():
        counts = Counter(decoding.answers(draws))
    line, good = judged(name, counts)
    share = decoding.accepted / max(1, decoding.scheduled)
    return Outcome(f"{line}  {decoding.scheduled / decoding.steps:13.2f}  {share:8.1%}", good)


def compared_trees(name: str, scheduler: Scheduler, kind: str, draws: int) -> Outcome:
    """The same with trees."""
    rng = random.Random(9)
    with torch.inference_mode():
        counts = Counter(
            tree_answer(SETTINGS[name], rng, DRAFTS[kind], scheduler) for _ in range(draws)
        )
    return Outcome(*judged(name, counts))


def found_out(draws: int) -> Outcome:
    """Whether a schedule that looks ahead is seen not to be lossless."""
    outcome = compared("temperature 1", Scheduler(LooksAhead()), draws)
    verdict = "it is not" if outcome.good else "it is found out"
    return Outcome(f"{outcome.text}  must not be lossless: {verdict}", good=not outcome.good)


def judged(name: str, counts: Counter[Tokens]) -> tuple[str, bool]:
    """A comparison in figures, and whether chance explains it."""
    probabilities = exact(SETTINGS[name])
    statistic, degrees = chi_square(counts, probabilities)
    impossible = set(counts) - set(probabilities)
    off = math.inf if impossible else deviation(statistic, degrees)
    chance = math.erfc(off / math.sqrt(2)) / 2
    return f"{statistic:9.1f}  {degrees:7}  {chance:6.4f}", off < FAMILY_QUANTILE
