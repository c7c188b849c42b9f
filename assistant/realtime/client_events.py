"""What a client may send: every event of the protocol, checked, as a command to the core."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError, from_json

from assistant.events import (
    CancelResponse,
    ClearPlayback,
    Command,
    CreateItem,
    CreateResponse,
    DeleteItem,
    Played,
    RetrieveItem,
    TruncateItem,
)
from assistant.history import ROOT
from assistant.items import Role
from assistant.realtime.errors import ProtocolError, from_validation
from assistant.realtime.wire import (
    NO_TRANSCRIPTION_SESSIONS,
    JsonObject,
    Modalities,
    NoPrompt,
    NoReasoning,
    NoTools,
    Text,
    TokenLimit,
    ToolChoice,
    VoiceName,
    WireModel,
    absent,
    nearest,
    shortened,
    unsupported,
)

MOST_APPENDED_BYTES = 15 * 1024 * 1024
"""Length of the base64 text of one append."""

Id = Annotated[str, Field(min_length=1, max_length=256)]
ItemId = Annotated[str, Field(min_length=1, max_length=64)]


class _ClientEvent(WireModel):
    event_id: Id | None = None


class SessionUpdate(_ClientEvent):
    """Change the session; `session` is checked when it is merged."""

    type: Literal["session.update"]
    session: dict[str, object]


class AppendAudio(_ClientEvent):
    """More sound, in the session's input format; not acknowledged."""

    type: Literal["input_audio_buffer.append"]
    audio: Annotated[str, Field(max_length=MOST_APPENDED_BYTES)]


class CommitAudioBuffer(_ClientEvent):
    """The user's turn ends here."""

    type: Literal["input_audio_buffer.commit"]


class ClearAudioBuffer(_ClientEvent):
    """Forget the sound that was appended."""

    type: Literal["input_audio_buffer.clear"]


class _CommandEvent(_ClientEvent):
    """An event that is one command to the core."""

    @abstractmethod
    def command(self) -> Command:
        """Return the command, which carries the client's name for this event."""


# -- items ----------------------------------------------------------------------------------

_OTHER_ITEMS = {
    "function_call",
    "function_call_output",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "mcp_list_tools",
}


def _only_message(value: object) -> object:
    if isinstance(value, str) and value in _OTHER_ITEMS:
        raise unsupported("tools are not supported; only items of type message are")
    return value


def _written(value: object) -> object:
    if value == "input_audio":
        raise unsupported("send sound with input_audio_buffer.append, not inside an item")
    if value == "input_image":
        raise unsupported("the model cannot see images")
    return value


class ContentPart(WireModel):
    """One piece of a message's text; what an assistant once said counts by its transcript."""

    type: Annotated[Literal["input_text", "output_text", "output_audio"], BeforeValidator(_written)]
    text: Text | None = None
    transcript: Text | None = None
    audio: Annotated[str | None, absent("a message is restored from its transcript alone")] = None

    @property
    def words(self) -> str:
        """The text, wherever this type of part keeps it."""
        return (self.transcript if self.type == "output_audio" else self.text) or ""


def _not_root(value: str) -> str:
    if value == ROOT:
        raise PydanticCustomError(
            "item_id", "root means the start of the conversation; choose another"
        )
    return value


class MessageItem(WireModel):
    """A written message of any role."""

    _PARTS: ClassVar[dict[str, set[str]]] = {
        "system": {"input_text"},
        "user": {"input_text"},
        "assistant": {"output_text", "output_audio"},
    }

    type: Annotated[Literal["message"], BeforeValidator(_only_message)]
    role: Literal["system", "user", "assistant"]
    content: Annotated[list[ContentPart], Field(min_length=1, max_length=64)]
    id: Annotated[ItemId, AfterValidator(_not_root)] | None = None
    object: Literal["realtime.item"] | None = None
    status: Literal["completed", "incomplete", "in_progress"] | None = None

    @model_validator(mode="after")
    def _parts_suit_the_role(self) -> MessageItem:
        for part in self.content:
            if part.type not in self._PARTS[self.role]:
                raise PydanticCustomError(
                    "unsuited_content",
                    "content of type {part} does not belong to the role {role}; send {suited}",
                    {
                        "part": part.type,
                        "role": self.role,
                        "suited": " or ".join(sorted(self._PARTS[self.role])),
                    },
                )
        if not self.text.strip():
            raise PydanticCustomError(
                "empty_content", "the message holds no text; put some into its content"
            )
        return self

    @property
    def text(self) -> str:
        """The message as one text."""
        return "\n".join(part.words for part in self.content)


class ItemCreate(_CommandEvent):
    """Put a message into the conversation."""

    type: Literal["conversation.item.create"]
    item: MessageItem
    previous_item_id: ItemId | None = None

    def command(self) -> Command:
        """Return the command."""
        return CreateItem(
            role=Role(self.item.role),
            text=self.item.text,
            item_id=self.item.id,
            previous_item_id=self.previous_item_id,
            command_id=self.event_id,
        )


class ItemRetrieve(_CommandEvent):
    """Ask for an item as it stands."""

    type: Literal["conversation.item.retrieve"]
    item_id: ItemId

    def command(self) -> Command:
        """Return the command."""
        return RetrieveItem(item_id=self.item_id, command_id=self.event_id)


class ItemDelete(_CommandEvent):
    """Take an item out of the conversation."""

    type: Literal["conversation.item.delete"]
    item_id: ItemId

    def command(self) -> Command:
        """Return the command."""
        return DeleteItem(item_id=self.item_id, command_id=self.event_id)


