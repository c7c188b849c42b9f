"""What is certain goes before what is only foreseen, across all sessions of a process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class CertainWork:
    """The work for turns that are over, or may just be, by the sessions that it is done for.

    Workers order their own jobs by urgency, but share the processor with each other. So what can
    wait, waits here.
    """

    def __init__(self) -> None:
        self._sessions: Counter[object] = Counter()
        self._waiting: set[asyncio.Event] = set()

    @contextmanager
    def of(self, session: object) -> Iterator[None]:
        """Certain work for `session` goes on as long as this lasts."""
        self._sessions[session] += 1
        try:
            yield
        finally:
            self._sessions[session] -= 1
            if not self._sessions[session]:
                del self._sessions[session]
            self.look_again()

    def going_on(self, besides: object = None) -> bool:
        """Whether there is any, not counting that for the session `besides`."""
        return any(session is not besides for session in self._sessions)

    async def until(self, free: Callable[[], bool]) -> None:
        """Wait until `free` holds; it is looked at when some work has ended."""
        while not free():
            ended = asyncio.Event()
            self._waiting.add(ended)
            try:
                await ended.wait()
            finally:
                self._waiting.discard(ended)

    def look_again(self) -> None:
        """Let whoever waits see whether they still have to."""
        for ended in self._waiting:
            ended.set()
