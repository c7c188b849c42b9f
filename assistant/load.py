"""What is certain goes before what is only foreseen, across all sessions of a process."""

from __future__ import annotations

import asyncio
from types import TracebackType


class CertainWork:
    """The work going on for turns that are over; enter it while doing some.

    Workers order their own jobs by urgency, but share the processor with each other. So what can
    wait, waits here until no certain work is going on anywhere.
    """

    def __init__(self) -> None:
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()

    def __enter__(self) -> None:
        self._count += 1
        self._none.clear()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._count -= 1
        if not self._count:
            self._none.set()

    @property
    def going_on(self) -> bool:
        """Whether there is any."""
        return self._count > 0

    async def none(self) -> None:
        """Wait until there is none."""
        while self._count:
            await self._none.wait()
