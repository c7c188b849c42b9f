"""The user's side of the dialogue: from sound to a user item whose words are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from assistant.context import Context
from assistant.effects import (
    AudioCleared,
    AudioCommitted,
    ItemAdded,
    ItemDone,
    SpeechStarted,
    SpeechStopped,
    StageFailed,
    Transcribe,
    TranscriptCompleted,
    TranscriptionFailed,
    UtteranceDiscarded,
)
from assistant.events import (
    INPUT_RATE_HZ,
    AudioAnalysed,
    ClearAudio,
    CommitAudio,
    TranscriptFailed,
    TranscriptReady,
)
from assistant.hearing import Change, Hearing, Utterance
from assistant.items import Failure, Item, ItemStatus, Role
from assistant.settings import TurnDetection
from assistant.turn import Turn, TurnState

MIN_COMMIT_MS = 100
"""A client that commits less audio than this has made a mistake; say so."""
MANUAL = TurnDetection(create_response=False, interrupt_response=False)
"""What an idle `Hearing` is built with in manual mode; it is not fed."""


@dataclass(slots=True)
class _Guess:
    """An attempt at the words before the end of the utterance is certain."""

    attempt: int
    words: TranscriptReady | None = None


class Listening:
    """The utterance going on (`turn`) and those whose words are not known yet.

    An utterance that the endpoint closed enters the conversation when it turns out to hold words;
    one that the client committed in manual mode enters it at once.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self.turn: Turn | None = None
        self._recognising: dict[int, tuple[Turn, Utterance, int]] = {}
        self._guess: _Guess | None = None
        self._known: TranscriptReady | None = None
        self._attempts = 0
        self._buffer_start = 0
        self._hearing = self._new_hearing()

    @property
    def recognising(self) -> bool:
        """Whether words were said that are not known yet."""
        return bool(self._recognising)

    @property
    def recognising_turns(self) -> list[Turn]:
        """The turns whose words are not known yet."""
        return [turn for turn, _, _ in self._recognising.values()]

    @property
    def end_sample(self) -> int:
        """The end of the audio analysed so far."""
        return self._hearing.end_sample

    @property
    def deadline_s(self) -> float | None:
        """When `check_deadlines` has something to do."""
        moments = [turn.deadline_s for turn, _, _ in self._recognising.values()]
        moments.append(self._hearing.stalls_s)
        return min((moment for moment in moments if moment is not None), default=None)

    @property
    def needed_from(self) -> int:
        """The first input sample that may still be asked for."""
        if self._context.settings.turn_detection is None:
            return self._buffer_start
        return self._hearing.needed_from()

    def awaits(self, turn_id: int, attempt: int) -> bool:
        """Whether the result of this attempt at a turn's words is still wanted."""
        if turn_id in self._recognising:
            return self._recognising[turn_id][2] == attempt
        return self.is_guess(attempt)

    def uses(self, item_id: str) -> bool:
        """Whether the item's words are being recognised."""
        return any(turn.item_id == item_id for turn in self.recognising_turns)

    def on_audio(self, frame: AudioAnalysed) -> Change | None:
        """Take a window of sound; begin, guess at, or end the utterance it belongs to."""
        if self._context.settings.turn_detection is None:
            return None
        change = self._hearing.feed(frame, self._context.now)
        if change == "started":
            item_id = self._context.new_id("item")
            self.turn = self._context.new_turn("spoken", item_id)
            self._context.emit(SpeechStarted(item_id, _milliseconds(self._hearing.start_sample)))
        elif change == "paused":
            assert self.turn is not None
            self.turn.timeline.pause_s = self._context.now
            self._guess_words()
        elif change == "resumed":
            self.forget_guess()
        elif change == "stopped":
            self.end_utterance()
        return change

    def _guess_words(self) -> None:
        """Ask for the words so far: if the user has finished, they are the words."""
        assert self.turn is not None
        utterance = self._hearing.utterance()
        self._guess = _Guess(self._next_attempt())
        self._ask(self.turn, self._guess.attempt, utterance, "pause")

    def forget_guess(self) -> None:
        """The words so far are not all, or cannot be known."""
        self._guess = None
        if self.turn is None:
            return
        self.turn.timeline.pause_s = self.turn.timeline.transcript_s = None
        if self.turn.state is TurnState.SPECULATING:
            self.turn.become(TurnState.LISTENING)

    def is_guess(self, attempt: int) -> bool:
        """Whether this attempt is at words to which the user may still add."""
        return self._guess is not None and self._guess.attempt == attempt

    def on_guess(self, event: TranscriptReady) -> Turn | None:
        """Keep the words so far; return the turn if there are any."""
        assert self._guess is not None and self.turn is not None
        self._guess.words = event
        self.turn.timeline.transcript_s = self._context.now
        if not event.text.strip():
            return None
        self.turn.become(TurnState.SPECULATING)
        return self.turn

    def take_known_words(self) -> TranscriptReady | None:
        """Return the words of an utterance that ended with its words known already."""
        known, self._known = self._known, None
        return known

    def end_utterance(self) -> None:
        """The utterance going on is over: ask for its words."""
        turn, self.turn = self.turn, None
        assert turn is not None and turn.item_id is not None
        guess, self._guess = self._guess, None
        utterance = self._hearing.take()
        end_ms = _milliseconds(utterance.end_sample)
        voiced_ms = _milliseconds(utterance.last_voiced_sample)
        self._context.emit(SpeechStopped(turn.item_id, end_ms, voiced_ms))
        self._recognise(turn, utterance, guess)

    def commit(self, command: CommitAudio) -> None:
        """End the utterance by the client's word; in manual mode all buffered audio is one."""
        if self.turn is not None:
            self.end_utterance()
            return
        start, end = self._buffer_start, command.end_sample
        manual = self._context.settings.turn_detection is None
        if not manual or end - start < MIN_COMMIT_MS * INPUT_RATE_HZ // 1000:
            why = (
                f"at least {MIN_COMMIT_MS} ms are needed"
                if manual
                else "nobody is speaking, and the server ends turns by itself "
                "(session.audio.input.turn_detection null leaves that to you)"
            )
            message = f"There is no audio to commit: {why}."
            self._context.refuse(command.command_id, "input_audio_buffer_commit_empty", message)
            return
        item_id = self._context.new_id("item")
        now = self._context.now
        spoken_s = (end - start) / INPUT_RATE_HZ
        turn = self._context.new_turn("spoken", item_id)
        self._recognise(turn, Utterance(start, end, end, now - spoken_s, now))
        self._enter(Item(item_id, Role.USER, None, True, ItemStatus.COMPLETED))

    def clear(self, command: ClearAudio) -> None:
        """Forget the audio so far, and the utterance going on with it."""
        self.abandon("cleared")
        self._buffer_start = command.end_sample
        self._hearing.forget(command.end_sample)
        self._context.emit(AudioCleared())

    def detection_changed(self) -> None:
        """Start afresh under new settings of turn detection."""
        self.abandon("turn_detection_changed")
        self._buffer_start = max(self._buffer_start, self._hearing.end_sample)
        self._hearing = self._new_hearing()
        self._hearing.forget(self._buffer_start)

    def abandon(self, reason: str) -> None:
        """Drop the utterance going on, if there is one."""
        turn, self.turn = self.turn, None
        self._guess = None
        if turn is not None:
            self._discard(turn, reason)

    def on_transcript(self, event: TranscriptReady) -> Turn | None:
        """Take the words of an utterance; return its turn if there were any."""
        turn, utterance, _ = self._recognising.pop(event.turn_id)
        if turn.timeline.transcript_s is None:
            turn.timeline.transcript_s = self._context.now
        turn.transcript = event.text.strip()
        if not turn.transcript:
            self._discard(turn, event.rejection or "no_words")
            return None
        assert turn.item_id is not None
        self._write(turn.item_id, turn.transcript, ItemStatus.COMPLETED)
        seconds = (utterance.end_sample - utterance.start_sample) / INPUT_RATE_HZ
        self._context.emit(TranscriptCompleted(turn.item_id, turn.transcript, seconds))
        return turn

    def on_transcript_failed(self, event: TranscriptFailed) -> Turn:
        """Take note that an utterance's words will not be known; return its turn."""
        turn, _, _ = self._recognising.pop(event.turn_id)
        assert turn.item_id is not None
        self._write(turn.item_id, "", ItemStatus.INCOMPLETE)
        self._context.emit(TranscriptionFailed(turn.item_id, event.failure))
        self._context.emit(StageFailed("asr", event.failure))
        return turn

    def check_deadlines(self) -> list[TranscriptFailed]:
        """End an utterance whose microphone fell silent; return the transcripts that are late."""
        now = self._context.now
        stalls_s = self._hearing.stalls_s
        if self.turn is not None and stalls_s is not None and now >= stalls_s:
            self.end_utterance()
        late = Failure("transcript_timeout", "The words were not recognised in time; say it again.")
        return [
            TranscriptFailed(turn.turn_id, attempt, late)
            for turn, _, attempt in self._recognising.values()
            if turn.deadline_s is not None and now >= turn.deadline_s
        ]

    def _recognise(self, turn: Turn, utterance: Utterance, guess: _Guess | None = None) -> None:
        """Wait for the words of an utterance that is over; a guess at them has heard it whole."""
        assert turn.item_id is not None
        context = self._context
        turn.timeline.speech_start_s = utterance.speech_start_s
        turn.timeline.speech_end_s = utterance.speech_end_s
        turn.timeline.endpoint_s = context.now
        turn.become(TurnState.COMMITTED, context.now + context.limits.transcript_deadline_s)
        attempt = self._next_attempt() if guess is None else guess.attempt
        self._recognising[turn.turn_id] = (turn, utterance, attempt)
        self._buffer_start = utterance.end_sample
        if guess is None:
            self._ask(turn, attempt, utterance, "final")
        else:
            self._known = guess.words

    def _ask(
        self, turn: Turn, attempt: int, utterance: Utterance, kind: Literal["pause", "final"]
    ) -> None:
        start, end = utterance.start_sample, utterance.end_sample
        self._context.emit(Transcribe(turn.turn_id, attempt, start, end, kind))

    def _next_attempt(self) -> int:
        self._attempts += 1
        return self._attempts

    def _write(self, item_id: str, text: str, status: ItemStatus) -> None:
        """Set what an utterance says; if it is not in the conversation yet, it enters it now."""
        if item_id in self._context.history:
            self._context.history.write(item_id, text, status)
        else:
            self._enter(Item(item_id, Role.USER, text, True, status))

    def _enter(self, item: Item) -> None:
        context = self._context
        previous = context.history.last_id
        context.history.add(item)
        context.emit(AudioCommitted(item.item_id, previous))
        context.emit(ItemAdded(item, previous))
        context.emit(ItemDone(item, previous))

    def _discard(self, turn: Turn, reason: str) -> None:
        assert turn.item_id is not None
        context = self._context
        if turn.item_id in context.history:
            context.history.write(turn.item_id, "", ItemStatus.INCOMPLETE)
            silent = Failure("no_words", f"The committed audio holds no words ({reason}).")
            context.emit(TranscriptionFailed(turn.item_id, silent))
        context.emit(UtteranceDiscarded(turn.item_id, reason))
        context.end_turn(turn, TurnState.DISCARDED)

    def _new_hearing(self) -> Hearing:
        limits = self._context.limits
        detection = self._context.settings.turn_detection or MANUAL
        return Hearing(detection, limits.min_speech_ms, limits.max_utterance_s)


def _milliseconds(samples: int) -> int:
    return samples * 1000 // INPUT_RATE_HZ
