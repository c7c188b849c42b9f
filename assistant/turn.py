"""One exchange, what the user said and how it was answered, as an explicit state machine."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from assistant.timeline import Timeline


class TurnState(StrEnum):
    """Where a turn stands; the last four are ends."""

    LISTENING = "listening"
    """The user is speaking."""
    SPECULATING = "speculating"
    """The user paused: an answer is being prepared in case that was all."""
    COMMITTED = "committed"
    """The user's part is over: its words are being recognised or its answer prepared."""
    SPEAKING = "speaking"
    """The answer is reaching the user."""
    DONE = "done"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    DISCARDED = "discarded"
    """What began like speech held no words."""


_NEXT: dict[TurnState, frozenset[TurnState]] = {
    TurnState.LISTENING: frozenset(
        {TurnState.SPECULATING, TurnState.COMMITTED, TurnState.DISCARDED}
    ),
    TurnState.SPECULATING: frozenset(
        {TurnState.LISTENING, TurnState.COMMITTED, TurnState.DISCARDED}
    ),
    TurnState.COMMITTED: frozenset(
        {
            TurnState.SPEAKING,
            TurnState.DONE,  # no answer was wanted, or it was empty
            TurnState.INTERRUPTED,
            TurnState.FAILED,
            TurnState.DISCARDED,
        }
    ),
    TurnState.SPEAKING: frozenset({TurnState.DONE, TurnState.INTERRUPTED, TurnState.FAILED}),
}


class Turn:
    """The state, the deadline and the timeline of one exchange.

    A turn belongs to the user item `item_id` if it was spoken; a written turn starts `COMMITTED`.
    `deadline_s` is when the state has waited too long for somebody else; `None` ends have none.
    """

    def __init__(self, turn_id: int, timeline: Timeline, item_id: str | None) -> None:
        self.turn_id = turn_id
        self.item_id = item_id
        self.timeline = timeline
        self.state = TurnState.LISTENING if timeline.kind == "spoken" else TurnState.COMMITTED
        self.deadline_s: float | None = None
        self.transcript: str | None = None
        self.speculation: Literal["none", "hit", "miss"] = "none"
        self.wasted_tokens = 0

    @property
    def ended(self) -> bool:
        """Whether nothing more can happen to this turn."""
        return self.state not in _NEXT

    def become(self, state: TurnState, deadline_s: float | None = None) -> None:
        """Move to `state`, which must be reachable from the present one, until `deadline_s`."""
        assert state in _NEXT.get(self.state, ()), f"turn {self.turn_id}: {self.state} → {state}"
        self.state = state
        self.deadline_s = deadline_s

    def __repr__(self) -> str:
        return f"Turn({self.turn_id}, {self.state})"
