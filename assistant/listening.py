"""The user's side of the dialogue: from sound to a user item whose words are known."""

from __future__ import annotations

from dataclasses import dataclass, replace

from assistant.context import Context
from assistant.effects import (
    AudioCleared,
    AudioCommitted,
    Hasten,
    ItemAdded,
    ItemDone,
    SpeechStarted,
    SpeechStopped,
    StageFailed,
    Transcribe,
    TranscriptCompleted,
    TranscriptionFailed,
    TranscriptSoFar,
    UtteranceDiscarded,
)
from assistant.events import (
    INPUT_RATE_HZ,
    AudioAnalysed,
    ClearAudio,
    CommitAudio,
    TranscriptFailed,
    TranscriptReady,
    TurnEndJudged,
)
from assistant.hearing import Change, Hearing, Utterance
from assistant.items import Failure, Item, ItemStatus, Role
from assistant.settings import TurnDetection
from assistant.turn import Turn, TurnState
from audio.cadence import FIRST_COST_S
from audio.streaming import Attempt, Hypothesis, Kind, StreamingUtterance
from audio.words import normalise

MIN_COMMIT_MS = 100
"""A client that commits less audio than this has made a mistake; say so."""
MANUAL = TurnDetection(create_response=False, interrupt_response=False)
"""What an idle `Hearing` is built with in manual mode; it is not fed."""
RECENT_MS = 200
"""Words that were heard up to so long before the last voiced sample may be all of them."""


@dataclass(slots=True)
class _Ended:
    """An utterance that is over, and the attempt that will tell its words."""

    turn: Turn
    utterance: Utterance
    words: StreamingUtterance
    decisive: Attempt | None


