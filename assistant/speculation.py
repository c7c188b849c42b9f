"""The answer that is begun before it is certain that the user has finished."""

from __future__ import annotations

from dataclasses import dataclass

from assistant.answer import Answer
from assistant.context import Context
from assistant.effects import Confirm, StopWork
from assistant.events import CreateResponse
from assistant.items import Message
from assistant.settings import Settings
from assistant.turn import Turn
from audio.words import normalise


@dataclass(frozen=True, slots=True)
class Basis:
    """All that an answer depends on: made from equal ones, an answer is as good as made anew."""

    messages: tuple[Message, ...]
    wanted: CreateResponse
    settings: Settings


@dataclass(frozen=True, slots=True)
class _Prepared:
    turn: Turn
    answer: Answer
    basis: Basis
    said: str


class Speculation:
    """At most one answer in the making of which nothing has left.

    When the turn is over it is taken if nothing that it was made from has changed.  What the user
    said is compared word by word, without case and punctuation, but exactly: one more "not" makes
    another prompt.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._prepared: _Prepared | None = None

    @property
    def prepared(self) -> tuple[Turn, Answer] | None:
        """The answer being prepared, and the turn it may belong to."""
        return None if self._prepared is None else (self._prepared.turn, self._prepared.answer)

    def hold(self, turn: Turn, answer: Answer, basis: Basis, said: str) -> None:
        """Keep an answer that is being made to `said` until it is known whether it fits."""
        assert self._prepared is None
        self._prepared = _Prepared(turn, answer, basis, said)

    def fits(self, turn_id: int, said: str) -> bool:
        """Whether the answer is to these words, however they are spelt."""
        held = self._prepared
        if held is None or held.turn.turn_id != turn_id:
            return False
        return normalise(held.said) == normalise(said)

    def spelling(self, turn_id: int, said: str) -> str:
        """Return the same words as the answer was made from if it is to them, else `said`."""
        if self._prepared is None or not self.fits(turn_id, said):
            return said
        return self._prepared.said

    def take(self, turn: Turn, basis: Basis) -> Answer | None:
        """Return the answer if it is what `turn` gets from `basis`; else it is given up."""
        prepared = self._prepared
        if prepared is None or prepared.turn is not turn or prepared.basis != basis:
            self.give_up()
            return None
        self._prepared = None
        turn.speculation = "hit"
        self._context.emit(Confirm(prepared.answer.generation))
        return prepared.answer

    def give_up(self) -> None:
        """Drop the answer, if there is one: it does not fit what has happened since."""
        prepared, self._prepared = self._prepared, None
        if prepared is None:
            return
        self._context.emit(StopWork(prepared.answer.generation))
        turn = prepared.turn
        turn.speculation = "miss"
        turn.wasted_tokens += prepared.answer.response.usage.output_tokens
        timeline = turn.timeline
        timeline.first_text_s = timeline.first_chunk_s = timeline.first_audio_s = None
