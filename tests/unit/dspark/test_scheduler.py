"""Which drafted tokens are verified: what pays, by priority, and never by looking ahead."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark.errors import InvalidRequest
from dspark.generation import Priority
from dspark.policies import (
    DecodingStep,
    DelayedBudget,
    Drafting,
    EarlyStop,
    Full,
    Policy,
    StepCost,
    Threshold,
    most_likely_first,
    survival,
)
from dspark.scheduler import SCHEDULES, Scheduler
from dspark.speculation_switch import SpeculationSwitch
from dspark.tree import TreeShape

BLOCK = 5


@dataclass(frozen=True)
class Draft:
    confidence: Sequence[float]
    tree: TreeShape | None = None
    sampled: bool = False


@dataclass(frozen=True)
class Costs:
    """Step costs by a formula."""

    step: Callable[[int], float]
    drafting_ms: float = 0.0

    def cost_ms(self, tokens_in_step: int) -> float:
        return self.step(tokens_in_step)

    def draft_ms(self, drafting: Drafting) -> float:
        return self.drafting_ms


def affine(base: float, each: float, drafting_ms: float = 0.0) -> Costs:
    return Costs(lambda tokens: base + each * tokens, drafting_ms)


@dataclass
class WatchedConfidence(Sequence[float]):
    """Confidences that remember how far they were looked at."""

    values: Sequence[float]
    seen: int = field(default=0)

    def __getitem__(self, place):  # type: ignore[no-untyped-def]
        self.seen = max(self.seen, place + 1)
        return self.values[place]

    def __len__(self) -> int:
        return len(self.values)


def decoding_step(
    confidences: Sequence[Sequence[float]], priorities: Sequence[Priority] | None = None
) -> DecodingStep:
    return DecodingStep(
        [Draft(each) for each in confidences],
        priorities or [Priority.CONFIRMED] * len(confidences),
        certain_tokens=len(confidences),
    )


def throughput(step: DecodingStep, lengths: Sequence[int], cost: StepCost) -> float:
    """Expected tokens a millisecond, from the definition."""
    expected = len(step.drafts) + sum(
        sum(itertools.islice(survival(draft), length))
        for draft, length in zip(step.drafts, lengths, strict=True)
    )
    return expected / (
        cost.cost_ms(step.certain_tokens + sum(lengths)) + cost.draft_ms(step.drafting)
    )


# Multiples of 1/16 and whole milliseconds: products and sums of these few are exact in float64,
# so that no test depends on how a tie is rounded.
confidences = st.integers(0, 16).map(lambda sixteenths: sixteenths / 16)
blocks = st.lists(confidences, max_size=BLOCK)
batches = st.lists(blocks, min_size=1, max_size=4)
affine_costs = st.builds(
    affine, st.integers(0, 40), st.integers(1, 10), drafting_ms=st.integers(0, 20)
)
increments = st.lists(st.integers(0, 20), min_size=40, max_size=40)
staircases = increments.map(lambda rises: Costs(lambda n: 10 + sum(rises[:n])))
costs = st.one_of(affine_costs, staircases)
policies = st.sampled_from([EarlyStop, DelayedBudget, Full, Threshold])


@given(batches, st.lists(st.sampled_from(Priority), min_size=4, max_size=4))
def test_candidates_come_by_priority_then_by_survival_and_each_sequences_in_order(
    batch: list[list[float]], priorities: list[Priority]
) -> None:
    step = decoding_step(batch, priorities[: len(batch)])
    walk = list(most_likely_first(step))
    keys = [(step.priorities[index], -survives) for index, survives in walk]
    assert keys == sorted(keys)
    for index, block in enumerate(batch):
        assert [survives for other, survives in walk if other == index] == list(
            survival(Draft(block))
        )


@given(policies, batches, costs)
def test_a_length_is_never_beyond_the_block(
    policy: Callable[[], Policy], batch: list[list[float]], cost: StepCost
) -> None:
    rule = policy()
    for _ in range(3):  # the delayed budget has a past from the third step on
        lengths = rule.lengths(decoding_step(batch), cost)
        assert all(0 <= n <= len(block) for n, block in zip(lengths, batch, strict=True))


@given(st.sampled_from([EarlyStop, Threshold]), batches, costs)
def test_no_confidence_is_looked_at_beyond_the_first_token_that_is_not_verified(
    policy: Callable[[], Policy], batch: list[list[float]], cost: StepCost
) -> None:
    watched = [WatchedConfidence(block) for block in batch]
    lengths = policy().lengths(decoding_step(watched), cost)
    assert all(each.seen <= n + 1 for each, n in zip(watched, lengths, strict=True))


@given(batches, batches, costs)
def test_a_delayed_budget_decides_alike_whatever_comes_after_the_last_verified_token(
    earlier: list[list[float]], batch: list[list[float]], cost: StepCost
) -> None:
    def lengths(present: list[list[float]]) -> list[int]:
        policy = DelayedBudget()
        for past in (earlier, earlier):
            policy.lengths(decoding_step(past), cost)
        return policy.lengths(decoding_step(present), cost)

    chosen = lengths(batch)
    for unseen in (0.0, 1.0):
        changed = [
            [*block[: n + 1], *([unseen] * len(block[n + 1 :]))]
            for block, n in zip(batch, chosen, strict=True)
        ]
        assert lengths(changed) == chosen


@given(batches, affine_costs)
def test_where_costs_rise_evenly_stopping_early_finds_the_best_of_all_prefixes(
    batch: list[list[float]], cost: Costs
) -> None:
    step = decoding_step(batch)
    lengths = EarlyStop().lengths(step, cost)
    everything = itertools.product(*(range(len(block) + 1) for block in batch[:3]))
    if len(batch) > 3:
        everything = ((*some, lengths[3]) for some in everything)
    free = Costs(cost.step, cost.drafting_ms if step.drafting.sequences else 0.0)
    best = max(throughput(step, each, free) for each in everything)
    assert throughput(step, lengths, free) == pytest.approx(best)


@given(blocks, st.data(), costs)
def test_a_sequence_alone_verifies_no_less_when_a_confidence_rises(
    block: list[float], data: st.DataObject, cost: StepCost
) -> None:
    raised = [data.draw(confidences.filter(lambda c, least=c0: c >= least)) for c0 in block]
    (before,) = EarlyStop().lengths(decoding_step([block]), cost)
    (after,) = EarlyStop().lengths(decoding_step([raised]), cost)
    assert after >= before


def test_a_stair_is_not_climbed_for_what_lies_beyond_it() -> None:
    stairs = Costs({1: 10, 2: 19, 3: 19, 4: 19, 5: 19, 6: 19}.__getitem__)
    certain = decoding_step([[0.8, 1, 1, 1, 1]])
    assert throughput(certain, [5], stairs) > throughput(certain, [0], stairs)
    assert EarlyStop().lengths(certain, stairs) == [0]


def test_a_delayed_budget_climbs_the_stair_that_paid_two_steps_ago() -> None:
    stairs = Costs({1: 10, 2: 19, 3: 19, 4: 19, 5: 19, 6: 19}.__getitem__)
    certain, doubtful = decoding_step([[0.8, 1, 1, 1, 1]]), decoding_step([[0.1] * 5])
    policy = DelayedBudget()
    drafts = [certain, doubtful, doubtful, certain, certain]
    assert [policy.lengths(step, stairs) for step in drafts] == [[0], [0], [5], [0], [0]]


def test_a_delayed_budget_goes_to_the_candidates_that_are_most_likely_now() -> None:
    cheap = affine(base=40, each=1)
    past = decoding_step([[0.9, 0.9, 0.0, 0.0], [0.9, 0.9, 0.0, 0.0]])
    policy = DelayedBudget()
    policy.lengths(past, cheap)
    policy.lengths(past, cheap)
    assert policy.lengths(decoding_step([[0.9, 0.9, 0.9, 0.1], [0.8, 0.1]]), cheap) == [3, 1]


def test_a_delayed_budget_shrinks_with_the_batch() -> None:
    cheap = affine(base=40, each=1)
    two, one = decoding_step([[0.9, 0.9], [0.9, 0.9]]), decoding_step([[0.9, 0.9, 0.9, 0.9]])
    policy = DelayedBudget()
    policy.lengths(two, cheap)
    policy.lengths(two, cheap)
    assert policy.lengths(one, cheap) == [2]


def test_a_speculative_sequence_is_the_first_to_lose_its_budget() -> None:
    hopeful, doubtful = [0.9, 0.9], [0.5, 0.5]
    steep = affine(base=10, each=4)
    alone = EarlyStop().lengths(decoding_step([hopeful]), steep)
    assert alone == [2]
    together = decoding_step([hopeful, doubtful], [Priority.SPECULATIVE, Priority.CONFIRMED])
    assert EarlyStop().lengths(together, steep) == [0, 1]


def test_what_drafting_took_counts_whatever_is_verified() -> None:
    step = decoding_step([[0.5, 0.5, 0.5]])
    (cheap,) = EarlyStop().lengths(step, affine(base=4, each=2))
    (dear,) = EarlyStop().lengths(step, affine(base=4, each=2, drafting_ms=20))
    # Once 20 ms are spent, a further token at 2 ms is worth more of them.
    assert (cheap, dear) == (1, 3)


def test_tokens_that_are_in_the_step_anyway_push_up_the_stairs() -> None:
    stairs = Costs(lambda tokens: 10.0 if tokens <= 8 else 30.0)
    draft = [Draft([0.9] * BLOCK)]
    alone = DecodingStep(draft, [Priority.CONFIRMED], certain_tokens=1)
    beside_a_prompt = DecodingStep(draft, [Priority.CONFIRMED], certain_tokens=6)
    assert EarlyStop().lengths(alone, stairs) == [BLOCK]
    assert EarlyStop().lengths(beside_a_prompt, stairs) == [2]


def test_a_token_that_only_breaks_even_is_not_verified() -> None:
    # 1 token in 10 ms, or 1.5 in 15.
    assert EarlyStop().lengths(decoding_step([[0.5]]), affine(base=5, each=5)) == [0]


def test_a_survival_at_the_threshold_is_enough() -> None:
    assert Threshold(0.5).lengths(decoding_step([[0.5, 1.0, 0.9]]), affine(1, 1)) == [2]


def test_a_threshold_holds_for_the_whole_prefix() -> None:
    step = decoding_step([[0.9, 0.9, 0.9], [0.6, 1.0], [0.4, 1.0]])
    assert Threshold(0.8).lengths(step, affine(1, 1)) == [2, 0, 0]
    assert Threshold(0.5).lengths(step, affine(1, 1)) == [3, 2, 0]


# --- losslessness, as a distribution: the counterexample of the paper's appendix -----------------

DRAWS = 60_000
TARGET = np.array([0.7, 0.3])  # over the tokens A and B
DRAFTER = np.array([0.5, 0.5])
STEPS_PER_SECOND = (1.0, 0.5, 0.45)  # with 1, 2, 3 tokens in the step
FIRST_CONFIDENCE = 0.8
SECOND_CONFIDENCE = {"A": 1.0, "B": 0.0}  # what the second position's head makes of the first token
COUNTEREXAMPLE = Costs(lambda tokens: 1 / STEPS_PER_SECOND[tokens - 1])


class GlobalSearch:
    """The best prefix over the whole block: what must not be done."""

    def lengths(self, step: DecodingStep, cost: StepCost) -> list[int]:
        return [max(range(3), key=lambda length: throughput(step, [length], cost))]


def share_of_a(policy: Policy) -> float:
    """How often the first token comes out as A, over many draws with speculative sampling."""
    rng = np.random.default_rng(7)
    verified = {
        token: policy.lengths(decoding_step([[FIRST_CONFIDENCE, second]]), COUNTEREXAMPLE)[0] > 0
        for token, second in SECOND_CONFIDENCE.items()
    }
    drafted_a = rng.random(DRAWS) < DRAFTER[0]
    is_verified = np.where(drafted_a, verified["A"], verified["B"])
    ratio = TARGET / DRAFTER
    accepted = rng.random(DRAWS) < np.where(drafted_a, ratio[0], ratio[1])
    # The drafter has too little of A and too much of B, so a rejected B becomes A.
    after_verification = np.where(accepted, drafted_a, True)
    plain = rng.random(DRAWS) < TARGET[0]
    return float(np.mean(np.where(is_verified, after_verification, plain)))


FIVE_SIGMA = 5 * float(np.sqrt(0.7 * 0.3 / DRAWS))


def test_the_schedule_leaves_the_targets_distribution_as_it_is() -> None:
    assert share_of_a(EarlyStop()) == pytest.approx(TARGET[0], abs=FIVE_SIGMA)


def test_a_schedule_that_looked_ahead_would_be_found_out() -> None:
    assert share_of_a(GlobalSearch()) == pytest.approx(0.85, abs=FIVE_SIGMA)


# --- the scheduler of an engine ------------------------------------------------------------------

FREE_TOKENS = affine(base=10, each=0)
BLOCK_DRAFTED = Drafting(sequences=1, tokens=BLOCK)


def run(scheduler: Scheduler, steps: int, committed: int, verified: int = BLOCK) -> list[bool]:
    """Decode one sequence; says for each step whether it was drafted for."""
    drafted = []
    for _ in range(steps):
        drafted.append(scheduler.drafting)
        scheduler.record(
            1,
            sequences=1,
            drafting=BLOCK_DRAFTED if drafted[-1] else Drafting(),
            verified=verified if drafted[-1] else 0,
            committed=committed if drafted[-1] else 1,
        )
    return drafted


@pytest.mark.parametrize("schedule", sorted(set(SCHEDULES) - {"off"}))
def test_every_schedule_verifies_what_is_certain_and_free(schedule: str) -> None:
    scheduler = Scheduler.named(schedule, FREE_TOKENS)
    assert scheduler.drafting
    assert scheduler.schedule(1, [Draft([1.0] * BLOCK)]) == [BLOCK]


def test_off_never_drafts_nor_verifies() -> None:
    scheduler = Scheduler.named("off")
    assert not scheduler.drafting
    assert scheduler.schedule(1, [Draft([1.0] * BLOCK)]) == [0]


@pytest.mark.parametrize("schedule", sorted(set(SCHEDULES) - {"off"}))
def test_sequences_without_a_draft_verify_nothing(schedule: str) -> None:
    scheduler = Scheduler.named(schedule, FREE_TOKENS)
    assert scheduler.schedule(2, [Draft(()), Draft(())]) == [0, 0]
    assert scheduler.schedule(2, [Draft(()), Draft([1.0])]) == [0, 1]


def test_a_threshold_can_be_named_with_its_value() -> None:
    draft = [Draft([0.7, 1.0])]
    assert Scheduler.named("threshold:0.6").schedule(1, draft) == [2]
    assert Scheduler.named("threshold:0.8").schedule(1, draft) == [0]


def test_a_fixed_length_is_verified_whatever_the_confidence() -> None:
    drafts = [Draft((0.1, 0.9, 0.2)), Draft((0.5,)), Draft(())]
    assert Scheduler.named("full:2").schedule(3, drafts) == [2, 1, 0]
    assert Scheduler.named("full").schedule(3, drafts) == [3, 1, 0]


@pytest.mark.parametrize(
    "schedule",
    [
        "fastest",
        "",
        "confidence:2",
        "full:0",
        "full:-1",
        "full:all",
        "threshold:2",
        "threshold:high",
    ],
)
def test_an_unknown_schedule_is_refused(schedule: str) -> None:
    with pytest.raises(InvalidRequest, match="must be"):
        Scheduler.named(schedule, FREE_TOKENS)


@pytest.mark.parametrize("schedule", ["confidence", "confidence_delayed"])
def test_a_schedule_that_weighs_costs_asks_for_them(schedule: str) -> None:
    with pytest.raises(InvalidRequest, match="profile"):
        Scheduler.named(schedule)


def test_drafting_stops_when_it_costs_more_than_it_gives() -> None:
    slow_drafter = Scheduler.named("confidence", affine(base=10, each=1, drafting_ms=30))
    drafted = run(slow_drafter, steps=200, committed=2)
    assert drafted[0] and not drafted[-1]
    assert sum(drafted) < 30


def test_drafting_that_only_breaks_even_stops() -> None:
    # Two tokens in 20 ms with drafting, and in two plain steps of 10 ms.
    scheduler = Scheduler.named("confidence", affine(base=10, each=0, drafting_ms=10))
    assert not all(run(scheduler, steps=20, committed=2))


def test_confidences_that_promise_too_little_end_a_probe_whatever_luck_it_has() -> None:
    scheduler = Scheduler.named("confidence", affine(base=10, each=1, drafting_ms=5))
    steps = 0
    while scheduler.drafting:
        (length,) = scheduler.schedule(1, [Draft([0.3, 0.3])])
        drafting = Drafting(sequences=1, tokens=2)
        scheduler.record(1, sequences=1, drafting=drafting, verified=length, committed=1 + length)
        steps += 1
    assert steps == 4


def test_drafting_goes_on_while_it_pays() -> None:
    scheduler = Scheduler.named("confidence", affine(base=10, each=1, drafting_ms=5))
    assert all(run(scheduler, steps=200, committed=3))


def test_a_step_that_also_reads_a_prompt_is_not_blamed_on_the_drafts() -> None:
    scheduler = Scheduler.named("confidence", affine(base=1, each=10, drafting_ms=1))
    for _ in range(100):
        scheduler.record(64, sequences=1, drafting=BLOCK_DRAFTED, verified=1, committed=2)
    assert not scheduler.drafting, "two tokens cost as much as two plain steps, and drafting more"
    scheduler = Scheduler.named("confidence", affine(base=20, each=1, drafting_ms=1))
    for _ in range(100):
        scheduler.record(64, sequences=1, drafting=BLOCK_DRAFTED, verified=1, committed=2)
    assert scheduler.drafting


@pytest.mark.parametrize("schedule", ["full", "threshold"])
def test_schedules_that_weigh_no_costs_draft_whatever_comes_of_it(schedule: str) -> None:
    scheduler = Scheduler.named(schedule, affine(base=10, each=1, drafting_ms=30))
    assert all(run(scheduler, steps=200, committed=1))


def test_no_more_is_drafted_than_was_worth_verifying_lately() -> None:
    scheduler = Scheduler.named("confidence", affine(base=10, each=1))

    def step(*confidence: float) -> int | None:
        scheduler.schedule(1, [Draft(confidence)])
        return scheduler.most_drafted

    assert scheduler.most_drafted is None
    steps = [step(0.9, 0.9, 0.0, 0.0, 0.0) for _ in range(40)]
    assert steps[0] is None and steps[-1] == 3
    assert step(0.9, 0.9, 0.9) == 4, "all of it was verified, so more might have been"
    assert step(0.9, 0.9, 0.9, 0.9) == 5
    assert [step(0.0, 0.0, 0.0, 0.0, 0.0) for _ in range(16)][-1] == 1


def test_of_a_tree_the_longest_path_counts() -> None:
    shape = TreeShape.with_seconds(5, 2)
    assert shape.depths == (1, 2, 1, 3, 2, 4, 5)
    scheduler = Scheduler.named("confidence", affine(base=10, each=1))
    for _ in range(40):
        scheduler.schedule(1, [Draft((0.9, 0.9, 0.9, 0.0, 0.0, 0.0, 0.0), shape)])
    assert scheduler.most_drafted == 3
    assert Drafting.of([Draft((0.9,) * 7, shape)]) == Drafting(1, 5, 0)


def test_a_fixed_length_is_what_is_drafted() -> None:
    assert Scheduler.named("full:2").most_drafted == 2
    assert Scheduler.named("full").most_drafted is None


def test_what_was_drafted_is_counted_by_sequences_tokens_and_draws() -> None:
    drafts = [Draft([0.5, 0.5]), Draft(()), Draft([0.5], sampled=True)]
    assert Drafting.of(drafts) == Drafting(sequences=2, tokens=3, sampled=1)


# --- the switch ----------------------------------------------------------------------------------


def drive(switch: SpeculationSwitch, steps: int, gain: Callable[[int], float]) -> list[bool]:
    """Steps with a given gain over plain decoding; says for each whether it was drafted for."""
    on = []
    for step in range(steps):
        on.append(switch.on)
        if switch.on:
            switch.record_drafted(spent_ms=1.0, plain_ms=gain(step))
        else:
            switch.record_plain()
    return on


def runs(on: Sequence[bool]) -> list[tuple[bool, int]]:
    return [(state, len(list(group))) for state, group in itertools.groupby(on)]


def test_rests_between_failed_probes_double_up_to_a_limit() -> None:
    switch = SpeculationSwitch(probe_steps=4, rest_steps=10, longest_rest_steps=40)
    probe, rests = (True, 4), [(False, 10), (False, 20), (False, 40), (False, 40)]
    expected = [each for rest in rests for each in (probe, rest)]
    assert runs(drive(switch, 200, lambda _: 0.5))[: len(expected)] == expected


def test_a_hopeless_probe_is_not_finished_and_a_doubtful_one_is() -> None:
    switch = partial(SpeculationSwitch, probe_steps=12, fewest_steps=4, rest_steps=100)
    assert runs(drive(switch(), 50, lambda _: 0.7))[0] == (True, 4)
    doubtful = partial(switch, least_expected_gain=0.0)
    assert runs(drive(doubtful(), 50, lambda _: 0.9))[0] == (True, 12)
    assert runs(drive(doubtful(), 50, lambda step: 0.9 if step < 6 else 1.5))[0] == (True, 50)


@pytest.mark.parametrize(("promised", "drafted_steps"), [(0.9, 4), (1.0, 20)])
def test_a_probe_that_promises_nothing_is_not_finished(promised: float, drafted_steps: int) -> None:
    switch = SpeculationSwitch(probe_steps=12, fewest_steps=4)
    drafted = 0
    while switch.on and drafted < 20:
        switch.record_drafted(spent_ms=1.0, plain_ms=1.2, expected_plain_ms=promised)
        drafted += 1
    assert drafted == drafted_steps


def test_a_text_that_turns_predictable_is_noticed_at_the_next_probe() -> None:
    switch = SpeculationSwitch(probe_steps=4, rest_steps=10)
    assert runs(drive(switch, 100, lambda step: 0.5 if step < 10 else 2.0)) == [
        (True, 4),
        (False, 10),
        (True, 86),
    ]


def test_a_successful_probe_makes_the_next_rest_short_again() -> None:
    switch = SpeculationSwitch(probe_steps=4, rest_steps=10, window_steps=4)
    failing_again = 14 + 24 + 10  # two failed probes with their rests, ten good steps
    on = drive(switch, 120, lambda step: 2.0 if 38 <= step < failing_again else 0.5)
    assert runs(on)[:4] == [(True, 4), (False, 10), (True, 4), (False, 20)]
    assert runs(on)[5] == (False, 10)


def test_breaking_even_does_not_turn_it_on_and_does_not_turn_it_off() -> None:
    assert not all(drive(SpeculationSwitch(), 100, lambda _: 1.02))
    assert all(drive(SpeculationSwitch(), 400, lambda step: 2.0 if step < 100 else 1.02))


def test_one_bad_step_among_good_ones_does_not_turn_it_off() -> None:
    assert all(drive(SpeculationSwitch(), 400, lambda step: 0.3 if step % 4 == 3 else 1.5))


def test_the_gain_is_known_after_the_first_drafted_step() -> None:
    switch = SpeculationSwitch()
    assert switch.gain is None
    switch.record_drafted(spent_ms=2.0, plain_ms=3.0)
    assert switch.gain == 1.5
