"""What waits for a client is bounded, keeps its order, and holds no sound that was voided."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assistant.realtime.errors import CLIENT_TOO_SLOW, ConnectionEnded
from assistant.realtime.outbox import Outbox, Outgoing

GENERATIONS = st.integers(min_value=0, max_value=5)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.none() | GENERATIONS),
        st.tuples(st.just("void"), GENERATIONS),
        st.tuples(st.just("take"), st.none()),
    ),
    max_size=60,
)


@given(STEPS)
def test_what_leaves_is_in_order_and_never_void(steps: list[tuple[str, int | None]]) -> None:
    async def run() -> None:
        outbox = Outbox(limit=100)
        expected: list[tuple[int, int | None]] = []
        voided = -1
        for number, (step, generation) in enumerate(steps):
            if step == "put":
                outbox.put(Outgoing({"n": number}, generation))
                if generation is None or generation > voided:
                    expected.append((number, generation))
            elif step == "void" and generation is not None:
                outbox.void(generation)
                voided = max(voided, generation)
                expected = [(n, g) for n, g in expected if g is None or g > voided]
            elif expected:
                assert await outbox.take() == {"n": expected.pop(0)[0]}
            assert len(outbox) == len(expected)
        puts = sum(step == "put" for step, _ in steps)
        taken = puts - outbox.dropped - len(outbox)
        assert taken >= 0

    asyncio.run(run())


def test_sound_voided_while_somebody_waits_for_it_is_not_handed_over() -> None:
    async def run() -> None:
        outbox = Outbox(limit=10)
        waiting = asyncio.create_task(outbox.take())
        await asyncio.sleep(0)  # it waits now
        outbox.put(Outgoing({"n": "stale"}, generation=1))
        outbox.void(1)  # after the waiting task was woken, before it ran
        outbox.put(Outgoing({"n": "fresh"}, generation=2))
        assert await waiting == {"n": "fresh"}

    asyncio.run(run())


def test_one_event_too_many_ends_the_connection() -> None:
    async def run() -> None:
        outbox = Outbox(limit=2)
        for number in range(3):
            outbox.put(Outgoing({"n": number}))
        with pytest.raises(ConnectionEnded) as ended:
            await outbox.take()
        assert (ended.value.code, ended.value.reason) == CLIENT_TOO_SLOW
        assert (await outbox.wait_ended()).reason == CLIENT_TOO_SLOW[1]
        outbox.put(Outgoing({"n": "late"}))
        assert len(outbox) == 0

    asyncio.run(run())


def test_the_first_reason_to_end_stays() -> None:
    async def run() -> None:
        outbox = Outbox(limit=2)
        outbox.end(ConnectionEnded(1000, "first"))
        outbox.end(ConnectionEnded(1011, "second"))
        assert (await outbox.wait_ended()).reason == "first"

    asyncio.run(run())


def test_a_client_that_asks_faster_than_it_reads_waits_for_itself() -> None:
    async def run() -> None:
        outbox = Outbox(limit=4)
        for number in range(3):
            outbox.put(Outgoing({"n": number}))
        asking = asyncio.create_task(outbox.wait_for_room(patience_s=60))
        await asyncio.sleep(0)
        assert not asking.done()
        await outbox.take()
        await asking
        assert len(outbox) == 2

    asyncio.run(run())


def test_a_client_that_asks_and_never_reads_is_ended() -> None:
    async def run() -> None:
        outbox = Outbox(limit=4)
        for number in range(3):
            outbox.put(Outgoing({"n": number}))
        await outbox.wait_for_room(patience_s=0)
        assert (await outbox.wait_ended()).reason == CLIENT_TOO_SLOW[1]

    asyncio.run(run())
