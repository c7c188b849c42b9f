"""A request seen from outside: its steps as they come, cancelling it, promoting it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from dspark.tree import TreeShape

FinishReason = Literal["stop", "length", "cancelled"]


class Priority(IntEnum):
    """Whose work goes first: nothing speculative delays anything confirmed."""

    CONFIRMED = 0
    SPECULATIVE = 1


@dataclass(frozen=True)
class Step:
    """What one engine step did for one request.

    Attributes:
        anchor: the token whose successors were sought; the prompt's last for the first step.
        draft: the tokens the drafter proposed after the anchor; empty in plain decoding.
        confidence: for each drafted token, the estimated probability that it is accepted given
            that all before it are.
        scheduled: how many of the drafted tokens the target verified.
        accepted: how many of those it accepted.
        committed: the new tokens of the answer: the accepted ones and the target's own next
            token. A stop token ends the answer and is not committed, nor is a stop string's
            text; tokens that may yet become part of one come with a later step.
        tree: which drafted token follows which; None if each follows the one before. In a tree
            the accepted tokens are a path through the scheduled ones.
    """

    anchor: int
    draft: tuple[int, ...] = ()
    confidence: tuple[float, ...] = ()
    scheduled: int = 0
    accepted: int = 0
    committed: tuple[int, ...] = ()
    tree: TreeShape | None = None

    @property
    def reach(self) -> int:
        """How many of the scheduled tokens could have been accepted."""
        if self.tree is None:
            return self.scheduled
        return max(self.tree.depths[: self.scheduled], default=0)


@dataclass(frozen=True)
class Result:
    """A whole answer: its tokens, the steps that made it, and why it ended."""

    token_ids: tuple[int, ...]
    steps: tuple[Step, ...]
    finish_reason: FinishReason


class Generation:
    """One submitted request, safe to use from any thread; iterate it from one place.

    `async for step in generation` on an event loop, or a plain `for` on any other thread.
    Iteration ends when the answer has ended, and raises `GenerationFailed` or `EngineClosed`
    if the engine could not finish it.

    Attributes:
        prompt_tokens: the length of the prompt.
        cached_tokens: how many of those needed no computing, because another request had left
            their keys and values behind; known once the first step has come.
    """

    def __init__(self, prompt_tokens: int, priority: Priority, changed: Callable[[], None]) -> None:
        self.prompt_tokens = prompt_tokens
        self.cached_tokens = 0
        self._priority = priority
        self._held = False
        self._changed = changed  # tells the engine to look at its requests again
        self._steps: deque[Step] = deque()
        self._finish_reason: FinishReason | None = None
        self._error: Exception | None = None
        self._lock = threading.Condition()
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    @property
    def priority(self) -> Priority:
        """Whether the engine may let others go first."""
        return self._priority

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the answer ended; None while it goes on, and after an error."""
        return self._finish_reason

    @property
    def finished(self) -> bool:
        """Whether no further step will come."""
        return self._finish_reason is not None or self._error is not None

    def cancel(self) -> None:
        """End the request: no further step is delivered, and the next engine step is without it."""
        with self._lock:
            if self.finished:
                return
            self._finish_reason = "cancelled"
            self._steps.clear()
            self._wake()
        self._changed()

    def promote(self, priority: Priority = Priority.CONFIRMED) -> None:
        """Change the priority from the next engine step on."""
        self._priority = priority
        self._changed()

    def hold(self) -> None:
        """Make no further step while it is speculative: what has come may be all that is wanted.

        It keeps its slot and its cache, and goes on once it is promoted.
        """
        self._held = True
        self._changed()

    @property
    def held(self) -> bool:
        """Whether it waits to be promoted."""
        return self._held and self._priority is Priority.SPECULATIVE

    def __aiter__(self) -> AsyncIterator[Step]:
        return self

    async def __anext__(self) -> Step:
        while True:
            loop = asyncio.get_running_loop()
            with self._lock:
                if self._steps:
                    return self._steps.popleft()
                if self._error is not None:
                    raise self._error
                if self._finish_reason is not None:
                    raise StopAsyncIteration
                waiting: asyncio.Future[None] = loop.create_future()
                self._waiter = (loop, waiting)
            await waiting

    def __iter__(self) -> Iterator[Step]:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._steps or self.finished)
                if not self._steps:
                    if self._error is not None:
                        raise self._error
                    return
                step = self._steps.popleft()
            yield step

    def _publish(self, step: Step) -> None:
        """Deliver a step (engine thread)."""
        with self._lock:
            if not self.finished:
                self._steps.append(step)
                self._wake()

    def _finish(self, reason: FinishReason) -> None:
        """Say that the answer has ended (engine thread)."""
        with self._lock:
            if not self.finished:
                self._finish_reason = reason
                self._wake()

    def _fail(self, error: Exception) -> None:
        """Say that the answer cannot be finished (engine thread)."""
        with self._lock:
            if not self.finished:
                self._error = error
                self._wake()

    def _wake(self) -> None:
        self._lock.notify_all()
        if self._waiter is not None:
            loop, waiting = self._waiter
            self._waiter = None
            with contextlib.suppress(RuntimeError):  # the loop that waited is closed
                loop.call_soon_threadsafe(_resolve, waiting)


def _resolve(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
