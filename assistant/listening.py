"""The user's side of the dialogue: from sound to an utterance that is over."""

from __future__ import annotations

from assistant.context import Context
from assistant.effects import (
    AudioCleared,
    Hasten,
    SpeechStarted,
    SpeechStopped,
    TranscriptSoFar,
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
from assistant.items import Item, ItemStatus, Role
from assistant.recognising import Recognising, transcription
from assistant.settings import TurnDetection
from assistant.turn import Turn, TurnState
from audio.streaming import Hypothesis, StreamingUtterance

MIN_COMMIT_MS = 100
"""A client that commits less audio than this has made a mistake; say so."""
MANUAL = TurnDetection(create_response=False, interrupt_response=False)
"""What an idle `Hearing` is built with in manual mode; it is not fed."""
RECENT_MS = 200
"""Words that were heard up to so long before the last voiced sample may be all of them."""


class Listening:
    """The utterance going on, if there is one, and its turn; `Recognising` has those before it."""

    def __init__(self, context: Context, recognising: Recognising) -> None:
        self._context = context
        self._recognising = recognising
        self.turn: Turn | None = None
        self._words = StreamingUtterance(0, 0.0)
        self._buffer_start = 0
        self._hearing = self._new_hearing()

    @property
    def end_sample(self) -> int:
        """The end of the audio analysed so far."""
        return self._hearing.end_sample

    @property
    def deadline_s(self) -> float | None:
        """When `check_stall` has something to do."""
        return self._hearing.stalls_s

    @property
    def needed_from(self) -> int:
        """The first input sample that may still be asked for."""
        if self._context.settings.turn_detection is None:
            return self._buffer_start
        return min((self._hearing.needed_from(), *self._recognising.needed_from))

    def awaits(self, turn_id: int, attempt: int) -> bool:
        """Whether the result of this attempt at a turn's words is still wanted."""
        return self.goes_on(turn_id) and self._words.awaits(attempt)

    def on_audio(self, frame: AudioAnalysed) -> Change | None:
        """Take a window of sound; begin, go on with, or end the utterance it belongs to."""
        if self._context.settings.turn_detection is None:
            return None
        now = self._context.now
        change = self._hearing.feed(frame, now)
        if change == "started":
            item_id = self._context.new_id("item")
            self.turn = self._context.new_turn("spoken", item_id)
            self._words = StreamingUtterance(
                self._hearing.start_sample, now, self._recognising.cost_s
            )
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
                self._context.emit(transcription(self.turn, attempt))
            elif change == "paused":
                self._hasten(self.turn, last_voiced)
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
        self._recognising.take_result(self.turn, self._words, event)
        after = self._words.stable, self._words.tentative
        if after != before:
            self._context.emit(TranscriptSoFar(self.turn.item_id, *after))
        return after[0] != before[0]

    @property
    def stable(self) -> str:
        """The words of the utterance going on that will hardly change any more."""
        return self._words.stable if self.turn is not None else ""

    def end_utterance(self) -> None:
        """The utterance going on is over: ask for its words, if no attempt has heard them all."""
        turn, self.turn = self.turn, None
        assert turn is not None and turn.item_id is not None
        utterance = self._hearing.take()
        end_ms = _milliseconds(utterance.end_sample)
        voiced_ms = _milliseconds(utterance.last_voiced_sample)
        self._context.emit(SpeechStopped(turn.item_id, end_ms, voiced_ms))
        self._buffer_start = utterance.end_sample
        self._recognising.begin(turn, utterance, self._words)

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
        words = StreamingUtterance(start, now, self._recognising.cost_s)
        self._buffer_start = end
        self._recognising.begin(turn, Utterance(start, end, end, now - spoken_s, now), words)
        self._recognising.enter(Item(item_id, Role.USER, None, True, ItemStatus.COMPLETED))

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
            self._recognising.discard(turn, reason)

    def on_failure(self, event: TranscriptFailed) -> None:
        """Take note that an attempt at the utterance going on failed."""
        self._words.on_failure(event.attempt)

    def check_stall(self) -> None:
        """End an utterance whose microphone fell silent."""
        stalls_s = self._hearing.stalls_s
        if self.turn is not None and stalls_s is not None and self._context.now >= stalls_s:
            self.end_utterance()

    # -- inside -------------------------------------------------------------------------

    def _hasten(self, turn: Turn, last_voiced: int) -> None:
        """The user may have finished: words on their way that may be all can wait no longer."""
        coming = self._words.coming(last_voiced)
        if coming is not None:
            self._context.emit(Hasten(turn.turn_id, coming.number, "pause"))

    def _new_hearing(self) -> Hearing:
        limits = self._context.limits
        detection = self._context.settings.turn_detection or MANUAL
        return Hearing(detection, limits.min_speech_ms, limits.max_utterance_s)


def _milliseconds(samples: int) -> int:
    return samples * 1000 // INPUT_RATE_HZ
