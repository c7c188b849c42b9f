"""Utterances that are over: they become the user's items once their words are known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from assistant.context import Context
from assistant.effects import (
    AudioCommitted,
    Hasten,
    ItemAdded,
    ItemDone,
    StageFailed,
    Transcribe,
    TranscriptCompleted,
    TranscriptionFailed,
    UtteranceDiscarded,
)
from assistant.events import INPUT_RATE_HZ, TranscriptFailed, TranscriptReady
from assistant.hearing import Utterance
from assistant.items import Failure, Item, ItemStatus, Role
from assistant.turn import Turn, TurnState
from audio.cadence import FIRST_COST_S
from audio.streaming import Attempt, StreamingUtterance
from audio.words import normalise


@dataclass(slots=True)
class _Ended:
    """An utterance that is over, and the attempt that will tell its words."""

    turn: Turn
    utterance: Utterance
    words: StreamingUtterance
    decisive: Attempt | None


class Recognising:
    """The utterances that are over and whose words are not known yet, by their turns.

    One that the endpoint closed enters the conversation when it turns out to hold words; one that
    the client committed in manual mode has entered it before.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._ended: dict[int, _Ended] = {}
        self._known: list[TranscriptReady] = []
        self.cost_s = FIRST_COST_S
        """What an attempt takes here and now."""

    @property
    def turns(self) -> list[Turn]:
        """The turns whose words are not known yet."""
        return [ended.turn for ended in self._ended.values()]

    @property
    def deadlines_s(self) -> Iterator[float]:
        """When `give_up_late` has something to do."""
        return (turn.deadline_s for turn in self.turns if turn.deadline_s is not None)

    @property
    def needed_from(self) -> Iterator[int]:
        """The first samples that may still be asked for."""
        return (ended.utterance.start_sample for ended in self._ended.values())

    def awaits(self, turn_id: int, attempt: int) -> bool:
        """Whether the result of this attempt at a turn's words is still wanted."""
        return turn_id in self._ended and self._ended[turn_id].words.awaits(attempt)

    def uses(self, item_id: str) -> bool:
        """Whether the item's words are being recognised."""
        return any(turn.item_id == item_id for turn in self.turns)

    def begin(self, turn: Turn, utterance: Utterance, words: StreamingUtterance) -> None:
        """Wait for the words of an utterance that is over, unless they are known.

        If no attempt has heard them all, or will, there is one more.
        """
        context, last_voiced = self._context, utterance.last_voiced_sample
        turn.timeline.speech_start_s = utterance.speech_start_s
        turn.timeline.speech_end_s = utterance.speech_end_s
        turn.timeline.endpoint_s = context.now
        turn.become(TurnState.COMMITTED, context.now + context.limits.transcript_deadline_s)
        known, coming = words.words(last_voiced), words.coming(last_voiced)
        ended = self._ended[turn.turn_id] = _Ended(turn, utterance, words, coming)
        if known is not None:
            self._known.append(TranscriptReady(turn.turn_id, known.attempt.number, known.text))
        elif coming is not None:
            context.emit(Hasten(turn.turn_id, coming.number, "final"))
        else:
            self._ask_for_all(ended)

    def take_known_words(self) -> TranscriptReady | None:
        """Return the words of an utterance that is over, once for each."""
        return self._known.pop(0) if self._known else None

    def on_result(self, event: TranscriptReady) -> None:
        """Take the result of an attempt."""
        ended = self._ended[event.turn_id]
        attempt = self.take_result(ended.turn, ended.words, event)
        if attempt is not ended.decisive:
            return
        newest = ended.words.newest
        assert newest is not None
        if not newest.found and attempt.kind != "final":
            self._ask_for_all(ended)  # it was too early
            return
        # A decoder that loops says nothing against what was heard twice before.
        looped = event.rejection == "repetition"
        text = ended.words.stable if looped else newest.text
        self._known.append(replace(event, text=text))

    def take_result(self, turn: Turn, words: StreamingUtterance, event: TranscriptReady) -> Attempt:
        """Take what an attempt heard of any utterance; note when its words were known first."""
        now = self._context.now
        before = words.newest.text if words.newest is not None else ""
        attempt = words.on_result(event.attempt, event.text, event.segments, now)
        self.cost_s = words.cost_s
        assert words.newest is not None
        if normalise(words.newest.text) != normalise(before):
            turn.timeline.transcript_s = now
        return attempt

    def on_transcript(self, event: TranscriptReady) -> Turn | None:
        """Take the words of an utterance; return its turn if there were any."""
        ended = self._ended.pop(event.turn_id)
        turn, utterance = ended.turn, ended.utterance
        turn.transcript = event.text
        if not turn.transcript:
            self.discard(turn, event.rejection or "no_words")
            return None
        assert turn.item_id is not None
        self._write(turn.item_id, turn.transcript, ItemStatus.COMPLETED)
        seconds = (utterance.end_sample - utterance.start_sample) / INPUT_RATE_HZ
        self._context.emit(TranscriptCompleted(turn.item_id, turn.transcript, seconds))
        return turn

    def on_failure(self, event: TranscriptFailed) -> Turn | None:
        """Take note that an attempt failed; return the turn if its words will not be known."""
        ended = self._ended[event.turn_id]
        ended.words.on_failure(event.attempt)
        decisive = ended.decisive
        if decisive is None or decisive.number != event.attempt:
            return None
        if decisive.kind != "final":
            self._ask_for_all(ended)
            return None
        return self._give_up(event.turn_id, event.failure)

    def give_up_late(self) -> list[tuple[Turn, Failure]]:
        """Return the turns whose words did not come in time, and why."""
        now = self._context.now
        late = Failure("transcript_timeout", "The words were not recognised in time; say it again.")
        return [
            (self._give_up(turn.turn_id, late), late)
            for turn in self.turns
            if turn.deadline_s is not None and now >= turn.deadline_s
        ]

    def discard(self, turn: Turn, reason: str) -> None:
        """End a turn in which nothing was said."""
        assert turn.item_id is not None
        context = self._context
        if turn.item_id in context.history:
            context.history.write(turn.item_id, "", ItemStatus.INCOMPLETE)
            silent = Failure("no_words", f"The committed audio holds no words ({reason}).")
            context.emit(TranscriptionFailed(turn.item_id, silent))
        context.emit(UtteranceDiscarded(turn.item_id, reason))
        context.end_turn(turn, TurnState.DISCARDED)

    def enter(self, item: Item) -> None:
        """Let what was said enter the conversation, with its words or before they are known."""
        context = self._context
        previous = context.history.last_id
        context.history.add(item)
        context.emit(AudioCommitted(item.item_id, previous))
        context.emit(ItemAdded(item, previous))
        context.emit(ItemDone(item, previous))

    # -- inside -------------------------------------------------------------------------

    def _ask_for_all(self, ended: _Ended) -> None:
        end, last_voiced = ended.utterance.end_sample, ended.utterance.last_voiced_sample
        attempt = ended.words.ask("final", self._context.now, end, last_voiced)
        ended.decisive = attempt
        self._context.emit(transcription(ended.turn, attempt))

    def _give_up(self, turn_id: int, failure: Failure) -> Turn:
        turn = self._ended.pop(turn_id).turn
        assert turn.item_id is not None
        self._write(turn.item_id, "", ItemStatus.INCOMPLETE)
        self._context.emit(TranscriptionFailed(turn.item_id, failure))
        self._context.emit(StageFailed("asr", failure))
        return turn

    def _write(self, item_id: str, text: str, status: ItemStatus) -> None:
        """Set what an utterance says; if it is not in the conversation yet, it enters it now."""
        if item_id in self._context.history:
            self._context.history.write(item_id, text, status)
        else:
            self.enter(Item(item_id, Role.USER, text, True, status))


def transcription(turn: Turn, attempt: Attempt) -> Transcribe:
    """The work that an attempt is."""
    return Transcribe(
        turn.turn_id, attempt.number, attempt.start_sample, attempt.end_sample, attempt.kind
    )
