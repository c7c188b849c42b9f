"""Events on their way to one client: bounded, in order, and without voided sound."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from assistant.realtime.errors import CLIENT_TOO_SLOW, ConnectionEnded
from assistant.realtime.wire import JsonObject


class Outgoing(NamedTuple):
    """A server event; one that carries sound names the generation the sound belongs to."""

    event: JsonObject
    generation: int | None = None


class Outbox:
    """At most `limit` events that wait to be sent; one more ends the connection.

    Voiding a generation removes its waiting sound at once, and `take` hands an event over without
    a pause in which more could be voided: what is stale can not leave.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[Outgoing] = deque()
        self._voided = -1
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._over = asyncio.Event()
        self._ended: ConnectionEnded | None = None
        self.dropped = 0
        """How many pieces of sound were voided before they were sent."""

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, outgoing: Outgoing) -> None:
        """Queue an event; never waits."""
        if self._ended:
            return
        if self._is_void(outgoing):
            self.dropped += 1
            return
        if len(self._waiting) >= self._limit:
            self.end(ConnectionEnded(*CLIENT_TOO_SLOW))
            return
        self._waiting.append(outgoing)
        self._update()

    def void(self, generation: int) -> None:
        """Drop the sound of `generation` and of every older one, now and in the future."""
        self._voided = max(self._voided, generation)
        kept = [outgoing for outgoing in self._waiting if not self._is_void(outgoing)]
        self.dropped += len(self._waiting) - len(kept)
        self._waiting = deque(kept)
        self._update()

    def end(self, ended: ConnectionEnded) -> None:
        """Let nothing more leave: what waits is dropped, the first reason stays."""
        self._ended = self._ended or ended
        self._waiting.clear()
        self._over.set()
        self._update()

    async def wait_ended(self) -> ConnectionEnded:
        """Wait until nothing leaves any more; return why."""
        await self._over.wait()
        assert self._ended is not None
        return self._ended

    async def take(self) -> JsonObject:
        """Wait for the next event and hand it over.

        Raises `ConnectionEnded` once the outbox has ended.
        """
        while True:
            await self._wake.wait()
            if self._ended:
                raise ConnectionEnded(self._ended.code, self._ended.reason)
            if self._waiting:
                event = self._waiting.popleft().event
                self._update()
                return event

    async def wait_for_room(self, patience_s: float) -> None:
        """Wait until at most half the places are taken, so that a client that asks faster than it
        reads waits for itself; one that does not read for `patience_s` is ended."""
        try:
            async with asyncio.timeout(patience_s):
                await self._room.wait()
        except TimeoutError:
            self.end(ConnectionEnded(*CLIENT_TOO_SLOW))

    def _is_void(self, outgoing: Outgoing) -> bool:
        return outgoing.generation is not None and outgoing.generation <= self._voided

    def _update(self) -> None:
        _set(self._wake, bool(self._waiting) or self._ended is not None)
        _set(self._room, len(self._waiting) <= self._limit // 2 or self._ended is not None)


def _set(flag: asyncio.Event, value: bool) -> None:
    if value:
        flag.set()
    else:
        flag.clear()
