"""What an engine says it has done is what its steps and its clients say."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest

from dspark import Engine, EngineMetrics, Priority, SamplingParams, Step, Target
from dspark.drafters import Anchor, Draft

PROMPTS = [[5, 9, 2, 33, 60], [7] * 23, [40, 3], list(range(10, 59))]
BLOCK = 3
OpenEngine = Callable[..., Engine]


def longest(tokens: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=tokens, logit_bias={1: float("-inf")})


class Constant:
    """Always drafts the same token, with the same confidences."""

    taps: Sequence[int] = (0,)
    block_size = BLOCK

    def new_cache(self, slots: int, context_tokens: int) -> None:
        return None

    def extend(self, cache: object, slot: int, start: int, features: object) -> None:
        """It has no use for features."""

    def draft(self, cache: object, anchors: Sequence[Anchor]) -> list[Draft]:
        return [Draft((40,) * BLOCK, (), (0.9, 0.6, 0.5)) for _ in anchors]


def test_a_new_engine_has_done_nothing(engine: Engine) -> None:
    assert engine.metrics == EngineMetrics()


def test_a_snapshot_is_frozen(engine: Engine) -> None:
    before = engine.metrics
    engine.generate(PROMPTS[0], longest(3))
    assert before == EngineMetrics() != engine.metrics
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.steps = 3  # type: ignore[misc]


def test_counts_are_the_sums_of_what_the_steps_say(target: Target) -> None:
    with Engine(target, Constant(), "threshold", context_tokens=128) as engine:
        generations = [engine.submit(prompt, longest(20)) for prompt in PROMPTS]
        steps: list[Step] = [step for generation in generations for step in generation]
        found = engine.metrics
    assert found.tokens_committed == sum(len(step.committed) for step in steps) == 80
    assert found.tokens_drafted == sum(len(step.draft) for step in steps)
    assert found.tokens_scheduled == sum(step.scheduled for step in steps)
    assert found.tokens_accepted == sum(step.accepted for step in steps)
    assert 0 < found.tokens_scheduled < found.tokens_drafted  # two of three survive with over 0.5
    places = range(2)
    assert found.scheduled_at == tuple(sum(s.scheduled > k for s in steps) for k in places)
    assert found.accepted_at == tuple(sum(s.accepted > k for s in steps) for k in places)
    assert found.acceptance == tuple(found.accepted_at[k] / found.scheduled_at[k] for k in places)


def test_steps_are_the_targets_forwards(engine: Engine) -> None:
    for prompt in PROMPTS:
        engine.generate(prompt, longest(5))
    assert engine.metrics.steps == len(engine.target.forwards)


def test_a_steps_time_goes_into_the_drafter_the_target_or_the_rest(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that goes on by one second whenever it is read."""
    readings = iter(range(10**6))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(readings)))
    with Engine(target, Constant(), "full", context_tokens=128) as engine:
        steps = engine.generate(PROMPTS[0], longest(3)).steps
        found = engine.metrics
    drafted = sum(1 for step in steps if step.draft)
    assert 0 < drafted < len(steps)
    # Begun, computing, computed, two readings around keeping the features, ended: five seconds in
    # between. Where something is drafted, two readings more around taking the features in, and two
    # around the draft.
    assert found.draft_ms == 1000 * len(steps) + 2000 * drafted
    assert found.target_ms == 1000 * len(steps)
    assert found.rest_ms == 3000 * len(steps) + 2000 * drafted


def test_prompt_tokens_are_reused_or_computed(engine: Engine) -> None:
    prompt = PROMPTS[3]
    engine.generate(prompt, longest(5))
    assert engine.metrics.prompt_tokens_computed == len(prompt)
    assert engine.metrics.prompt_tokens_reused == 0
    generation = engine.submit([*prompt, 4, 5], longest(5))
    assert len(list(generation)) == 5
    assert engine.metrics.prompt_tokens_reused == generation.cached_tokens == len(prompt)
    assert engine.metrics.prompt_tokens_computed == len(prompt) + 2


def test_a_prompt_computed_again_after_a_preemption_counts_again(open_engine: OpenEngine) -> None:
    engine = open_engine(slots=1)
    engine.target.hold()
    guess = engine.submit(PROMPTS[1], longest(5), priority=Priority.SPECULATIVE)
    engine.target.step(2)
    engine.target.wait_held()
    confirmed = engine.submit(PROMPTS[0], longest(5))
    engine.target.let_go()
    assert [len(list(each)) for each in (confirmed, guess)] == [5, 5]
    computed = 2 * len(PROMPTS[1]) + len(PROMPTS[0])
    assert engine.metrics.prompt_tokens_computed == computed
    assert engine.metrics.queued == 2, "who waits again after a preemption was not queued again"


def test_waiting_for_a_slot_is_timed(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now_s)
    engine = open_engine(slots=1)
    engine.target.hold()
    first = engine.submit(PROMPTS[0], longest(2))
    engine.target.wait_held()
    clock.now_s = 10.0
    second = engine.submit(PROMPTS[1], longest(2))
    clock.now_s = 12.0
    third = engine.submit(PROMPTS[1], longest(2))
    clock.now_s = 17.0
    engine.target.let_go()
    assert [len(list(each)) for each in (first, second, third)] == [2, 2, 2]
    found = engine.metrics
    assert (found.queued, found.queue_ms, found.longest_queue_ms) == (3, 12_000, 7000)


def test_cancelled_requests_count_once_wherever_they_were(open_engine: OpenEngine) -> None:
    engine = open_engine(slots=1)
    engine.target.hold()
    running = engine.submit(PROMPTS[0], longest(20))
    engine.target.wait_held()
    waiting = engine.submit(PROMPTS[1], longest(20))
    for generation in (running, waiting, running):
        generation.cancel()
    engine.target.let_go()
    finished = engine.submit(PROMPTS[2], longest(2))
    assert len(list(finished)) == 2
    finished.cancel()
    engine.generate(PROMPTS[2], longest(2))
    assert engine.metrics.cancellations == 2
