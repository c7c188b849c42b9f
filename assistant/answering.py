"""The assistant's side of the dialogue: from a wish for an answer to the last word heard of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from assistant.answer import Answer
from assistant.context import Context, Outcome
from assistant.effects import (
    Generate,
    ItemTruncated,
    PlaybackCleared,
    Prefill,
    ResponseAudio,
    ResponseFinished,
    ResponseStarted,
    ResponseText,
    StageFailed,
    StopWork,
)
from assistant.events import (
    AudioSynthesised,
    ChunkFailed,
    ChunkPlanned,
    CreateResponse,
    Played,
    TextFailed,
    TextFinished,
    TextGenerated,
    TruncateItem,
)
from assistant.items import Failure, Item, ItemStatus, Message, Response, ResponseStatus, Role
from assistant.playback import Playback
from assistant.speculation import Basis, Speculation
from assistant.turn import Turn, TurnState

KEPT_ANSWERS = 32
"""Answers whose word times are kept, so that a late truncation still cuts exactly."""


class Answering:
    """The answer being made or still playing, of which there is at most one, and its turn.

    Beside it there may be one that is prepared for words to which the user may still add.  It
    becomes the answer if nothing that it depends on has changed when the turn is over.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self.turn: Turn | None = None
        self.answer: Answer | None = None
        self._speculation = Speculation(context)
        self._answers: dict[str, Answer] = {}
        self._generation = 0

    @property
    def active(self) -> bool:
        """Whether an answer is being made (not: whether one still plays)."""
        return self.answer is not None and not self.answer.delivered

    @property
    def deadline_s(self) -> float | None:
        """When `advance` has something to do."""
        if self.answer is None or self.turn is None:
            return None
        now, playback = self._context.now, self.answer.playback
        moments = (self.turn.deadline_s, playback.next_take_s(now), playback.ends_s(now))
        return min((moment for moment in moments if moment is not None), default=None)

    def awaits(self, generation: int, *, text: bool) -> bool:
        """Whether results of this generation are still wanted; `text`: is more text?"""
        found = self._of(generation)
        return found is not None and not (text and found[1].text_whole)

    def prefill(self, stable: str) -> None:
        """Let the model take in the prompt as far as it is known: the user has said `stable`."""
        if self._speculation.prepared is None:
            self._context.emit(Prefill(self._basis(CreateResponse(), stable).messages))

    def prepare(self, turn: Turn, said: str) -> None:
        """Begin the answer that `turn` gets by itself if `said` was all; nothing of it leaves.

        One that is being prepared for the same words goes on.
        """
        assert not self.active
        if self._speculation.fits(turn.turn_id, said):
            return
        self._speculation.give_up()
        wanted = CreateResponse()
        basis = self._basis(wanted, said)
        answer = self._new_answer(wanted)
        self._speculation.hold(turn, answer, basis, said)
        self._generate(answer, basis, speculative=True)

    def as_prepared(self, turn_id: int, said: str) -> str:
        """Return `said` as it was spelt when the answer to it was begun, if one was."""
        return self._speculation.spelling(turn_id, said)

    def give_up_prepared(self) -> None:
        """Drop the prepared answer, if there is one."""
        self._speculation.give_up()

    def begin(
        self,
        turn: Turn,
        wanted: CreateResponse,
        *,
        failure: Failure | None = None,
        hint: Message | None = None,
    ) -> None:
        """Begin the answer to `turn`; after a `failure` it is an apology.

        `hint` follows the conversation in the prompt without becoming part of it.
        """
        assert not self.active
        self._let_tail_play_out()
        context = self._context
        basis = self._basis(wanted)
        prepared = self._speculation.take(turn, basis)
        answer = prepared or self._new_answer(wanted)
        response = answer.response
        self.turn, self.answer = turn, answer
        if turn.timeline.endpoint_s is None:
            turn.timeline.endpoint_s = context.now
        self._moved()
        previous = context.history.last_id
        context.history.add(
            Item(response.item_id, Role.ASSISTANT, "", answer.spoken, ItemStatus.IN_PROGRESS, "")
        )
        self._remember(answer)
        context.emit(ResponseStarted(response, previous))
        if prepared is not None:
            self._tell_text(answer, answer.text)
        elif failure is not None:
            self._say(turn, answer, answer.fail(failure, context.limits.apology))
        elif not any(message.role is Role.USER for message in (*basis.messages, hint) if message):
            nothing = Failure("nothing_to_answer", "There is no user message to answer yet.")
            answer.fail(nothing, "")
        else:
            self._generate(answer, basis, hint=hint)

    def on_text(self, event: TextGenerated) -> None:
        """Take more verified text."""
        turn, answer = self._made_for(event.generation)
        answer.add_text(event.text, event.tokens, event.step)
        self._say(turn, answer, event.text)

    def on_text_finished(self, event: TextFinished) -> None:
        """Take note that the text is whole."""
        _, answer = self._made_for(event.generation)
        answer.finish_text(event.reason, event.usage)

    def on_text_failed(self, event: TextFailed) -> None:
        """End the text where it stands, or apologise if there is none."""
        turn, answer = self._made_for(event.generation)
        self._context.emit(StageFailed("llm", event.failure))
        if answer is self.answer:
            self._say(turn, answer, answer.fail(event.failure, self._context.limits.apology))
        else:
            self.give_up_prepared()  # it is tried again when the turn is over

    def on_chunk_planned(self, event: ChunkPlanned) -> None:
        """Take the word times of the clause being spoken."""
        self._made_for(event.generation)[1].plan(event)

    def on_synthesised(self, event: AudioSynthesised) -> None:
        """Take more audio."""
        turn, answer = self._made_for(event.generation)
        if turn.timeline.first_audio_s is None and len(event.samples):
            turn.timeline.first_audio_s = self._context.now
        self._moved()
        answer.add_audio(event)

    def on_chunk_failed(self, event: ChunkFailed) -> None:
        """Skip a clause that cannot be spoken."""
        self._context.emit(StageFailed("tts", event.failure))
        self._made_for(event.generation)[1].skip_chunk(event.chunk)

    def on_played(self, event: Played) -> None:
        """Take the loudspeaker's position; one of an answer cut in the meantime says nothing."""
        answer, turn, now = self.answer, self.turn, self._context.now
        if answer is None or turn is None or answer.response.response_id != event.response_id:
            return
        before = answer.playback.position(now)
        answer.playback.acknowledge(answer.samples(event.position_ms))
        position = answer.playback.position(now)
        if position > before:
            self._moved()
        timeline = turn.timeline
        if position and timeline.first_heard_s is None and timeline.first_sent_s is not None:
            sounding_since_s = now - answer.milliseconds(position) / 1000
            timeline.first_heard_s = max(timeline.first_sent_s, sounding_since_s)

    def truncate(self, command: TruncateItem) -> None:
        """Cut an answer, playing or long past, to what the client says was heard of it."""
        context = self._context
        answer = self._answers.get(command.item_id)
        if answer is None:
            message = "Only an answer that was spoken in this session can be truncated."
            context.refuse(command.command_id, "item_not_truncatable", message, "item_id")
            return
        position = min(answer.samples(command.audio_end_ms), answer.playback.total)
        heard = answer.heard_until(position)
        if answer is self.answer:
            self.interrupt("client_cancelled", heard)
        item = context.history.write(command.item_id, answer.text, ItemStatus.INCOMPLETE, heard)
        context.emit(ItemTruncated(item, answer.milliseconds(position)))

    def interrupt(
        self, reason: Literal["turn_detected", "client_cancelled"], heard: str | None = None
    ) -> None:
        """Stop the answer being made or played, if there is one; keep what was heard of it."""
        turn, answer = self.turn, self.answer
        if turn is None or answer is None:
            return
        outcome = self._stop(answer, heard)
        if answer.response.status is ResponseStatus.IN_PROGRESS:
            cancelled = ResponseStatus.CANCELLED
            answer.response = replace(answer.response, status=cancelled, reason=reason)
            self._tell_finished(answer)
        self._context.end_turn(turn, TurnState.INTERRUPTED, outcome)

    def forget(self, item_id: str) -> None:
        """Forget the word times of an answer that was deleted."""
        self._answers.pop(item_id, None)

    def advance(self) -> None:
        """Send, speak and finish whatever has become possible or due."""
        if (prepared := self._speculation.prepared) is not None:
            self._speak_next(*prepared, speculative=True)
        answer, turn, now = self.answer, self.turn, self._context.now
        if answer is None or turn is None:
            return
        self._move_audio(answer, turn)
        if answer.delivered and answer.response.status is ResponseStatus.IN_PROGRESS:
            self._finish_response(answer)
        if answer.delivered and (not answer.spoken or answer.playback.all_heard(now)):
            self._finish_turn(answer, turn)
        elif turn.deadline_s is not None and now >= turn.deadline_s:
            self._give_up(answer, turn)

    # -- inside -------------------------------------------------------------------------

    def _of(self, generation: int) -> tuple[Turn, Answer] | None:
        """Return the answer of this generation with its turn, unless it has been given up."""
        if self.answer is not None and self.answer.generation == generation:
            assert self.turn is not None
            return self.turn, self.answer
        prepared = self._speculation.prepared
        if prepared is not None and prepared[1].generation == generation:
            return prepared
        return None

    def _made_for(self, generation: int) -> tuple[Turn, Answer]:
        found = self._of(generation)
        assert found is not None, "results of given-up work are dropped before"
        return found

    def _basis(self, wanted: CreateResponse, then: str | None = None) -> Basis:
        settings = self._context.settings
        instructions = wanted.instructions
        if instructions is None:
            instructions = settings.instructions
        return Basis(self._context.history.messages(instructions, then), wanted, settings)

    def _generate(
        self,
        answer: Answer,
        basis: Basis,
        *,
        hint: Message | None = None,
        speculative: bool = False,
    ) -> None:
        messages = basis.messages + ((hint,) if hint else ())
        limit = answer.response.max_output_tokens
        self._context.emit(Generate(answer.generation, messages, limit, speculative))

    def _new_answer(self, wanted: CreateResponse) -> Answer:
        self._generation += 1
        context, settings = self._context, self._context.settings
        rate_hz = context.voice_rate_hz
        response = Response(
            response_id=context.new_id("resp"),
            item_id=context.new_id("item"),
            modality=wanted.modality or settings.modality,
            max_output_tokens=wanted.max_output_tokens or settings.max_output_tokens,
            metadata=wanted.metadata,
        )
        playback = Playback(
            rate_hz, settings.playback_lead_ms, acknowledged=settings.playback_acknowledged
        )
        return Answer(response, self._generation, playback, settings.speed, rate_hz=rate_hz)

    def _remember(self, answer: Answer) -> None:
        """Keep the word times of an answer that will be heard."""
        if answer.spoken:
            self._answers[answer.response.item_id] = answer
            if len(self._answers) > KEPT_ANSWERS:
                del self._answers[next(iter(self._answers))]

    def _say(self, turn: Turn, answer: Answer, delta: str) -> None:
        if not delta:
            return
        if turn.timeline.first_text_s is None:
            turn.timeline.first_text_s = self._context.now
        if answer is self.answer:
            self._tell_text(answer, delta)

    def _tell_text(self, answer: Answer, delta: str) -> None:
        if not delta:
            return
        assert self.turn is not None
        self._moved()
        self._context.emit(ResponseText(answer.response, delta))
        if not answer.spoken:
            self._speaking(self.turn)

    def _speaking(self, turn: Turn) -> None:
        if turn.state is TurnState.COMMITTED:
            turn.become(TurnState.SPEAKING)
        self._moved()

    def _moved(self) -> None:
        """The answer got further: it may take that long again before it counts as stuck."""
        if self.turn is not None:
            self.turn.deadline_s = self._context.now + self._context.limits.answer_deadline_s

    def _move_audio(self, answer: Answer, turn: Turn) -> None:
        now = self._context.now
        while (frame := answer.playback.take(now)) is not None:
            if turn.timeline.first_sent_s is None:
                turn.timeline.first_sent_s = now
            self._speaking(turn)
            start, samples = frame
            self._context.emit(ResponseAudio(answer.response, answer.generation, start, samples))
        self._speak_next(turn, answer)

    def _speak_next(self, turn: Turn, answer: Answer, *, speculative: bool = False) -> None:
        clause = answer.next_synthesis(speculative=speculative)
        if clause is not None:
            if turn.timeline.first_chunk_s is None:
                turn.timeline.first_chunk_s = self._context.now
            self._context.emit(clause)

    def _finish_response(self, answer: Answer) -> None:
        if answer.response.error is not None:
            status = ResponseStatus.FAILED
        elif answer.response.reason == "max_output_tokens":
            status = ResponseStatus.INCOMPLETE
        else:
            status = ResponseStatus.COMPLETED
        answer.response = replace(answer.response, status=status)
        whole = status is ResponseStatus.COMPLETED
        self._context.history.write(
            answer.response.item_id,
            answer.text,
            ItemStatus.COMPLETED if whole else ItemStatus.INCOMPLETE,
            answer.heard_text(self._context.now),
        )
        self._tell_finished(answer)

    def _tell_finished(self, answer: Answer) -> None:
        item = self._context.history[answer.response.item_id]
        self._context.emit(ResponseFinished(answer.response, item))

    def _finish_turn(self, answer: Answer, turn: Turn) -> None:
        """Close a turn whose answer was taken in whole."""
        item = self._context.history[answer.response.item_id]
        self._context.history.write(item.item_id, answer.text, item.status, answer.text)
        self.turn = self.answer = None
        failed = answer.response.status is ResponseStatus.FAILED
        state = TurnState.FAILED if failed else TurnState.DONE
        self._context.end_turn(turn, state, _outcome(answer, answer.text))

    def _let_tail_play_out(self) -> None:
        """Count an answer that has left but still plays as heard: nothing will stop it."""
        if self.answer is not None and self.turn is not None:
            self._finish_turn(self.answer, self.turn)

    def _stop(self, answer: Answer, heard: str | None = None) -> Outcome:
        """Void all work and audio of the answer and cut its item to what was heard."""
        if heard is None:
            heard = answer.heard_text(self._context.now)
        self._context.emit(StopWork(answer.generation))
        if answer.spoken:
            cleared = PlaybackCleared(answer.response.response_id, answer.generation)
            self._context.emit(cleared)
        item_id = answer.response.item_id
        self._context.history.write(item_id, answer.text, ItemStatus.INCOMPLETE, heard)
        self.turn = self.answer = None
        return _outcome(answer, heard)

    def _give_up(self, answer: Answer, turn: Turn) -> None:
        """End an answer that no longer moves: a stage is stuck, or the client does not play."""
        outcome = self._stop(answer)
        stuck = Failure("answer_timeout", "The answer did not get any further in time.")
        stage: Literal["tts", "llm"] = "tts" if answer.text_whole else "llm"
        state = TurnState.INTERRUPTED
        if answer.response.status is ResponseStatus.IN_PROGRESS:
            state = TurnState.FAILED
            answer.response = replace(answer.response, status=ResponseStatus.FAILED, error=stuck)
            self._context.emit(StageFailed(stage, stuck))
            self._tell_finished(answer)
        self._context.end_turn(turn, state, outcome)


def _outcome(answer: Answer, heard: str) -> Outcome:
    return Outcome(answer.response.response_id, heard, tuple(answer.steps))