class Listening:
    """The utterance going on (`turn`) and those whose words are not known yet.

    An utterance that the endpoint closed enters the conversation when it turns out to hold words;
    one that the client committed in manual mode enters it at once.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self.turn: Turn | None = None
        self._words = StreamingUtterance(0, 0.0)
        self._recognising: dict[int, _Ended] = {}
        self._known: list[TranscriptReady] = []
        self._cost_s = FIRST_COST_S
        self._buffer_start = 0
        self._hearing = self._new_hearing()

    @property
    def recognising(self) -> bool:
        """Whether words were said that are not known yet."""
        return bool(self._recognising)

    @property
    def recognising_turns(self) -> list[Turn]:
        """The turns whose words are not known yet."""
        return [ended.turn for ended in self._recognising.values()]

    @property
    def end_sample(self) -> int:
        """The end of the audio analysed so far."""
        return self._hearing.end_sample

    @property
    def deadline_s(self) -> float | None:
        """When `check_deadlines` has something to do."""
        moments = [turn.deadline_s for turn in self.recognising_turns]
        moments.append(self._hearing.stalls_s)
        return min((moment for moment in moments if moment is not None), default=None)

    @property
    def needed_from(self) -> int:
        """The first input sample that may still be asked for."""
        if self._context.settings.turn_detection is None:
            return self._buffer_start
        ended = (ended.utterance.start_sample for ended in self._recognising.values())
        return min((self._hearing.needed_from(), *ended))

    def awaits(self, turn_id: int, attempt: int) -> bool:
        """Whether the result of this attempt at a turn's words is still wanted."""
        words = self._words_of(turn_id)
        return words is not None and words.awaits(attempt)

    def uses(self, item_id: str) -> bool:
        """Whether the item's words are being recognised."""
        return any(turn.item_id == item_id for turn in self.recognising_turns)

    def on_audio(self, frame: AudioAnalysed) -> Change | None:
        """Take a window of sound; begin, go on with, or end the utterance it belongs to."""
        if self._context.settings.turn_detection is None:
            return None
        now = self._context.now
        change = self._hearing.feed(frame, now)
        if change == "started":
            item_id = self._context.new_id("item")
            self.turn = self._context.new_turn("spoken", item_id)
            self._words = StreamingUtterance(self._hearing.start_sample, now, self._cost_s)
            self._context.emit(SpeechStarted(item_id, _milliseconds(self._hearing.start_sample)))
        elif change == "paused":
            assert self.turn is not None
            self.turn.timeline.pause_s = now
        elif change == "resumed":
            self._go_on()
        elif change == "stopped":
            self.end_utterance()
        if self.turn is not None:
            last_voiced = self._hearing.last_voiced_sample
            attempt = self._words.hear(now, frame.end_sample, last_voiced, frame.probability)
            if attempt is not None:
                self._ask(self.turn, attempt)
            elif change == "paused":
                self._hasten(self.turn, self._words.coming(last_voiced), "pause")
        return change

    def _go_on(self) -> None:
        """The words so far are not all."""
        assert self.turn is not None
        self.turn.timeline.pause_s = None
        if self.turn.state is TurnState.SPECULATING:
            self.turn.become(TurnState.LISTENING)

    def goes_on(self, turn_id: int) -> bool:
        """Whether this is the turn of the utterance going on."""
        return self.turn is not None and self.turn.turn_id == turn_id

    def foresee(self) -> tuple[Turn, Hypothesis] | None:
        """Return the words so far if the user has paused and they may be all."""
        newest = self._words.newest
        if self.turn is None or not self._hearing.paused or newest is None or not newest.text:
            return None
        missing = self._hearing.last_voiced_sample - newest.attempt.end_sample
        if missing > RECENT_MS * INPUT_RATE_HZ // 1000:
            return None
        if self.turn.state is TurnState.LISTENING:
            self.turn.become(TurnState.SPECULATING)
        return self.turn, newest

    def to_judge(self) -> tuple[Turn, Hypothesis] | None:
        """Return the words so far, once, if the turn's end depends on whether they may be all."""
        detection = self._context.settings.turn_detection
        foreseen = self.foresee() if detection is not None and detection.semantic else None
        if foreseen is None:
            return None
        said = foreseen[1]
        return foreseen if self._hearing.turn_end.said(said.attempt.number, said.text) else None

    def on_judged(self, event: TurnEndJudged) -> None:
        """Take the judgement of words of the utterance going on; it may be over with that."""
        self._hearing.turn_end.judged(event.attempt, event.probability)
        if self._hearing.over:
            self.end_utterance()

    def on_partial(self, event: TranscriptReady) -> bool:
        """Take words of the utterance going on; return whether more of them are stable."""
        assert self.turn is not None and self.turn.item_id is not None
        before = self._words.stable, self._words.tentative
        self._take_result(self.turn, self._words, event)
        after = self._words.stable, self._words.tentative
        if after != before:
            self._context.emit(TranscriptSoFar(self.turn.item_id, *after))
        return after[0] != before[0]

    @property
    def stable(self) -> str:
        """The words of the utterance going on that will hardly change any more."""
        return self._words.stable if self.turn is not None else ""

    def take_known_words(self) -> TranscriptReady | None:
        """Return the words of an utterance that is over, once for each."""
        return self._known.pop(0) if self._known else None

    def end_utterance(self) -> None:
        """The utterance going on is over: ask for its words, if no attempt has heard them all."""
        turn, self.turn = self.turn, None
        assert turn is not None and turn.item_id is not None
        utterance = self._hearing.take()
        end_ms = _milliseconds(utterance.end_sample)
        voiced_ms = _milliseconds(utterance.last_voiced_sample)
        self._context.emit(SpeechStopped(turn.item_id, end_ms, voiced_ms))
        self._recognise(turn, utterance, self._words)

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
        words = StreamingUtterance(start, now, self._cost_s)
        self._recognise(turn, Utterance(start, end, end, now - spoken_s, now), words)
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
        if turn is not None:
            self._discard(turn, reason)

    def on_result(self, event: TranscriptReady) -> None:
        """Take the result of an attempt at an utterance that is over."""
        ended = self._recognising[event.turn_id]
        attempt = self._take_result(ended.turn, ended.words, event)
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

    def on_transcript(self, event: TranscriptReady) -> Turn | None:
        """Take the words of an utterance that is over; return its turn if there were any."""
        ended = self._recognising.pop(event.turn_id)
        turn, utterance = ended.turn, ended.utterance
        turn.transcript = event.text
        if not turn.transcript:
            self._discard(turn, event.rejection or "no_words")
            return None
        assert turn.item_id is not None
        self._write(turn.item_id, turn.transcript, ItemStatus.COMPLETED)
        seconds = (utterance.end_sample - utterance.start_sample) / INPUT_RATE_HZ
        self._context.emit(TranscriptCompleted(turn.item_id, turn.transcript, seconds))
        return turn

    def on_failure(self, event: TranscriptFailed) -> Turn | None:
        """Take note that an attempt failed; return the turn if its words will not be known."""
        ended = self._recognising.get(event.turn_id)
        if ended is None:
            self._words.on_failure(event.attempt)
            return None
        ended.words.on_failure(event.attempt)
        decisive = ended.decisive
        if decisive is None or decisive.number != event.attempt:
            return None
        if decisive.kind != "final":
            self._ask_for_all(ended)
            return None
        return self._give_up(event.turn_id, event.failure)

    def _give_up(self, turn_id: int, failure: Failure) -> Turn:
        turn = self._recognising.pop(turn_id).turn
        assert turn.item_id is not None
        self._write(turn.item_id, "", ItemStatus.INCOMPLETE)
        self._context.emit(TranscriptionFailed(turn.item_id, failure))
        self._context.emit(StageFailed("asr", failure))
        return turn

    def check_deadlines(self) -> list[tuple[Turn, Failure]]:
        """End an utterance whose microphone fell silent; return the turns without words in time."""
        now = self._context.now
        stalls_s = self._hearing.stalls_s
        if self.turn is not None and stalls_s is not None and now >= stalls_s:
            self.end_utterance()
        late = Failure("transcript_timeout", "The words were not recognised in time; say it again.")
        return [
            (self._give_up(turn.turn_id, late), late)
            for turn in self.recognising_turns
            if turn.deadline_s is not None and now >= turn.deadline_s
        ]

    # -- inside -------------------------------------------------------------------------

    def _words_of(self, turn_id: int) -> StreamingUtterance | None:
        if self.goes_on(turn_id):
            return self._words
        return self._recognising[turn_id].words if turn_id in self._recognising else None

    def _take_result(
        self, turn: Turn, words: StreamingUtterance, event: TranscriptReady
    ) -> Attempt:
        """Take what an attempt heard; note when its words were known first."""
        before = words.newest.text if words.newest is not None else ""
        attempt = words.on_result(event.attempt, event.text, event.segments, self._context.now)
        self._cost_s = words.cost_s
        assert words.newest is not None
        if normalise(words.newest.text) != normalise(before):
            turn.timeline.transcript_s = self._context.now
        return attempt

    def _recognise(self, turn: Turn, utterance: Utterance, words: StreamingUtterance) -> None:
        """Wait for the words of an utterance that is over, unless they are known."""
        assert turn.item_id is not None
        context = self._context
        turn.timeline.speech_start_s = utterance.speech_start_s
        turn.timeline.speech_end_s = utterance.speech_end_s
        turn.timeline.endpoint_s = context.now
        turn.become(TurnState.COMMITTED, context.now + context.limits.transcript_deadline_s)
        self._buffer_start = utterance.end_sample
        known = words.words(utterance.last_voiced_sample)
        coming = words.coming(utterance.last_voiced_sample)
        ended = _Ended(turn, utterance, words, coming)
        self._recognising[turn.turn_id] = ended
        if known is not None:
            self._known.append(TranscriptReady(turn.turn_id, known.attempt.number, known.text))
        elif coming is None:
            self._ask_for_all(ended)
        else:
            self._hasten(turn, coming, "final")

    def _ask_for_all(self, ended: _Ended) -> None:
        utterance = ended.utterance
        end, last_voiced = utterance.end_sample, utterance.last_voiced_sample
        attempt = ended.words.ask("final", self._context.now, end, last_voiced)
        ended.decisive = attempt
        self._ask(ended.turn, attempt)

    def _ask(self, turn: Turn, attempt: Attempt) -> None:
        self._context.emit(
            Transcribe(
                turn.turn_id,
                attempt.number,
                attempt.start_sample,
                attempt.end_sample,
                attempt.kind,
            )
        )

    def _hasten(self, turn: Turn, coming: Attempt | None, kind: Kind) -> None:
        """Let an attempt that was asked for early wait no longer than one of this kind."""
        if coming is not None:
            self._context.emit(Hasten(turn.turn_id, coming.number, kind))

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
