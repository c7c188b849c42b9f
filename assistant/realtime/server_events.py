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
    TurnFinished,
    UtteranceDiscarded,
)
from assistant.items import Failure, Item, ItemStatus, Response, ResponseStatus, Role
from assistant.realtime.audio_stream import OutputAudio
from assistant.realtime.errors import ProtocolError, from_refusal
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
            case TurnFinished() | UtteranceDiscarded() | PlaybackCleared() | StageFailed():
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
            case SpeechStopped(item_id, end_ms):
                return self._event(
                    "input_audio_buffer.speech_stopped", item_id=item_id, audio_end_ms=end_ms
                )
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
                    "conversation.item.added", item=_item(item), previous_item_id=previous
                )
            case ItemDone(item, previous):
                return self._event(
                    "conversation.item.done", item=_item(item), previous_item_id=previous
                )
            case ItemRetrieved(item):
                return self._event("conversation.item.retrieved", item=_item(item))
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
            yield self._event(f"{prefix}.failed", **where, error=_failure(notice.failure))
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
        item = _answer_item(response, "in_progress", None)
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
        yield self._event(
            "response.content_part.added", **_place(response), part=_part(response, "")
        )

    def _response_text(self, notice: ResponseText) -> Iterator[JsonObject]:
        spoken = notice.response.modality == "audio"
        kind = "response.output_audio_transcript" if spoken else "response.output_text"
        yield self._event(f"{kind}.delta", **_place(notice.response), delta=notice.delta)

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
        event = self._event("response.output_audio.delta", **_place(response), delta=delta)
        if self._says_more:
            event |= {"x_generation": generation, "x_start_ms": round(start_ms, 3)}
        return Outgoing(event, generation)

    def _response_finished(self, notice: ResponseFinished) -> Iterator[JsonObject]:
        response, text = notice.response, notice.item.text or ""
        place = _place(response)
        item = _answer_item(response, notice.item.status.value, text)
        if response.modality == "audio":
            yield self._event("response.output_audio.done", **place)
            yield self._event("response.output_audio_transcript.done", **place, transcript=text)
        else:
            yield self._event("response.output_text.done", **place, text=text)
        yield self._event("response.content_part.done", **place, part=_part(response, text))
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
            "status_details": _status_details(response),
            "output": output,
            "output_modalities": [response.modality],
            "audio": {"output": {"format": audio_format, "voice": voice}} if spoken else None,
            "max_output_tokens": response.max_output_tokens or "inf",
            "metadata": dict(response.metadata) if response.metadata is not None else None,
            "usage": _usage(response) if ended else None,
        }

    # -- the extension ------------------------------------------------------------------

    @property
    def _says_more(self) -> bool:
        extension = self.session.config.x
        return extension is not None and extension.events

    def _extension(
        self, notice: TurnFinished | UtteranceDiscarded | PlaybackCleared | StageFailed
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
                )
            case UtteranceDiscarded(item_id, reason):
                yield self._event("x.turn.discarded", item_id=item_id, reason=reason)
            case PlaybackCleared(response_id, generation):
                yield self._event(
                    "x.playback.clear", response_id=response_id, generation=generation
                )
            case StageFailed(stage, failure):
                yield self._event("x.stage.failed", stage=stage, error=_failure(failure))

    # -- the envelope -------------------------------------------------------------------

    def _session(self, session: WireSession) -> JsonObject:
        return {"id": f"sess_{self._id}", **session.describe()}

    def _event(self, event_type: str, **fields: object) -> JsonObject:
        self._count += 1
        return {"type": event_type, "event_id": f"event_{self._id}{self._count:06d}", **fields}


def _place(response: Response) -> JsonObject:
    """Where in a response a piece of content belongs; ours has one item with one part."""
    return {
        "response_id": response.response_id,
        "item_id": response.item_id,
        "output_index": 0,
        "content_index": 0,
    }


def _part(response: Response, text: str) -> JsonObject:
    if response.modality == "audio":
        return {"type": "audio", "transcript": text}
    return {"type": "text", "text": text}


def _answer_item(response: Response, status: str, text: str | None) -> JsonObject:
    """Return the item of a response being sent; it holds all that was sent, heard or not."""
    content = [] if text is None else [_answer_content(response.modality == "audio", text)]
    return _message(response.item_id, Role.ASSISTANT, status, content)


def _item(item: Item) -> JsonObject:
    """Return an item of the conversation as it stands: an answer that was cut, as it was heard."""
    if item.role is Role.ASSISTANT:
        cut = item.status is ItemStatus.INCOMPLETE and item.heard is not None
        content = _answer_content(item.spoken, (item.heard if cut else item.text) or "")
    elif item.spoken:
        content = {"type": "input_audio", "transcript": item.text}
    else:
        content = {"type": "input_text", "text": item.text or ""}
    return _message(item.item_id, item.role, item.status.value, [content])


def _answer_content(spoken: bool, text: str) -> JsonObject:
    if spoken:
        return {"type": "output_audio", "transcript": text}
    return {"type": "output_text", "text": text}


def _message(item_id: str, role: Role, status: str, content: list[JsonObject]) -> JsonObject:
    return {
        "id": item_id,
        "object": "realtime.item",
        "type": "message",
        "role": role.value,
        "status": status,
        "content": content,
    }


def _failure(failure: Failure) -> JsonObject:
    return {"type": "server_error", "code": failure.code, "message": failure.message}


def _status_details(response: Response) -> JsonObject | None:
    match response.status:
        case ResponseStatus.IN_PROGRESS | ResponseStatus.COMPLETED:
            return None
        case ResponseStatus.FAILED:
            error = _failure(response.error) if response.error else None
            return {"type": "failed", "error": error}
        case ResponseStatus.CANCELLED | ResponseStatus.INCOMPLETE:
            return {"type": response.status.value, "reason": response.reason}


def _usage(response: Response) -> JsonObject:
    """Return the token counts; all of ours are text, whatever the modality."""
    usage = response.usage
    cached = usage.cached_tokens
    return {
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "input_token_details": {
            "text_tokens": usage.input_tokens,
            "audio_tokens": 0,
            "image_tokens": 0,
            "cached_tokens": cached,
            "cached_tokens_details": {"text_tokens": cached, "audio_tokens": 0, "image_tokens": 0},
        },
        "output_token_details": {"text_tokens": usage.output_tokens, "audio_tokens": 0},
    }
