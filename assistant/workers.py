"""Threads for inference: the event loop asks, a worker computes, the most urgent job first."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Protocol, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Urgency(IntEnum):
    """What goes first when several jobs wait for one worker."""

    HEARING = 0
    """Voice activity: every turn of every session hangs on it."""
    FINAL = 1
    """The words of a turn that is over."""
    FIRST_CLAUSE = 2
    """The first sound of an answer."""
    LATER_CLAUSE = 3
    GUESS = 4
    """What may turn out not to be wanted."""
    PARTIAL = 5
    """The words while the user is still speaking."""


OnWait = Callable[[str, Urgency, float], None]
"""Told a worker's name, a job's urgency, and the seconds that the job waited for the worker.

Called on the worker's thread."""


Urgencies = Urgency | Callable[[], Urgency]
"""How urgent a job is; a function is asked whenever the worker chooses its next job.

What began as a guess may be certain before its turn comes, and must not wait as a guess then."""


class Worker(Protocol):
    """Runs blocking functions away from the event loop, one at a time."""

    async def run(self, urgency: Urgencies, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Return `function(*arguments)`; a cancelled caller's job is not started any more."""
        ...


def urgency_now(urgency: Urgencies) -> Urgency:
    """Return how urgent a job is at this moment."""
    return urgency if isinstance(urgency, Urgency) else urgency()


class ThreadWorker:
    """One thread that runs the most urgent waiting job; equals go in the order of their asking."""

    def __init__(self, name: str, on_wait: OnWait = lambda name, urgency, waited_s: None) -> None:
        self._name = name
        self._on_wait = on_wait
        self._jobs: list[_Job] = []
        self._order = itertools.count()
        self._condition = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def run(self, urgency: Urgencies, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Return `function(*arguments)`; a cancelled caller's job is not started any more."""
        loop = asyncio.get_running_loop()
        job = _Job(urgency, next(self._order), lambda: function(*arguments), loop)
        with self._condition:
            if self._closed:
                raise RuntimeError("the worker is closed")
            self._jobs.append(job)
            self._condition.notify()
        result: T = await job.future
        return result

    def close(self) -> None:
        """Finish the job in hand, drop the waiting ones, and end the thread."""
        with self._condition:
            self._closed = True
            for job in self._jobs:
                job.cancel()
            self._jobs.clear()
            self._condition.notify()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._condition:
                while not self._jobs and not self._closed:
                    self._condition.wait()
                if self._closed:
                    return
                urgency, _, job = min((*each.rank, each) for each in self._jobs)
                self._jobs.remove(job)
            if job.wanted:
                self._on_wait(self._name, urgency, time.perf_counter() - job.asked_s)
                job.run()
            del job  # its arguments and result must not live until the next job comes


class _Job:
    """A function to run on the worker, and the future of the caller that waits on the loop."""

    def __init__(
        self,
        urgency: Urgencies,
        number: int,
        function: Callable[[], Any],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._urgency = urgency
        self._number = number
        self._function = function  # of any type: the typed side is `ThreadWorker.run`
        self._loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.asked_s = time.perf_counter()

    @property
    def rank(self) -> tuple[Urgency, int]:
        """The lowest goes first; no two jobs of a worker have the same."""
        return urgency_now(self._urgency), self._number

    @property
    def wanted(self) -> bool:
        return not self.future.cancelled()

    def run(self) -> None:
        try:
            result = self._function()
        except BaseException as error:
            self._settle(self.future.set_exception, error)
        else:
            self._settle(self.future.set_result, result)

    def cancel(self) -> None:
        self._settle(lambda _: self.future.cancel(), None)

    def _settle(self, settle: Callable[[Any], object], value: object) -> None:
        def settle_if_awaited() -> None:
            if not self.future.done():
                settle(value)

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(settle_if_awaited)
