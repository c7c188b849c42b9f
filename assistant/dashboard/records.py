"""What the operator's page is told, one JSON object after the other, told apart by `type`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from assistant.effects import TurnFinished
from assistant.items import AnswerStep

MOST_STEPS = 256
"""Steps kept of one answer; of a longer one the page says how many are left out."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Greeting(_Record):
    """The first record, once: what the page can expect."""

    type: Literal["greeting"] = "greeting"
    models: dict[str, str]
    """The name of the model behind each stage: `asr`, `llm`, `tts`."""
    transcripts: bool
    """Whether the turns come with what was said; if not, their tokens come without text."""
    kept_turns: int
    """How many turns a newly opened page gets."""


class Token(_Record):
    """A token: its text, unless that is not to be shown, and where it came from.

    `own`: the model's next token; the others were drafted.
    """

    fate: Literal["accepted", "rejected", "unverified", "own"]
    text: str | None = None


class TurnRecord(_Record):
    """A turn that is over."""

    type: Literal["turn"] = "turn"
    session: str
    turn: int
    ended_at_s: float
    """Seconds since the epoch."""
    outcome: Literal["done", "interrupted", "failed", "discarded"]
    timeline: dict[str, float | str | bool | None]
    """As `Timeline.as_milliseconds` gives it."""
    speculation: Literal["none", "hit", "miss"]
    wasted_tokens: int
    steps: list[list[Token]]
    """For each step of the language model its tokens: the draft, then what is the model's own."""
    steps_left_out: int = 0
    transcript: str | None = None
    heard: str | None = None

    @staticmethod
    def of(
        session_id: str, turn: TurnFinished, *, ended_at_s: float, transcripts: bool
    ) -> TurnRecord:
        """Tell of `turn`; with its words only if `transcripts` are to be shown."""
        return TurnRecord(
            session=session_id,
            turn=turn.turn_id,
            ended_at_s=round(ended_at_s, 3),
            outcome=turn.outcome,
            timeline=turn.timeline.as_milliseconds(),
            speculation=turn.speculation,
            wasted_tokens=turn.wasted_tokens,
            steps=[_tokens(step, spelt=transcripts) for step in turn.steps[:MOST_STEPS]],
            steps_left_out=max(0, len(turn.steps) - MOST_STEPS),
            transcript=turn.transcript if transcripts else None,
            heard=turn.heard if transcripts else None,
        )


class QueueRecord(_Record):
    """The jobs of one kind that a worker took up in the period."""

    worker: str
    """`hearing`, `asr`, `tts`; or `llm`, whose jobs are answers that wait for a slot."""
    urgency: str | None = None
    jobs: int
    mean_ms: float
    longest_ms: float | None = None


class LoadRecord(_Record):
    """How busy the server was in the period that ended at `at_s` (seconds since the epoch)."""

    type: Literal["load"] = "load"
    at_s: float
    sessions: int
    """Open now."""
    lag_ms: float | None = None
    """The latest that the event loop woke up, after it was to."""
    queues: list[QueueRecord] = []


DashboardEvent = Annotated[Greeting | TurnRecord | LoadRecord, Field(discriminator="type")]


def _tokens(step: AnswerStep, *, spelt: bool) -> list[Token]:
    own = step.committed[step.accepted :]
    drafted = [Token(fate=token.fate, text=token.text if spelt else None) for token in step.draft]
    return drafted + [Token(fate="own", text=text if spelt else None) for text in own]
