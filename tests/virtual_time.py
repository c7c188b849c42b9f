"""An asyncio event loop whose clock jumps: a minute of waiting takes no time and no luck."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class JumpingSelector(selectors.DefaultSelector):
    """Turns the loop's wish to wait into a jump of its clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready; if nothing is, let `timeout` seconds have passed."""
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise RuntimeError("every task waits for something that will never happen")
        self.now_s += timeout
        return []


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time, starting at 0 s."""

    def __init__(self) -> None:
        self._jumping = JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._jumping.now_s


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end in virtual time."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(main)