class ItemTruncate(_CommandEvent):
    """The client stopped playing an answer."""

    type: Literal["conversation.item.truncate"]
    item_id: ItemId
    content_index: Literal[0]
    audio_end_ms: Annotated[int, Field(ge=0)]

    def command(self) -> Command:
        """Return the command."""
        return TruncateItem(
            item_id=self.item_id, audio_end_ms=self.audio_end_ms, command_id=self.event_id
        )


# -- responses ------------------------------------------------------------------------------


def _only_auto(value: object) -> object:
    if value == "none":
        raise unsupported("answers outside the conversation are not supported; leave it out")
    return value


class ResponseOutput(WireModel):
    """How this one answer sounds."""

    format: Annotated[object, absent("the format is the session's; use session.update")] = None
    voice: VoiceName | None = None


class ResponseAudioConfig(WireModel):
    """The `audio` of a `response.create`."""

    output: ResponseOutput | None = None


class ResponseConfig(WireModel):
    """What one answer does differently from what the session says."""

    ELSEWHERE: ClassVar[dict[str, str]] = {
        "modalities": "use output_modalities, with one entry: audio or text",
        "voice": "use audio.output.voice",
        "output_audio_format": "use the session's audio.output.format",
        "max_response_output_tokens": "use max_output_tokens",
        "temperature": "it is set in the server's configuration",
    }

    instructions: Text | None = None
    output_modalities: Modalities | None = None
    max_output_tokens: TokenLimit | None = None
    metadata: (
        Annotated[
            dict[
                Annotated[str, Field(max_length=64)],
                Annotated[str, Field(max_length=512)],
            ],
            Field(max_length=16),
        ]
        | None
    ) = None
    audio: ResponseAudioConfig | None = None
    conversation: Annotated[Literal["auto"], BeforeValidator(_only_auto)] | None = None
    input: Annotated[
        list[object] | None, absent("an answer's input is the conversation; add items to it")
    ] = None
    tools: NoTools = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    prompt: NoPrompt = None
    reasoning: NoReasoning = None


class ResponseCreate(_CommandEvent):
    """Answer now."""

    type: Literal["response.create"]
    response: ResponseConfig | None = None

    def command(self) -> Command:
        """Return the command."""
        wished = self.response or ResponseConfig()
        limit = wished.max_output_tokens
        return CreateResponse(
            instructions=wished.instructions,
            modality=wished.output_modalities[0] if wished.output_modalities else None,
            max_output_tokens=None if limit == "inf" else limit,
            metadata=wished.metadata,
            command_id=self.event_id,
        )


class ResponseCancel(_CommandEvent):
    """Stop the answer being made."""

    type: Literal["response.cancel"]
    response_id: Id | None = None

    def command(self) -> Command:
        """Return the command."""
        return CancelResponse(response_id=self.response_id, command_id=self.event_id)


class OutputAudioClear(_CommandEvent):
    """Stop what is playing, whether it is still being made or not."""

    type: Literal["output_audio_buffer.clear"]

    def command(self) -> Command:
        """Return the command."""
        return ClearPlayback(command_id=self.event_id)


class PlaybackReport(_CommandEvent):
    """Ours: how far the client's loudspeaker is in an answer's audio."""

    type: Literal["x.playback"]
    response_id: Id
    position_ms: Annotated[float, Field(ge=0)]

    def command(self) -> Command:
        """Return the command."""
        return Played(
            response_id=self.response_id,
            position_ms=self.position_ms,
            command_id=self.event_id,
        )


CommandEvent = (
    ItemCreate
    | ItemRetrieve
    | ItemDelete
    | ItemTruncate
    | ResponseCreate
    | ResponseCancel
    | OutputAudioClear
    | PlaybackReport
)
ClientEvent = SessionUpdate | AppendAudio | CommitAudioBuffer | ClearAudioBuffer | CommandEvent

_CLIENT_EVENTS = [
    str(get_args(event.model_fields["type"].annotation)[0]) for event in get_args(ClientEvent)
]
_NO_CLIENT_EVENTS = {"transcription_session.update": NO_TRANSCRIPTION_SESSIONS}
"""Events that are known, but not to this server; what to do instead."""

_ADAPTER: TypeAdapter[ClientEvent] = TypeAdapter(
    Annotated[ClientEvent, Field(discriminator="type")]
)


def parse_event(message: str | JsonObject) -> ClientEvent:
    """Return the event that a message holds.

    Raises `ProtocolError`, with the client's `event_id` if that much could be read.
    """
    given = _decode(message) if isinstance(message, str) else message
    try:
        return _ADAPTER.validate_python(given)
    except ValidationError as error:
        refusal = from_validation(error, given)
        event_id = given.get("event_id")
        if isinstance(event_id, str):
            refusal.event_id = event_id
        if refusal.param == "type" and "type" in given:
            refusal.message = f"type {_no_client_event(given['type'])}"
        raise refusal from None


def _decode(text: str) -> JsonObject:
    try:
        given = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise ProtocolError("invalid_json", f"the message is not valid JSON: {error}") from None
    if not isinstance(given, dict):
        raise ProtocolError("invalid_type", "the message must be a JSON object with a type")
    return given


def _no_client_event(name: object) -> str:
    """Return what is wrong with the type of an event that no client may send."""
    if not isinstance(name, str):
        return "must be the name of a client event"
    hint = _NO_CLIENT_EVENTS.get(name) or nearest(name, _CLIENT_EVENTS)
    return f"'{shortened(name)}' is not the name of a client event; {hint}"
