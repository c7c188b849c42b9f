"""How many tokens are drafted: one more than were worth verifying lately."""

from __future__ import annotations

from collections import deque

_STEPS = 16


class DraftLength:
    """Follows how much of drafts is verified; what never is need not be drafted.

    It grows by a token as soon as all that was drafted is verified, and falls when so many steps
    verified less. It looks at past steps alone, so it knows nothing of the tokens it decides about.
    """

    def __init__(self, steps: int = _STEPS) -> None:
        self._verified: deque[int] = deque(maxlen=steps)

    @property
    def most(self) -> int | None:
        """How many tokens are to be drafted for a sequence; None for as many as there can be."""
        if len(self._verified) < (self._verified.maxlen or 0):
            return None
        return 1 + max(self._verified)

    def record(self, verified: int) -> None:
        """Take in how much of the drafts of a step is verified, for the sequence with the most."""
        self._verified.append(verified)
