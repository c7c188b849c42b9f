"""Whether an event is what the protocol's published types say, to the letter.

The types of the `openai` package allow unknown fields and most absences, because their client must
survive tomorrow's server.  Here every event is checked against the type that its `type` names, in
strict mode, and a field that the types do not know is a mistake unless it is listed below.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from openai.types.realtime import RealtimeServerEvent
from pydantic import BaseModel, ConfigDict, TypeAdapter

ADAPTER: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)

KNOWN_EXTRAS = {
    # The service sends these with every session, but the types list them for another response.
    "session.id",
    "session.object",
    # Ours, for clients that asked for them.
    "session.x",
    "x_generation",
    "x_speech_end_ms",
    "x_start_ms",
}

# Fields which the types call optional, but without which an event of ours would say nothing.
ALWAYS_SENT = {
    "conversation.item.added": {"previous_item_id"},
    "conversation.item.done": {"previous_item_id"},
    "conversation.item.input_audio_transcription.delta": {"delta", "content_index"},
    "input_audio_buffer.committed": {"previous_item_id"},
}
RESPONSE_FIELDS = {
    "id",
    "object",
    "status",
    "status_details",
    "output",
    "output_modalities",
    "conversation_id",
    "usage",
    "metadata",
}
ITEM_FIELDS = {"id", "object", "type", "role", "status", "content"}
ERROR_FIELDS = {"type", "code", "message", "param", "event_id"}


class _Ours(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    event_id: str


class _Timeline(_Ours):
    type: Literal["x.turn.timeline"]
    turn_id: int
    outcome: Literal["done", "interrupted", "failed", "discarded"]
    response_id: str | None
    transcript: str | None
    heard: str | None
    timeline: dict[str, float | str | bool | None]
    drafted: int
    accepted: int
    speculation: Literal["none", "hit", "miss"]
    wasted_tokens: int


class _Discarded(_Ours):
    type: Literal["x.turn.discarded"]
    item_id: str
    reason: str


class _Partial(_Ours):
    type: Literal["x.transcript.partial"]
    item_id: str
    stable: str
    tentative: str


class _Clear(_Ours):
    type: Literal["x.playback.clear"]
    response_id: str
    generation: int


class _StageFailed(_Ours):
    type: Literal["x.stage.failed"]
    stage: Literal["asr", "llm", "tts"]
    error: dict[str, str]


def _name(model: type[BaseModel]) -> str:
    (name,) = get_args(model.model_fields["type"].annotation)
    return str(name)


def _published() -> dict[str, type[BaseModel]]:
    union = get_args(RealtimeServerEvent)[0]
    assert get_origin(RealtimeServerEvent) is not None
    return {_name(model): model for model in get_args(union)}


PUBLISHED = _published()
OURS = (_Timeline, _Discarded, _Partial, _Clear, _StageFailed)
EXTENSION = {_name(model): model for model in OURS}


def check(event: dict[str, Any]) -> None:
    """Raise unless `event` is an event that a client may rely on."""
    event_type = event["type"]
    if event_type in EXTENSION:
        EXTENSION[event_type].model_validate(event)
        return
    model = PUBLISHED[event_type]
    parsed = model.model_validate(event, strict=True)
    assert type(ADAPTER.validate_python(event, strict=True)) is model
    unknown = set(_extras(parsed)) - KNOWN_EXTRAS
    assert not unknown, f"{event_type} has fields that no client knows: {unknown}"
    for name in ("response", "item", "error"):
        if isinstance(event.get(name), dict):
            required = {"response": RESPONSE_FIELDS, "item": ITEM_FIELDS, "error": ERROR_FIELDS}
            _require(f"{event_type}.{name}", event[name], required[name], _is_event_error(event))
    _require(event_type, event, ALWAYS_SENT.get(event_type, set()), True)


def _is_event_error(event: dict[str, Any]) -> bool:
    """Transcription failures carry an error that answers no event."""
    return "error" not in event or event["type"] == "error"


def _require(where: str, value: dict[str, Any], names: set[str], wanted: bool) -> None:
    missing = names - set(value) if wanted else set()
    assert not missing, f"{where} lacks {missing}"


def _extras(parsed: object, path: str = "") -> Iterator[str]:
    """Yield the paths of all fields that the types do not know; lists leave no trace in a path."""
    if isinstance(parsed, list):
        for element in parsed:
            yield from _extras(element, path)
    elif isinstance(parsed, BaseModel):
        prefix = f"{path}." if path else ""
        for name in parsed.model_extra or {}:
            yield prefix + name
        for name in type(parsed).model_fields:
            yield from _extras(getattr(parsed, name), prefix + name)
