"""The engine: who is served, in which order, what they get, and what happens when it ends."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from contextlib import aclosing

import pytest

from dspark import (
    Engine,
    EngineClosed,
    EngineFull,
    GenerationFailed,
    InvalidRequest,
    Priority,
    PromptTooLong,
    SamplingParams,
    Step,
    Target,
)
from tests.unit.dspark.answers import PROMPTS, answer, greedily, longest

PREFILL = 8  # tokens a step, small enough that prompts take several
OpenEngine = Callable[..., Engine]


# --- what comes out ------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
def test_an_answer_is_what_recomputing_everything_gives(engine: Engine, prompt: list[int]) -> None:
    result = engine.generate(prompt, SamplingParams(max_new_tokens=20))
    assert list(result.token_ids) == greedily(engine.target, prompt, 20)


def test_requests_together_get_what_each_gets_alone(open_engine: OpenEngine) -> None:
    engine = open_engine(prefill_tokens=PREFILL)
    generations = [engine.submit(prompt, longest(20)) for prompt in PROMPTS]
    together = [answer(generation) for generation in generations]
    alone = [list(engine.generate(prompt, longest(20)).token_ids) for prompt in PROMPTS]
    assert together == alone


def test_plain_steps_have_an_anchor_and_one_token_each(engine: Engine) -> None:
    result = engine.generate(PROMPTS[0], longest(4))
    anchors = [PROMPTS[0][-1], *result.token_ids[:-1]]
    assert result.steps == tuple(
        Step(anchor, committed=(token,))
        for anchor, token in zip(anchors, result.token_ids, strict=True)
    )


def test_a_stop_token_ends_the_answer_and_is_not_part_of_it(engine: Engine) -> None:
    first, second = engine.generate(PROMPTS[0], longest(2)).token_ids
    assert first != second
    result = engine.generate(PROMPTS[0], SamplingParams(stop_token_ids=frozenset({second})))
    assert result.token_ids == (first,)
    assert result.finish_reason == "stop"
    assert result.steps[-1] == Step(first)


def test_the_models_own_stop_token_needs_no_mention(engine: Engine) -> None:
    (stop,) = engine.target.stop_token_ids
    result = engine.generate(PROMPTS[0], SamplingParams(logit_bias={stop: 1000.0}))
    assert (result.token_ids, result.finish_reason) == ((), "stop")


def test_an_answer_ends_at_its_length_limit(engine: Engine) -> None:
    result = engine.generate(PROMPTS[0], longest(3))
    assert (len(result.token_ids), result.finish_reason) == (3, "length")


def test_an_answer_ends_where_the_context_ends(open_engine: OpenEngine) -> None:
    engine = open_engine(context_tokens=8)
    result = engine.generate(PROMPTS[0], longest(50))
    assert (len(result.token_ids), result.finish_reason) == (8 - len(PROMPTS[0]), "length")


def test_the_context_is_never_longer_than_the_models(open_engine: OpenEngine) -> None:
    engine = open_engine(context_tokens=10**9)
    assert engine.context_tokens == engine.target.context_tokens


def test_a_seed_repeats_an_answer_whatever_shares_its_steps(engine: Engine) -> None:
    params = SamplingParams(temperature=1.5, top_p=0.95, seed=5, max_new_tokens=30)
    alone = engine.generate(PROMPTS[0], params).token_ids
    crowd = [engine.submit(prompt, longest(30)) for prompt in PROMPTS[1:]]
    assert tuple(answer(engine.submit(PROMPTS[0], params))) == alone
    for generation in crowd:
        generation.cancel()
    other = SamplingParams(temperature=1.5, top_p=0.95, seed=6, max_new_tokens=30)
    assert engine.generate(PROMPTS[0], other).token_ids != alone


def test_a_history_penalty_sees_the_answer_so_far(engine: Engine) -> None:
    result = engine.generate(PROMPTS[0], SamplingParams(presence_penalty=1e6, max_new_tokens=40))
    assert len(set(result.token_ids)) == len(result.token_ids)


# --- the order of service ------------------------------------------------------------------------


def test_a_long_prompt_does_not_hold_up_a_running_answer(open_engine: OpenEngine) -> None:
    engine = open_engine(prefill_tokens=PREFILL)
    target = engine.target
    target.hold()
    engine.submit(PROMPTS[2], longest())
    target.step()
    target.wait_held()
    engine.submit([8] * 60, longest())
    target.step(1 + 60 // PREFILL)
    target.wait_held()
    with_prompt = target.forwards[2:]
    assert len(with_prompt) == 60 // PREFILL + 1
    for spans in with_prompt:
        assert any(len(span.tokens) == 1 for span in spans), "the answer got no token"
        assert sum(len(span.tokens) for span in spans) <= PREFILL + 1


def test_several_long_prompts_share_what_a_step_takes(open_engine: OpenEngine) -> None:
    engine = open_engine(prefill_tokens=PREFILL)
    target = engine.target
    target.hold()
    engine.submit([8] * 30, longest())
    target.wait_held()
    for token in (9, 10):
        engine.submit([token] * 30, longest())
    target.step(10)
    target.wait_held()
    assert len(target.forwards[-1]) > 1, "they should overlap by now"
    for spans in target.forwards:
        assert sum(len(span.tokens) for span in spans if len(span.tokens) > 1) <= PREFILL


def test_a_step_with_confirmed_work_holds_nothing_speculative(engine: Engine) -> None:
    target = engine.target
    target.hold()
    engine.submit([20] * 9, longest(), priority=Priority.SPECULATIVE)
    target.step(2)
    target.wait_held()
    engine.submit([30] * 9, longest(5))
    target.step(8)
    target.wait_held()
    owners = [[span.slot for span in spans] for spans in target.forwards]
    # The third forward was already under way; five confirmed steps follow it at once.
    assert owners == [[0], [0], [0], [1], [1], [1], [1], [1], [0], [0], [0]]


def test_a_promoted_request_joins_the_confirmed(engine: Engine) -> None:
    target = engine.target
    target.hold()
    guess = engine.submit([20] * 9, longest(), priority=Priority.SPECULATIVE)
    target.wait_held()
    engine.submit([30] * 9, longest())
    target.step()
    target.wait_held()
    assert [span.slot for span in target.forwards[-1]] == [1]
    guess.promote(Priority.CONFIRMED)
    target.step()
    target.wait_held()
    assert [span.slot for span in target.forwards[-1]] == [0, 1]


def test_a_held_request_waits_in_its_slot_until_it_is_promoted(engine: Engine) -> None:
    target = engine.target
    target.hold()
    guess = engine.submit([20] * 9, longest(20), priority=Priority.SPECULATIVE)
    target.step(2)
    target.wait_held()
    guess.hold()
    target.let_go()
    forwards = len(target.forwards)
    assert len(answer(engine.submit([30] * 9, longest(20)))) == 20  # others go on meanwhile
    assert engine.running == 1
    assert all(span.slot == 1 for spans in target.forwards[forwards:] for span in spans)
    guess.promote(Priority.CONFIRMED)
    assert answer(guess) == list(engine.generate([20] * 9, longest(20)).token_ids)


def test_nothing_holds_a_confirmed_request(engine: Engine) -> None:
    certain = engine.submit([20] * 9, longest(20))
    certain.hold()
    assert len(answer(certain)) == 20


def test_a_confirmed_request_takes_a_speculative_ones_slot(open_engine: OpenEngine) -> None:
    engine = open_engine(slots=1)
    target = engine.target
    target.hold()
    guess = engine.submit(PROMPTS[1], longest(20), priority=Priority.SPECULATIVE)
    target.step(4)
    target.wait_held()
    confirmed = engine.submit(PROMPTS[3], longest(20))
    target.let_go()
    assert answer(confirmed) == list(engine.generate(PROMPTS[3], longest(20)).token_ids)
    assert answer(guess) == list(engine.generate(PROMPTS[1], longest(20)).token_ids)


def test_a_full_queue_refuses_and_says_when_to_try_again(open_engine: OpenEngine) -> None:
    engine = open_engine(slots=1, max_queue=2)
    engine.target.hold()
    accepted = [engine.submit([9, 3], longest(2))]
    engine.target.wait_held()
    accepted += [engine.submit([9, token], longest(2)) for token in (4, 5)]
    with pytest.raises(EngineFull, match="try again when one has finished"):
        engine.submit([9, 6], longest(2))
    engine.target.let_go()
    assert [len(answer(generation)) for generation in accepted] == [2, 2, 2]
    assert len(engine.generate([9, 6], longest(2)).token_ids) == 2


def test_waiting_guesses_take_no_confirmed_requests_place(open_engine: OpenEngine) -> None:
    engine = open_engine(slots=1, max_queue=1)
    engine.target.hold()
    engine.submit([9, 3], longest(2))
    engine.target.wait_held()
    engine.submit([9, 4], longest(2), priority=Priority.SPECULATIVE)
    with pytest.raises(EngineFull):
        engine.submit([9, 5], longest(2), priority=Priority.SPECULATIVE)
    confirmed = engine.submit([9, 6], longest(2))
    engine.target.let_go()
    assert len(answer(confirmed)) == 2


# --- streaming and cancelling --------------------------------------------------------------------


def test_steps_arrive_while_the_answer_is_being_made(engine: Engine) -> None:
    async def scenario() -> list[int]:
        engine.target.hold()
        generation = engine.submit(PROMPTS[2], longest(3))
        received = []
        for _ in range(3):
            assert generation.finish_reason is None
            await asyncio.to_thread(engine.target.step)
            received += (await anext(generation)).committed
        with pytest.raises(StopAsyncIteration):
            await anext(generation)
        assert generation.finish_reason == "length"
        return received

    received = asyncio.run(scenario())
    engine.target.let_go()
    assert tuple(received) == engine.generate(PROMPTS[2], longest(3)).token_ids


def test_a_cancelled_request_is_gone_after_the_step_under_way(engine: Engine) -> None:
    target = engine.target
    target.hold()
    cancelled = engine.submit([20] * 5, longest())
    target.wait_held()
    other = engine.submit([30] * 5, longest(8))
    target.step(3)
    target.wait_held()
    assert [span.slot for span in target.forwards[-1]] == [0, 1]
    engine.cancel(cancelled)
    assert cancelled.finish_reason == "cancelled"
    assert list(cancelled) == [], "steps not yet read are dropped as well"
    target.step()
    target.wait_held()
    assert [span.slot for span in target.forwards[-1]] == [1]
    assert engine.running == 1
    target.let_go()
    assert len(answer(other)) == 8


def test_a_waiting_request_can_be_cancelled(open_engine: OpenEngine) -> None:
    engine = open_engine(slots=1)
    engine.target.hold()
    first = engine.submit(PROMPTS[0], longest(3))
    engine.target.wait_held()
    second = engine.submit(PROMPTS[1], longest(3))
    second.cancel()
    engine.target.let_go()
    assert len(answer(first)) == 3
    assert answer(second) == []
    assert all(span.tokens != PROMPTS[1] for spans in engine.target.forwards for span in spans)


def test_cancelling_a_finished_request_changes_nothing(engine: Engine) -> None:
    generation = engine.submit(PROMPTS[0], longest(2))
    assert len(answer(generation)) == 2
    generation.cancel()
    assert generation.finish_reason == "length"


def test_closing_a_stream_cancels_its_request(engine: Engine) -> None:
    async def scenario() -> None:
        async with aclosing(engine.stream(PROMPTS[0], longest())) as steps:
            async for _ in steps:
                break

    asyncio.run(scenario())
    assert len(engine.generate(PROMPTS[1], longest(2)).token_ids) == 2
    assert engine.running == 0


def test_a_cancelled_task_stops_waiting_for_its_request(engine: Engine) -> None:
    async def scenario() -> None:
        engine.target.hold()
        generation = engine.submit(PROMPTS[0], longest(2))
        reader = asyncio.ensure_future(anext(generation))
        await asyncio.sleep(0)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        engine.target.let_go()
        assert len([step async for step in generation]) == 2

    asyncio.run(scenario())


def test_many_clients_that_come_and_go_get_their_own_answers(open_engine: OpenEngine) -> None:
    """Whatever is cancelled, promoted or preempted meanwhile."""
    engine = open_engine(slots=3, prefill_tokens=PREFILL)
    expected = [engine.generate(prompt, longest(15)).token_ids for prompt in PROMPTS]

    async def client(number: int) -> None:
        rng = random.Random(number)
        which = rng.randrange(len(PROMPTS))
        generation = engine.submit(PROMPTS[which], longest(15), priority=rng.choice([*Priority]))
        leaves_after = rng.choice([2, 7, None])
        received: list[int] = []
        async for step in generation:
            received += step.committed
            if rng.random() < 0.3:
                generation.promote(Priority.CONFIRMED)
            if len(received) == leaves_after:
                generation.cancel()
        # The engine may be done before a slow client comes to cancel.
        left = generation.finish_reason == "cancelled"
        assert tuple(received) == expected[which][: leaves_after if left else 15]
        assert generation.finish_reason == "length" or leaves_after

    async def scenario() -> None:
        await asyncio.gather(*(client(number) for number in range(40)))

    asyncio.run(scenario())
    assert engine.running == engine.waiting == 0
    assert engine.generate(PROMPTS[0], longest(15)).token_ids == expected[0]


# --- what goes wrong -----------------------------------------------------------------------------


def test_a_failing_forward_fails_that_request_alone(engine: Engine) -> None:
    poison = 63
    engine.target.hold()
    engine.target.fails_on = poison
    healthy = [engine.submit(PROMPTS[0], longest(5))]
    engine.target.wait_held()
    doomed = engine.submit([9, 9, poison], longest(5))
    healthy.append(engine.submit(PROMPTS[1], longest(5)))
    engine.target.let_go()
    with pytest.raises(GenerationFailed, match="submit it again") as failure:
        answer(doomed)
    assert isinstance(failure.value.__cause__, RuntimeError)
    assert doomed.finish_reason is None
    engine.target.fails_on = None
    expected = [greedily(engine.target, prompt, 5) for prompt in PROMPTS[:2]]
    assert [answer(generation) for generation in healthy] == expected
    retried = engine.generate([9, 9, poison], SamplingParams(max_new_tokens=5)).token_ids
    assert list(retried) == greedily(engine.target, [9, 9, poison], 5)


def test_a_distribution_without_tokens_fails_that_request_alone(engine: Engine) -> None:
    nothing = dict.fromkeys(range(64), float("-inf"))
    with pytest.raises(GenerationFailed):
        engine.generate(PROMPTS[0], SamplingParams(temperature=1.0, logit_bias=nothing))
    assert len(engine.generate(PROMPTS[0], longest(2)).token_ids) == 2


@pytest.mark.parametrize(
    ("prompt", "params", "complaint"),
    [
        ([], SamplingParams(), "empty"),
        ([64], SamplingParams(), "token 64 is outside"),
        ([-1], SamplingParams(), "token -1 is outside"),
        ([3], SamplingParams(logit_bias={99: 1.0}), "token 99 is outside"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_at_once(
    engine: Engine, prompt: list[int], params: SamplingParams, complaint: str
) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        engine.submit(prompt, params)


def test_a_prompt_that_fills_the_context_is_refused(open_engine: OpenEngine) -> None:
    engine = open_engine(context_tokens=16)
    with pytest.raises(PromptTooLong, match=r"16 tokens .* context is 16: shorten it"):
        engine.submit([3] * 16)
    assert len(engine.generate([3] * 15, longest(5)).token_ids) == 1


@pytest.mark.parametrize("setting", ["slots", "context_tokens", "max_queue", "prefill_tokens"])
def test_an_engine_of_size_zero_is_refused(open_engine: OpenEngine, setting: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{setting} is 0"):
        open_engine(**{setting: 0})


def test_closing_leaves_no_thread_and_fails_what_was_unfinished(target: Target) -> None:
    before = set(threading.enumerate())
    engine = Engine(target, slots=1, context_tokens=128)
    running, waiting = (engine.submit(prompt, longest(100)) for prompt in PROMPTS[:2])
    next(iter(running))
    engine.close()
    assert set(threading.enumerate()) == before
    for generation in (running, waiting):
        with pytest.raises(EngineClosed, match="open another"):
            answer(generation)
    with pytest.raises(EngineClosed):
        engine.submit(PROMPTS[0])
    engine.close()


def test_an_idle_engine_can_be_warmed_up_and_closed(target: Target) -> None:
    with Engine(target, context_tokens=4) as engine:
        engine.warm_up()
        assert engine.running == engine.waiting == 0
