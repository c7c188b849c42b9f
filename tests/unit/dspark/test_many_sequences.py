"""Sixty-four sequences get their own answers, in the same memory, and confirmed ones go first."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from dspark import (
    Drafter,
    Engine,
    Generation,
    Priority,
    SamplingParams,
    Target,
    load_drafter,
    load_target,
)
from dspark.kv_cache import TILE
from dspark.waiting_features import ROOM_TOKENS
from tests.unit.dspark.conftest import WatchedTarget
from tests.unit.dspark.memory import tensor_bytes
from tests.unit.dspark.rivals import RIVALS, TREES, rival

SEQUENCES = 64
CONTEXT = 128
PREFILL = 16
Tokens = tuple[int, ...]
OpenEngine = Callable[..., Engine]
Write = Callable[..., Path]


@dataclass(frozen=True)
class Client:
    """One request and what its client does with it.

    Attributes:
        arrives_after: when it comes, in tokens that the engine has committed to anybody.
        leaves_after: after how many tokens it cancels; never if None.
        confirms_after: after how many tokens a speculative one is promoted, if ever.
    """

    prompt: Tokens
    params: SamplingParams
    priority: Priority
    arrives_after: int
    leaves_after: int | None
    confirms_after: int | None


def clients(seed: int, temperatures: Sequence[float] = (0.0,)) -> list[Client]:
    """Prompts of all lengths, some with a common beginning."""
    rng = random.Random(seed)
    system = tuple(rng.randrange(2, 64) for _ in range(20))

    def client(number: int) -> Client:
        own = tuple(rng.randrange(2, 64) for _ in range(rng.randint(1, 40)))
        return Client(
            prompt=(*system, *own) if rng.random() < 0.5 else own,
            params=SamplingParams(
                temperature=rng.choice(temperatures),
                seed=number,
                repetition_penalty=rng.choice([1.0, 1.2]),
                max_new_tokens=rng.randint(1, 30),
            ),
            priority=rng.choice([*Priority]),
            arrives_after=rng.choice([0, 0, rng.randrange(200)]),
            leaves_after=rng.choice([None, None, rng.randint(1, 10)]),
            confirms_after=rng.choice([None, rng.randint(1, 5)]),
        )

    return [client(number) for number in range(SEQUENCES)]


@pytest.fixture(params=["plain", "dspark"])
def engine_parts(
    request: pytest.FixtureRequest, tiny_folder: Path, write_drafter: Write
) -> tuple[Target, Drafter | None]:
    """In int8, where what shares a step changes not a bit."""
    target = load_target(tiny_folder, dtype="int8")
    return target, load_drafter(write_drafter(), target) if request.param == "dspark" else None


@pytest.fixture(params=[(each, shape) for each in RIVALS for shape in TREES], ids="-".join)
def rival_parts(
    request: pytest.FixtureRequest, tiny_folder: Path, tmp_path: Path
) -> tuple[Target, Drafter]:
    name, shape = request.param
    target = load_target(tiny_folder, dtype="int8")
    return target, rival(name, target, tmp_path, TREES[shape])


async def serve(engine: Engine, everyone: Sequence[Client]) -> list[tuple[Tokens, Generation]]:
    """Let all clients do what they do, and return what each received."""
    progress = asyncio.Condition()

    async def one(client: Client) -> tuple[Tokens, Generation]:
        async with progress:
            await progress.wait_for(
                # Where nobody is left who could make progress, nobody waits for it.
                lambda: (
                    engine.metrics.tokens_committed >= client.arrives_after
                    or not (engine.running or engine.waiting)
                )
            )
        generation = engine.submit(client.prompt, client.params, priority=client.priority)
        received: list[int] = []
        async for step in generation:
            received += step.committed
            if client.confirms_after is not None and len(received) >= client.confirms_after:
                generation.promote(Priority.CONFIRMED)
            if client.leaves_after is not None and len(received) >= client.leaves_after:
                generation.cancel()
            async with progress:
                progress.notify_all()
        async with progress:
            progress.notify_all()
        return tuple(received), generation

    return await asyncio.gather(*(one(client) for client in everyone))


@pytest.mark.parametrize("slots", [6, SEQUENCES])
def test_each_of_sixty_four_gets_what_it_gets_alone(
    slots: int, engine_parts: tuple[Target, Drafter | None]
) -> None:
    check_each_gets_what_it_gets_alone(SEQUENCES, slots, *engine_parts)


def test_so_it_is_whatever_drafts(rival_parts: tuple[Target, Drafter]) -> None:
    check_each_gets_what_it_gets_alone(24, 6, *rival_parts)


def check_each_gets_what_it_gets_alone(
    sequences: int, slots: int, target: Target, drafter: Drafter | None
) -> None:
    # With drafts it is how much is drafted that decides which random numbers a token gets.
    everyone = clients(seed=slots, temperatures=(0.0,) if drafter else (0.0, 1.0))[:sequences]
    with Engine(target, drafter, slots=1, context_tokens=CONTEXT) as alone:
        expected = [alone.generate(each.prompt, each.params).token_ids for each in everyone]
    with Engine(
        target, drafter, slots=slots, context_tokens=CONTEXT, prefill_tokens=PREFILL
    ) as engine:
        received = asyncio.run(serve(engine, everyone))
        assert engine.running == engine.waiting == 0
    for client, (tokens, generation), whole in zip(everyone, received, expected, strict=True):
        assert tokens == whole[: len(tokens)]
        if generation.finish_reason != "cancelled":
            assert tokens == whole
        elif drafter is None:
            assert len(tokens) == client.leaves_after
    reasons = {generation.finish_reason for _, generation in received}
    assert {"length", "cancelled"} <= reasons


def test_keys_and_values_take_what_they_took_at_the_start(
    engine_parts: tuple[Target, Drafter | None],
) -> None:
    target, drafter = engine_parts
    slots = 6
    before = tensor_bytes()
    with Engine(target, drafter, slots=slots, context_tokens=CONTEXT) as engine:
        opened = tensor_bytes()
        asyncio.run(serve(engine, clients(seed=1)[:20]))
        engine.warm_up()
        assert tensor_bytes() == opened
        assert opened - before == engine.cache_bytes
        waiting = 0
        if drafter is not None:
            features = len(drafter.taps) * target.decoder.config.hidden_size
            waiting = slots * ROOM_TOKENS * features * target.decoder.dtype.itemsize
        assert engine.cache_bytes == waiting + sum(
            2 * layers * slots * positions * config.kv_width * target.decoder.dtype.itemsize
            for config, layers, positions in [
                (target.decoder.config, target.decoder.config.layers, CONTEXT),
                # A block lies behind the context, and attention reads whole tiles.
                *([(target.decoder.config, 2, CONTEXT + TILE)] if drafter else []),
            ]
        )


def longest(tokens: int = 100) -> SamplingParams:
    """Never stops by itself before `tokens`."""
    return SamplingParams(max_new_tokens=tokens, logit_bias={1: float("-inf")})


def test_a_cancelled_sequences_slot_is_free_after_one_step(open_engine: OpenEngine) -> None:
    engine = open_engine(slots=SEQUENCES, prefill_tokens=2 * SEQUENCES)
    target = engine.target
    target.hold()
    everyone = [engine.submit([number, number], longest()) for number in range(SEQUENCES)]
    target.step(3)
    target.wait_held()
    assert engine.running == len(target.forwards[-1]) == SEQUENCES
    newcomer = engine.submit([9, 8, 7], longest(1))
    everyone[7].cancel()
    target.step()  # the one under way
    target.wait_held()
    # The 9 is reused from another sequence.
    (joined,) = [span for span in target.forwards[-1] if list(span.tokens) == [8, 7]]
    spans = (span for forward in target.forwards for span in forward)
    assert joined.slot == next(span.slot for span in spans if list(span.tokens) == [7, 7])
    assert len(target.forwards[-1]) == SEQUENCES
    target.let_go()
    assert sum(len(step.committed) for step in newcomer) == 1


@pytest.mark.parametrize("slots", [4, 16], ids=["taking a slot", "with free slots"])
@pytest.mark.parametrize("drafted", [False, True])
def test_eight_guesses_hardly_delay_a_confirmed_request(
    slots: int, drafted: bool, target: WatchedTarget, write_drafter: Write
) -> None:
    """Until its first token: 1.2 times the steps it takes alone, and no token of theirs in them."""
    drafter = load_drafter(write_drafter(), target) if drafted else None
    prompt = [number % 50 + 12 for number in range(100)]

    def first_of_answer(arrived: int) -> int | None:
        """Which forward since then is the first that decodes."""
        for number, spans in enumerate(target.forwards[arrived:], arrived):
            if any(span.start == len(prompt) for span in spans):
                return number
        return None

    def steps_of(engine: Engine) -> list[int]:
        """How many tokens each forward computes from now on until the request has its first."""
        engine.submit(prompt, longest())
        arrived = len(target.forwards)
        target.wait_held()
        # A forward may pass before it is looked at, so all that have come since count.
        while (first := first_of_answer(arrived)) is None:
            target.step()
            target.wait_held()
        tokens = [
            sum(len(span.tokens) for span in spans) for spans in target.forwards[arrived:first]
        ]
        target.let_go()
        return tokens

    def open_engine() -> Engine:
        target.forwards.clear()
        target.hold()
        return Engine(target, drafter, slots=slots, context_tokens=CONTEXT, prefill_tokens=PREFILL)

    with open_engine() as engine:
        alone = steps_of(engine)
    with open_engine() as engine:
        for number in range(8):
            engine.submit([number + 2] * 20, longest(), priority=Priority.SPECULATIVE)
        target.step(25)
        target.wait_held()
        after_the_one_under_way = steps_of(engine)
    assert after_the_one_under_way == alone
    assert sum(alone) == len(prompt)
    assert 1 + len(after_the_one_under_way) <= 1.2 * len(alone)
