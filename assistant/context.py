"""What the parts of one dialogue core share: the moment, the settings, the history, the way out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from assistant.effects import Effect, Refused, TurnFinished
from assistant.history import History
from assistant.items import AnswerStep
from assistant.settings import Settings
from assistant.timeline import Timeline
from assistant.turn import Turn, TurnState


@dataclass(frozen=True, slots=True)
class Limits:
    """How long each waiting state waits, and what is said when a stage fails."""

    min_speech_ms: int = 90
    max_utterance_s: float = 120.0
    transcript_deadline_s: float = 15.0
    answer_deadline_s: float = 30.0
    apology: str = "Sorry, something went wrong. Please try again."


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the answer to a turn, for those who look back at it."""

    response_id: str
    heard: str
    steps: tuple[AnswerStep, ...]


_OUTCOMES: dict[TurnState, Literal["done", "interrupted", "failed", "discarded"]] = {
    TurnState.DONE: "done",
    TurnState.INTERRUPTED: "interrupted",
    TurnState.FAILED: "failed",
    TurnState.DISCARDED: "discarded",
}


class Context:
    """The shared state of one session; `now` is the moment of the event being handled."""

    def __init__(
        self, settings: Settings, limits: Limits, voice_rate_hz: int, id_prefix: str
    ) -> None:
        self.settings = settings
        self.limits = limits
        self.voice_rate_hz = voice_rate_hz
        self.history = History()
        self.now = 0.0
        self.idle_since_s: float | None = None
        """When the last turn ended, until something else begins."""
        self._id_prefix = id_prefix
        self._ids = 0
        self._turns = 0
        self._effects: list[Effect] = []

    def emit(self, effect: Effect) -> None:
        """Add to what the event being handled leads to."""
        self._effects.append(effect)

    def take_effects(self) -> list[Effect]:
        """Return what was emitted since the last call."""
        effects, self._effects = self._effects, []
        return effects

    def refuse(
        self, command_id: str | None, code: str, message: str, param: str | None = None
    ) -> None:
        """Answer a command that cannot be carried out."""
        self.emit(Refused(command_id, code, message, param))

    def new_id(self, kind: str) -> str:
        """Return an identifier unique in this session, e.g. `item_…`."""
        self._ids += 1
        return f"{kind}_{self._id_prefix}{self._ids:04d}"

    def new_turn(self, kind: Literal["spoken", "written"], item_id: str | None = None) -> Turn:
        """Begin a turn."""
        self._turns += 1
        self.idle_since_s = None
        return Turn(self._turns, Timeline(kind), item_id)

    def end_turn(self, turn: Turn, state: TurnState, outcome: Outcome | None = None) -> None:
        """End a turn, and tell where its time went."""
        turn.become(state)
        turn.timeline.finished_s = self.now
        self.idle_since_s = self.now
        self.emit(
            TurnFinished(
                turn.turn_id,
                _OUTCOMES[state],
                turn.timeline,
                outcome.response_id if outcome else None,
                turn.transcript,
                outcome.heard if outcome else None,
                outcome.steps if outcome else (),
                turn.speculation,
                turn.wasted_tokens,
            )
        )
