"""The dialogue core: a pure machine from events to effects, without I/O and without a clock.

`Session.feed(event, now)` is the only way in, the returned effects the only way out, and
`Session.deadline` says when to feed `TimePassed` if nothing else happens.  So every timing rule
can be tested in virtual time, and any run can be replayed from its events.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from assistant.answer import Answer
from assistant.answering import Answering
from assistant.context import Context, Limits
from assistant.effects import (
    Effect,
    IdleTimeout,
    JudgeTurnEnd,
    SettingsChanged,
)
from assistant.events import (
    INPUT_RATE_HZ,
    AudioAnalysed,
    AudioSynthesised,
    CancelResponse,
    ChunkFailed,
    ChunkPlanned,
    ClearAudio,
    ClearPlayback,
    CommitAudio,
    CreateItem,
    CreateResponse,
    DeleteItem,
    Event,
    Played,
    RetrieveItem,
    TextFailed,
    TextFinished,
    TextGenerated,
    TimePassed,
    TranscriptFailed,
    TranscriptReady,
    TruncateItem,
    TurnEndJudged,
    UpdateSettings,
)
from assistant.history import History
from assistant.item_commands import ItemCommands
from assistant.items import Failure, Message, Role
from assistant.listening import Listening
from assistant.recognising import Recognising
from assistant.settings import Settings
from assistant.turn import Turn, TurnState

__all__ = ["Limits", "Session"]

IDLE_HINT = "(The user has been silent for a while. Briefly ask if there is anything else.)"


@dataclass(frozen=True, slots=True)
class Wanted:
    """An answer that is to begin as soon as the words are known and nothing else is answered."""

    command: CreateResponse
    turn: Turn | None = None
    """The spoken turn it answers; without one, a written turn begins with the answer."""
    failure: Failure | None = None
    hint: Message | None = None


class Session:
    """One conversation: what one side says decides what the other side does."""

    def __init__(
        self,
        settings: Settings,
        *,
        voice_rate_hz: int,
        limits: Limits | None = None,
        id_prefix: str = "",
    ) -> None:
        self._context = Context(settings, limits or Limits(), voice_rate_hz, id_prefix)
        self._recognising = Recognising(self._context)
        self._listening = Listening(self._context, self._recognising)
        self._answering = Answering(self._context)
        self._items = ItemCommands(self._context, self._recognising, self._answering)
        self._wanted: Wanted | None = None
        self._silence_broken = False
        """The user was asked after a silence and has not said anything since."""

    # -- the way in, the way out --------------------------------------------------------

    def feed(self, event: Event, now: float) -> list[Effect]:
        """Take one event at the moment `now` (seconds, never going back); return the effects.

        Results of work that was given up in the meantime change nothing: they are dropped here.
        """
        assert now >= self._context.now, "time went back"
        self._context.now = now
        if self._is_current(event):
            self._handle(event)
        self._advance()
        return self._context.take_effects()

    @property
    def deadline(self) -> float | None:
        """When `TimePassed` is due if nothing else happens, on the clock of `now`."""
        moments = (
            self._listening.deadline_s,
            *self._recognising.deadlines_s,
            self._answering.deadline_s,
            self._idle_deadline_s(),
        )
        return min((moment for moment in moments if moment is not None), default=None)

    @property
    def audio_needed_from(self) -> int:
        """The first input sample that a `Transcribe` may still ask for."""
        return self._listening.needed_from

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._context.settings

    @property
    def history(self) -> History:
        """The conversation so far."""
        return self._context.history

    @property
    def turns(self) -> list[Turn]:
        """The turns that have not ended."""
        wanted = self._wanted.turn if self._wanted is not None else None
        turns = (self._listening.turn, *self._recognising.turns, wanted)
        return [turn for turn in (*turns, self._answering.turn) if turn is not None]

    @property
    def answer(self) -> Answer | None:
        """The answer being made or playing."""
        return self._answering.answer

    # -- events -------------------------------------------------------------------------

    def _is_current(self, event: Event) -> bool:
        match event:
            case TranscriptReady() | TranscriptFailed():
                turn_id, attempt = event.turn_id, event.attempt
                return self._listening.awaits(turn_id, attempt) or self._recognising.awaits(
                    turn_id, attempt
                )
            case TurnEndJudged():
                return self._listening.goes_on(event.turn_id)
            case TextGenerated() | TextFinished() | TextFailed():
                return self._answering.awaits(event.generation, text=True)
            case ChunkPlanned() | AudioSynthesised() | ChunkFailed():
                return self._answering.awaits(event.generation, text=False)
        return True

    def _handle(self, event: Event) -> None:
        match event:
            case AudioAnalysed():
                self._on_audio(event)
            case TranscriptReady():
                self._on_result(event)
            case TranscriptFailed():
                self._on_failure(event)
            case TurnEndJudged():
                self._listening.on_judged(event)
            case TextGenerated():
                self._answering.on_text(event)
            case TextFinished():
                self._answering.on_text_finished(event)
            case TextFailed():
                self._answering.on_text_failed(event)
            case ChunkPlanned():
                self._answering.on_chunk_planned(event)
            case AudioSynthesised():
                self._answering.on_synthesised(event)
            case ChunkFailed():
                self._answering.on_chunk_failed(event)
            case Played():
                self._answering.on_played(event)
            case CommitAudio():
                self._listening.commit(event)
            case ClearAudio():
                self._listening.clear(event)
                self._answering.give_up_prepared()
                self._answer_what_was_stopped()
            case CreateResponse():
                self._on_create_response(event)
            case CancelResponse():
                self._on_cancel_response(event)
            case ClearPlayback():
                self._interrupt_for_client()
            case TruncateItem():
                self._items.truncate(event)
            case CreateItem():
                self._items.create(event)
            case DeleteItem():
                self._items.delete(event)
            case RetrieveItem():
                self._items.retrieve(event)
            case UpdateSettings():
                self._on_settings(event)
            case TimePassed():
                pass  # what is due is done after every event

    def _on_audio(self, frame: AudioAnalysed) -> None:
        detection = self.settings.turn_detection
        change = self._listening.on_audio(frame)
        if change in ("started", "resumed"):
            self._answering.give_up_prepared()
        elif change == "paused":
            self._foresee()
        if change != "started":
            return
        self._silence_broken = False
        if detection is not None and detection.interrupt_response:
            self._answering.interrupt("turn_detected")
            if detection.create_response:
                self._drop_wanted()  # what the user says now will be answered instead
        self._prefill()

    def _on_result(self, event: TranscriptReady) -> None:
        if not self._listening.goes_on(event.turn_id):
            self._recognising.on_result(event)
            return
        if self._listening.on_partial(event):
            self._prefill()
        self._foresee()

    def _on_failure(self, event: TranscriptFailed) -> None:
        if self._listening.goes_on(event.turn_id):
            self._listening.on_failure(event)
            return
        turn = self._recognising.on_failure(event)
        if turn is not None:
            self._answer_after(turn, event.failure)

    def _on_words(self, event: TranscriptReady) -> None:
        """Go on with an utterance that is over and recognised."""
        said = self._answering.as_prepared(event.turn_id, event.text)
        turn = self._recognising.on_transcript(replace(event, text=said))
        if turn is not None:
            self._answer_after(turn)
        elif self._wanted is not None:
            silent = Failure("no_words", "The committed audio holds no words; say it again.")
            self._wanted = replace(self._wanted, failure=silent)
        else:
            self._answer_what_was_stopped()

    def _foresee(self) -> None:
        """Do at a pause what is to be done in case the user has finished."""
        self._judge()
        self._speculate()

    def _judge(self) -> None:
        """Ask whether the words so far sound like all, if the turn's end depends on that."""
        words = self._listening.to_judge()
        if words is not None:
            turn, said = words
            messages = self.history.messages(self.settings.instructions, said.text)
            self._context.emit(JudgeTurnEnd(turn.turn_id, said.attempt.number, messages))

    def _speculate(self) -> None:
        """Prepare the answer to the words so far, in case the user has finished."""
        foreseen = self._listening.foresee()
        if foreseen is not None and self._will_answer:
            turn, said = foreseen
            self._answering.prepare(turn, said.text)

    def _prefill(self) -> None:
        """Let the model take in what the prompt will begin with."""
        if self._will_answer:
            self._answering.prefill(self._listening.stable)

    @property
    def _will_answer(self) -> bool:
        """Whether what the user is saying will be answered, as far as can be known."""
        detection = self.settings.turn_detection
        if detection is None or detection.pause_ms is None or not detection.create_response:
            return False
        free = self._wanted is None and not self._answering.active
        return free and not self._recognising.turns

    def _answer_after(self, turn: Turn, failure: Failure | None = None) -> None:
        """Go on with a turn whose words are known (or, after a failure, never will be)."""
        detection = self.settings.turn_detection
        automatic = detection is not None and detection.create_response
        asked = self._wanted is not None and self._wanted.turn is None
        if not automatic and not asked:
            end = TurnState.DONE if failure is None else TurnState.FAILED
            self._context.end_turn(turn, end)
        elif self._recognising.turns or (self._user_goes_on and not asked):
            self._context.end_turn(turn, TurnState.INTERRUPTED)  # a later turn answers both
        else:
            command = self._wanted.command if self._wanted is not None else CreateResponse()
            self._drop_wanted()
            self._wanted = Wanted(command, turn, failure)

    def _answer_what_was_stopped(self) -> None:
        """Take up the answer to words that a mere noise kept from being answered."""
        detection = self.settings.turn_detection
        automatic = detection is not None and detection.create_response
        free = self._wanted is None and self._answering.answer is None
        busy = self._listening.turn is not None or bool(self._recognising.turns)
        if automatic and free and not busy and self.history.awaits_answer:
            self._wanted = Wanted(CreateResponse())

    def _on_create_response(self, command: CreateResponse) -> None:
        if self._answering.active or self._wanted is not None:
            message = "An answer is being made already; cancel it or wait for response.done."
            code = "conversation_already_has_active_response"
            self._context.refuse(command.command_id, code, message)
        else:
            self._wanted = Wanted(command)

    def _on_cancel_response(self, command: CancelResponse) -> None:
        answer = self._answering.answer
        named = command.response_id
        meant = named is None or (answer is not None and answer.response.response_id == named)
        if meant and (self._answering.active or self._wanted is not None):
            self._interrupt_for_client()
        else:
            message = "No such answer is being made; nothing was cancelled."
            self._context.refuse(command.command_id, "response_cancel_not_active", message)

    def _interrupt_for_client(self) -> None:
        self._drop_wanted()
        self._answering.interrupt("client_cancelled")

    def _on_settings(self, command: UpdateSettings) -> None:
        before = self.settings.turn_detection
        self._context.settings = command.settings
        if before != command.settings.turn_detection:
            self._listening.detection_changed()
            self._answering.give_up_prepared()
        self._context.emit(SettingsChanged(command.settings, command.command_id))

    # -- what follows from the state and the time ---------------------------------------

    def _advance(self) -> None:
        """Do what has become possible or due, whatever the event was."""
        self._listening.check_stall()
        for turn, failure in self._recognising.give_up_late():
            self._answer_after(turn, failure)
        while (known := self._recognising.take_known_words()) is not None:
            self._on_words(known)
        idle_s = self._idle_deadline_s()
        if idle_s is not None and self._context.now >= idle_s:
            self._break_silence()
        self._answering.advance()
        ready = not self._answering.active and not self._recognising.turns
        if self._wanted is not None and ready:
            wanted, self._wanted = self._wanted, None
            answered = wanted.turn or self._context.new_turn("written")
            self._answering.begin(
                answered, wanted.command, failure=wanted.failure, hint=wanted.hint
            )
            self._answering.advance()

    def _idle_deadline_s(self) -> float | None:
        detection, since_s = self.settings.turn_detection, self._context.idle_since_s
        if detection is None or detection.idle_timeout_ms is None or since_s is None:
            return None
        if self.turns or self._wanted is not None or self._silence_broken:
            return None
        return since_s + detection.idle_timeout_ms / 1000

    def _break_silence(self) -> None:
        self._silence_broken = True
        end_ms = self._listening.end_sample * 1000 // INPUT_RATE_HZ
        self._context.emit(IdleTimeout(self._context.new_id("item"), end_ms, end_ms))
        self._wanted = Wanted(CreateResponse(), hint=Message(Role.USER, IDLE_HINT))

    # -- small things -------------------------------------------------------------------

    @property
    def _user_goes_on(self) -> bool:
        """Whether the user speaks again and so keeps the floor."""
        detection = self.settings.turn_detection
        speaking = self._listening.turn is not None
        return speaking and detection is not None and detection.interrupt_response

    def _drop_wanted(self) -> None:
        wanted, self._wanted = self._wanted, None
        if wanted is not None and wanted.turn is not None:
            self._context.end_turn(wanted.turn, TurnState.INTERRUPTED)
