"""Every event from one moment on, for one reader, however late it reads."""

from __future__ import annotations

import asyncio
from collections import deque

from assistant.errors import AssistantError, EventsMissed
from assistant.replies import WireEvent

UNREAD_EVENTS = 10_000
"""Events that may wait to be read; a reader further behind is given up, not the memory."""


class EventStream:
    """An asynchronous iterator over the events that are put into it, until it ends."""

    def __init__(self) -> None:
        self._unread: deque[WireEvent] = deque()
        self._news = asyncio.Event()
        self._ended = False
        self._error: AssistantError | None = None

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> WireEvent:
        while not self._unread and not self._ended:
            self._news.clear()
            await self._news.wait()
        if self._unread:
            return self._unread.popleft()
        raise self._error or StopAsyncIteration

    def put(self, event: WireEvent) -> None:
        """Add an event; after the end, do nothing."""
        if self._ended:
            return
        if len(self._unread) >= UNREAD_EVENTS:
            self._unread.clear()
            self.end(EventsMissed(f"{UNREAD_EVENTS} events were left unread: read them faster."))
        else:
            self._unread.append(event)
            self._news.set()

    def end(self, error: AssistantError | None) -> None:
        """Let the iteration end after what is unread, normally or with an error."""
        if not self._ended:
            self._ended, self._error = True, error
            self._news.set()
