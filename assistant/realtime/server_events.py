"""What the core announces, in the protocol's words and in the protocol's order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from assistant.effects import (
    AudioCleared,
    AudioCommitted,
    IdleTimeout,
    ItemAdded,
    ItemDeleted,
    ItemDone,
    ItemRetrieved,
    ItemTruncated,
    Notice,
    PlaybackCleared,
    Refused,
    ResponseAudio,
    ResponseFinished,
    ResponseStarted,
    ResponseText,
    SettingsChanged,
    SpeechStarted,
    SpeechStopped,
    StageFailed,
    TranscriptCompleted,
    TranscriptionFailed,
    TranscriptSoFar,
    TurnFinished,
    UtteranceDiscarded,
)
from assistant.items import Response, ResponseStatus
from assistant.realtime.audio_stream import OutputAudio
from assistant.realtime.errors import ProtocolError, from_refusal
from assistant.realtime.objects import (
    answer_item,
    failure_object,
    item_object,
    part,
    place,
    status_details,
    usage_object,
)
from assistant.realtime.outbox import Outgoing
from assistant.realtime.session_config import WireSession
from assistant.realtime.wire import JsonObject, encoding


@dataclass
class _OpenResponse:
    """The response being sent: its place, and its sound in the format it began with."""

    previous_item_id: str | None
    audio: OutputAudio
    format: JsonObject
    generation: int = 0


class ServerEvents:
    """Writes one connection's server events; `session` is what the client last asked for."""

    def __init__(self, session_id: str, session: WireSession, voice_rate_hz: int) -> None:
        self.session = session
        self._id = session_id
        self._voice_rate_hz = voice_rate_hz
        self._count = 0
        self._open: _OpenResponse | None = None

    # -- what is not announced by the core ----------------------------------------------

    def session_created(self) -> JsonObject:
        """Return the first event of every connection."""
        return self._event("session.created", session=self._session(self.session))

    def session_updated(self, session: WireSession) -> JsonObject:
        """Return the acknowledgement of a `session.update`."""
        return self._event("session.updated", session=self._session(session))

    def error(self, error: ProtocolError) -> JsonObject:
        """Return the refusal of a client event."""
        return self._event("error", error=error.as_wire())

    # -- what the core announces --------------------------------------------------------

    def translate(self, notice: Notice) -> Iterator[Outgoing]:
        """Yield the events that say `notice`, in order.

        `SettingsChanged` is not said here: what it acknowledges is known to the connection.
        """
        match notice:
            case ResponseStarted():
                events = self._response_started(notice)
            case ResponseText():
                events = self._response_text(notice)
            case ResponseAudio():
                yield from self._response_audio(notice)
                return
            case ResponseFinished():
                yield from self._held_back_audio(notice.response)
                events = self._response_finished(notice)
            case (
                TurnFinished()
                | UtteranceDiscarded()
                | PlaybackCleared()
                | StageFailed()
                | TranscriptSoFar()
            ):
                events = self._extension(notice)
            case Refused():
                events = iter([self.error(from_refusal(notice))])
            case TranscriptCompleted() | TranscriptionFailed():
                events = self._transcription(notice)
            case SettingsChanged():
                return
            case _:
                events = iter([self._plain(notice)])
        for event in events:
            yield Outgoing(event)

    def _plain(
        self,
        notice: SpeechStarted
        | SpeechStopped
        | AudioCommitted
        | AudioCleared
        | IdleTimeout
        | ItemAdded
        | ItemDone
        | ItemRetrieved
        | ItemDeleted
        | ItemTruncated,
    ) -> JsonObject:
        """Say what one event says."""
        match notice:
            case SpeechStarted(item_id, start_ms):
                return self._event(
                    "input_audio_buffer.speech_started", item_id=item_id, audio_start_ms=start_ms
                )
            case SpeechStopped(item_id, end_ms, voiced_ms):
                event = self._event(
                    "input_audio_buffer.speech_stopped", item_id=item_id, audio_end_ms=end_ms
                )
                return event | ({"x_speech_end_ms": voiced_ms} if self._says_more else {})
            case AudioCommitted(item_id, previous):
                return self._event(
                    "input_audio_buffer.committed", item_id=item_id, previous_item_id=previous
                )
            case AudioCleared():
                return self._event("input_audio_buffer.cleared")
            case IdleTimeout(item_id, start_ms, end_ms):
                return self._event(
                    "input_audio_buffer.timeout_triggered",
                    item_id=item_id,
                    audio_start_ms=start_ms,
                    audio_end_ms=end_ms,
                )
            case ItemAdded(item, previous):
                return self._event(
                    "conversation.item.added", item=item_object(item), previous_item_id=previous
                )
            case ItemDone(item, previous):
                return self._event(
                    "conversation.item.done", item=item_object(item), previous_item_id=previous
                )
            case ItemRetrieved(item):
                return self._event("conversation.item.retrieved", item=item_object(item))
            case ItemDeleted(item_id):
                return self._event("conversation.item.deleted", item_id=item_id)
            case ItemTruncated(item, end_ms):
                return self._event(
                    "conversation.item.truncated",
                    item_id=item.item_id,
                    content_index=0,
                    audio_end_ms=end_ms,
                )

    def _transcription(
        self, notice: TranscriptCompleted | TranscriptionFailed
    ) -> Iterator[JsonObject]:
        if self.session.config.audio.input.transcription is None:
            return
        prefix = "conversation.item.input_audio_transcription"
        where: JsonObject = {"item_id": notice.item_id, "content_index": 0}
        if isinstance(notice, TranscriptionFailed):
            yield self._event(f"{prefix}.failed", **where, error=failure_object(notice.failure))
            return
        if notice.text:
            yield self._event(f"{prefix}.delta", **where, delta=notice.text)
        usage = {"type": "duration", "seconds": round(notice.audio_seconds, 3)}
        yield self._event(f"{prefix}.completed", **where, transcript=notice.text, usage=usage)

    # -- responses ----------------------------------------------------------------------

    def _response_started(self, notice: ResponseStarted) -> Iterator[JsonObject]:
        response = notice.response
        audio_format = self.session.config.audio.output.format
        wire_encoding, wire_rate_hz = encoding(audio_format)
        audio = OutputAudio(wire_encoding, self._voice_rate_hz, wire_rate_hz)
        self._open = _OpenResponse(notice.previous_item_id, audio, audio_format.model_dump())
        item = answer_item(response, "in_progress", None)
        yield self._event("response.created", response=self._response(response, output=[]))
        yield self._event(
            "response.output_item.added",
            response_id=response.response_id,
            output_index=0,
            item=item,
        )
        yield self._event(
            "conversation.item.added", item=item, previous_item_id=notice.previous_item_id
        )
        yield self._event("response.content_part.added", **place(response), part=part(response, ""))

    def _response_text(self, notice: ResponseText) -> Iterator[JsonObject]:
        spoken = notice.response.modality == "audio"
        kind = "response.output_audio_transcript" if spoken else "response.output_text"
        yield self._event(f"{kind}.delta", **place(notice.response), delta=notice.delta)

    def _response_audio(self, notice: ResponseAudio) -> Iterator[Outgoing]:
        if self._open is None:
            return
        self._open.generation = notice.generation
        piece = self._open.audio.encode(notice.start_sample, notice.samples)
        if piece is not None:
            yield self._audio_delta(notice.response, self._open.generation, *piece)

    def _held_back_audio(self, response: Response) -> Iterator[Outgoing]:
        """Send the last milliseconds of an answer that was not cut."""
        if self._open is None or response.status is ResponseStatus.CANCELLED:
            return
        piece = self._open.audio.finish()
        if piece is not None:
            yield self._audio_delta(response, self._open.generation, *piece)

    def _audio_delta(
        self, response: Response, generation: int, delta: str, start_ms: float
    ) -> Outgoing:
        event = self._event("response.output_audio.delta", **place(response), delta=delta)
        if self._says_more:
            event |= {"x_generation": generation, "x_start_ms": round(start_ms, 3)}
        return Outgoing(event, generation)

    def _response_finished(self, notice: ResponseFinished) -> Iterator[JsonObject]:
        response, text = notice.response, notice.item.text or ""
        where = place(response)
        item = answer_item(response, notice.item.status.value, text)
        if response.modality == "audio":
            yield self._event("response.output_audio.done", **where)
            yield self._event("response.output_audio_transcript.done", **where, transcript=text)
        else:
            yield self._event("response.output_text.done", **where, text=text)
        yield self._event("response.content_part.done", **where, part=part(response, text))
        yield self._event(
            "response.output_item.done", response_id=response.response_id, output_index=0, item=item
        )
        previous = self._open.previous_item_id if self._open else None
        yield self._event("conversation.item.done", item=item, previous_item_id=previous)
        yield self._event("response.done", response=self._response(response, output=[item]))
        self._open = None

    def _response(self, response: Response, output: list[JsonObject]) -> JsonObject:
        ended = response.status is not ResponseStatus.IN_PROGRESS
        spoken = response.modality == "audio"
        audio_format = self._open.format if self._open else None
        voice = self.session.installed.voice
        return {
            "object": "realtime.response",
            "id": response.response_id,
            "conversation_id": f"conv_{self._id}",
            "status": response.status.value,
            "status_details": status_details(response),
            "output": output,
            "output_modalities": [response.modality],
            "audio": {"output": {"format": audio_format, "voice": voice}} if spoken else None,
            "max_output_tokens": response.max_output_tokens or "inf",
            "metadata": dict(response.metadata) if response.metadata is not None else None,
            "usage": usage_object(response) if ended else None,
        }

    # -- the extension ------------------------------------------------------------------

    @property
    def _says_more(self) -> bool:
        extension = self.session.config.x
        return extension is not None and extension.events

    def _extension(
        self,
        notice: TurnFinished | UtteranceDiscarded | PlaybackCleared | StageFailed | TranscriptSoFar,
    ) -> Iterator[JsonObject]:
        if not self._says_more:
            return
        match notice:
            case TurnFinished():
                yield self._event(
                    "x.turn.timeline",
                    turn_id=notice.turn_id,
                    outcome=notice.outcome,
                    response_id=notice.response_id,
                    transcript=notice.transcript,
                    heard=notice.heard,
                    timeline=notice.timeline.as_milliseconds(),
                    drafted=notice.drafted,
                    accepted=notice.accepted,
                    speculation=notice.speculation,
                    wasted_tokens=notice.wasted_tokens,
                )
            case TranscriptSoFar(item_id, stable, tentative):
                if self.session.config.audio.input.transcription is not None:
                    yield self._event(
                        "x.transcript.partial", item_id=item_id, stable=stable, tentative=tentative
                    )
            case UtteranceDiscarded(item_id, reason):
                yield self._event("x.turn.discarded", item_id=item_id, reason=reason)
            case PlaybackCleared(response_id, generation):
                yield self._event(
                    "x.playback.clear", response_id=response_id, generation=generation
                )
            case StageFailed(stage, failure):
                yield self._event("x.stage.failed", stage=stage, error=failure_object(failure))

    # -- the envelope -------------------------------------------------------------------

    def _session(self, session: WireSession) -> JsonObject:
        return {"id": f"sess_{self._id}", **session.describe()}

    def _event(self, event_type: str, **fields: object) -> JsonObject:
        self._count += 1
        return {"type": event_type, "event_id": f"event_{self._id}{self._count:06d}", **fields}
