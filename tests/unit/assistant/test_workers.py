"""A worker's thread: the urgent first, the unwanted never, the end clean."""

from __future__ import annotations

import asyncio
import threading

import pytest

from assistant.workers import ThreadWorker, Urgency


def test_the_most_urgent_job_runs_first_and_equals_in_order() -> None:
    async def main() -> list[str]:
        worker = ThreadWorker("test")
        gate, ran = threading.Event(), list[str]()
        blocking = asyncio.create_task(worker.run(Urgency.HEARING, gate.wait))
        await asyncio.sleep(0)
        jobs = [
            asyncio.create_task(worker.run(urgency, ran.append, name))
            for urgency, name in (
                (Urgency.LATER_CLAUSE, "later"),
                (Urgency.FINAL, "final 1"),
                (Urgency.FIRST_CLAUSE, "first"),
                (Urgency.FINAL, "final 2"),
            )
        ]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(blocking, *jobs)
        worker.close()
        return ran

    assert asyncio.run(main()) == ["final 1", "final 2", "first", "later"]


def test_a_job_that_becomes_urgent_while_it_waits_goes_first() -> None:
    async def main() -> list[str]:
        worker = ThreadWorker("test")
        gate, ran, guess = threading.Event(), list[str](), [Urgency.GUESS]
        jobs = [
            asyncio.create_task(worker.run(Urgency.HEARING, gate.wait)),
            asyncio.create_task(worker.run(Urgency.LATER_CLAUSE, ran.append, "later")),
            asyncio.create_task(worker.run(lambda: guess[0], ran.append, "guessed right")),
        ]
        await asyncio.sleep(0)
        guess[0] = Urgency.FIRST_CLAUSE
        gate.set()
        await asyncio.gather(*jobs)
        worker.close()
        return ran

    assert asyncio.run(main()) == ["guessed right", "later"]


def test_a_job_whose_caller_has_gone_is_not_started() -> None:
    async def main() -> list[str]:
        worker = ThreadWorker("test")
        gate, ran = threading.Event(), list[str]()
        blocking = asyncio.create_task(worker.run(Urgency.FINAL, gate.wait))
        unwanted = asyncio.create_task(worker.run(Urgency.FINAL, ran.append, "unwanted"))
        await asyncio.sleep(0)
        unwanted.cancel()
        await asyncio.sleep(0)
        gate.set()
        await blocking
        await worker.run(Urgency.FINAL, ran.append, "wanted")
        worker.close()
        return ran

    assert asyncio.run(main()) == ["wanted"]


def test_how_long_a_job_waited_is_told_before_it_runs() -> None:
    told = list[tuple[str, Urgency]]()

    def note(name: str, urgency: Urgency, waited_s: float) -> None:
        assert waited_s >= 0
        told.append((name, urgency))

    async def main() -> None:
        worker = ThreadWorker("test", note)
        assert await worker.run(Urgency.FINAL, lambda: len(told)) == 1
        gate = threading.Event()
        blocking = asyncio.create_task(worker.run(Urgency.GUESS, gate.wait))
        unwanted = asyncio.create_task(worker.run(Urgency.FINAL, told.clear))
        await asyncio.sleep(0)
        unwanted.cancel()
        await asyncio.sleep(0)
        gate.set()
        await blocking
        worker.close()

    asyncio.run(main())
    assert told == [("test", Urgency.FINAL), ("test", Urgency.GUESS)]


def test_an_error_reaches_the_caller() -> None:
    async def main() -> None:
        worker = ThreadWorker("test")
        with pytest.raises(ZeroDivisionError):
            await worker.run(Urgency.FINAL, lambda: 1 // 0)
        assert await worker.run(Urgency.FINAL, lambda: "still there") == "still there"
        worker.close()

    asyncio.run(main())


def test_closing_ends_the_thread_and_the_waiting() -> None:
    async def main() -> None:
        worker = ThreadWorker("closing")
        started, gate = threading.Event(), threading.Event()

        def block() -> str:
            started.set()
            gate.wait()
            return "done"

        blocking = asyncio.create_task(worker.run(Urgency.FINAL, block))
        waiting = asyncio.create_task(worker.run(Urgency.FINAL, block))
        await asyncio.to_thread(started.wait)
        closing = asyncio.create_task(asyncio.to_thread(worker.close))
        with pytest.raises(asyncio.CancelledError):
            await waiting
        gate.set()
        await closing
        assert await blocking == "done"
        assert "closing" not in {thread.name for thread in threading.enumerate()}

    asyncio.run(main())
