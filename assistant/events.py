"""The dialogue core's vocabulary: what it is fed, and what it answers with.

Everything here is a frozen value without behaviour.  Audio positions are absolute sample
counts: *input samples* at 16 kHz since the session began, *output samples* at the voice's own
rate since the response began.  Every result of slow work carries the `generation` it was asked
for under; the core drops results of an older one in a single place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from assistant.timeline import Timeline

Samples = NDArray[np.float32]
INPUT_RATE_HZ = 16_000


# -- settings: what a client may change while the session runs ------------------------------


@dataclass(frozen=True, slots=True)
class TurnDetection:
    """How the end of the user's turn is found without the client saying so."""

    threshold: float = 0.5
    prefix_padding_ms: int = 500
    silence_ms: int = 500
    create_response: bool = True
    interrupt_response: bool = True
    idle_timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """The effective settings of one session."""

    instructions: str = ""
    modality: Literal["audio", "text"] = "audio"
    turn_detection: TurnDetection | None = field(default_factory=TurnDetection)
    """`None` is manual mode: the client commits the audio and asks for responses."""
    max_output_tokens: int | None = None
    """`None` leaves the model's configured limit."""
    speed: float = 1.0
    playback_lead_ms: int | None = 400
    """How far ahead of the playing client audio is sent; `None` sends it as it is made."""
    playback_acknowledged: bool = False
    """The client sends `Played`; without it, playback is assumed to run from the first frame."""


# -- items: what the conversation is made of ------------------------------------------------


class Role(StrEnum):
    """Who an item of the conversation comes from."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


class ItemStatus(StrEnum):
    """Whether an item is whole."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"


@dataclass(frozen=True, slots=True)
class Item:
    """One message of the conversation, as it stands now.

    `text` is what the user said or typed, or what the assistant planned, whole; `heard` is the
    part of an assistant's `text` that reached the user (the same as `text` unless cut).
    `text` is `None` while a spoken item's transcript is pending.
    """

    item_id: str
    role: Role
    text: str | None
    spoken: bool
    status: ItemStatus
    heard: str | None = None


class ResponseStatus(StrEnum):
    """How a response stands or ended."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    INCOMPLETE = "incomplete"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one response."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Response:
    """One answer, as it stands now."""

    response_id: str
    item_id: str
    modality: Literal["audio", "text"]
    status: ResponseStatus = ResponseStatus.IN_PROGRESS
    reason: Literal["turn_detected", "client_cancelled", "max_output_tokens"] | None = None
    error: Failure | None = None
    usage: Usage = Usage()
    max_output_tokens: int | None = None
    metadata: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a stage failed, in words for the user. `code` is stable, `message` says what to do."""

    code: str
    message: str


# -- in: from the client --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Something the client asks for; `command_id` comes back in a refusal."""

    command_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSettings(Command):
    """Replace the session's settings by these, already merged and checked."""

    settings: Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitAudio(Command):
    """The user's turn ends here: everything buffered up to `end_sample` is an utterance."""

    end_sample: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearAudio(Command):
    """Forget the audio buffered up to `end_sample`."""

    end_sample: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateItem(Command):
    """Put a written message into the conversation.

    `previous_item_id`: `None` appends, `"root"` puts it first, an id puts it after that item.
    """

    role: Role
    text: str
    item_id: str | None = None
    previous_item_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteItem(Command):
    """Take an item out of the conversation."""

    item_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrieveItem(Command):
    """Ask for an item as it stands."""

    item_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateItem(Command):
    """The client stopped playing an answer at `audio_end_ms` of its audio (clamped)."""

    item_id: str
    audio_end_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateResponse(Command):
    """Answer now, from the conversation as it is; `None` means as the session says."""

    instructions: str | None = None
    modality: Literal["audio", "text"] | None = None
    max_output_tokens: int | None = None
    metadata: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelResponse(Command):
    """Stop the answer being made; `response_id` must be the active one if it is given."""

    response_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearPlayback(Command):
    """Stop what is playing: cancels an active answer, cuts a finished one that still plays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played(Command):
    """The client's loudspeaker has reached `position_ms` of the response's audio (absolute)."""

    response_id: str
    position_ms: float


# -- in: from the stages --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AudioAnalysed:
    """One window of microphone audio, with the probability that it holds speech."""

    start_sample: int
    end_sample: int
    probability: float


@dataclass(frozen=True, slots=True)
class TranscriptReady:
    """An utterance was recognised. `rejection` says why it holds no words, and `text` is empty."""

    turn_id: int
    text: str
    rejection: str | None = None


@dataclass(frozen=True, slots=True)
class TranscriptFailed:
    """An utterance could not be recognised."""

    turn_id: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class TextGenerated:
    """Verified tokens of the answer, as text. `drafted`/`accepted` count speculated tokens."""

    generation: int
    text: str
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class TextFinished:
    """The answer's text is whole, or reached its limit (`length`)."""

    generation: int
    reason: Literal["stop", "length"]
    usage: Usage = Usage()


@dataclass(frozen=True, slots=True)
class TextFailed:
    """The answer could not be generated any further."""

    generation: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class WordTime:
    """A spoken word: characters `[start_char, end_char)` of its chunk, ending at `end_sample`
    of the chunk's audio."""

    start_char: int
    end_char: int
    end_sample: int


@dataclass(frozen=True, slots=True)
class ChunkPlanned:
    """A chunk's audio is laid out: its length and word times are known, no sound yet."""

    generation: int
    chunk: int
    words: tuple[WordTime, ...]
    sample_count: int


@dataclass(frozen=True, slots=True, eq=False)
class AudioSynthesised:
    """The next samples of a chunk; `last` ends the chunk."""

    generation: int
    chunk: int
    samples: Samples
    last: bool


@dataclass(frozen=True, slots=True)
class ChunkFailed:
    """A chunk could not be spoken; it is skipped and the answer goes on."""

    generation: int
    chunk: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing happened until the moment that `Session.deadline` named."""


Event = (
    Command
    | AudioAnalysed
    | TranscriptReady
    | TranscriptFailed
    | TextGenerated
    | TextFinished
    | TextFailed
    | ChunkPlanned
    | AudioSynthesised
    | ChunkFailed
    | TimePassed
)


# -- out: work to be done -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the language model's prompt."""

    role: Role
    text: str


@dataclass(frozen=True, slots=True)
class Transcribe:
    """Recognise the input samples `[start_sample, end_sample)` as one utterance."""

    turn_id: int
    start_sample: int
    end_sample: int


@dataclass(frozen=True, slots=True)
class Generate:
    """Answer these messages."""

    generation: int
    messages: tuple[Message, ...]
    max_output_tokens: int | None


@dataclass(frozen=True, slots=True)
class Synthesise:
    """Speak this chunk of the answer."""

    generation: int
    chunk: int
    text: str
    speed: float


@dataclass(frozen=True, slots=True)
class StopWork:
    """Cancel text generation and synthesis of this generation and every older one."""

    generation: int


Work = Transcribe | Generate | Synthesise | StopWork


# -- out: what the client is told -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """The session runs with these settings now."""

    settings: Settings
    command_id: str | None = None


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """The user began to speak; `item_id` is the item the utterance will become."""

    item_id: str
    audio_start_ms: int


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    """The user's turn is over."""

    item_id: str
    audio_end_ms: int


@dataclass(frozen=True, slots=True)
class AudioCommitted:
    """The buffered audio became the user item `item_id`."""

    item_id: str
    previous_item_id: str | None


@dataclass(frozen=True, slots=True)
class AudioCleared:
    """The buffered audio was forgotten."""


@dataclass(frozen=True, slots=True)
class UtteranceDiscarded:
    """A sound that began like speech held no words; nothing enters the conversation."""

    item_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class IdleTimeout:
    """The user said nothing for the idle timeout; a response follows."""

    item_id: str
    audio_start_ms: int
    audio_end_ms: int


@dataclass(frozen=True, slots=True)
class ItemAdded:
    """A user or system item entered the conversation."""

    item: Item
    previous_item_id: str | None


@dataclass(frozen=True, slots=True)
class ItemDone:
    """A user or system item is whole (the transcript of a spoken one may still follow)."""

    item: Item
    previous_item_id: str | None


@dataclass(frozen=True, slots=True)
class ItemRetrieved:
    """The item asked for, as it stands."""

    item: Item


@dataclass(frozen=True, slots=True)
class ItemDeleted:
    """The item is gone."""

    item_id: str


@dataclass(frozen=True, slots=True)
class ItemTruncated:
    """An answer was cut to what was heard."""

    item: Item
    audio_end_ms: int


@dataclass(frozen=True, slots=True)
class TranscriptCompleted:
    """The words of a spoken user item. `audio_seconds` is how long the utterance was."""

    item_id: str
    text: str
    audio_seconds: float


@dataclass(frozen=True, slots=True)
class TranscriptionFailed:
    """A spoken user item has no transcript."""

    item_id: str
    failure: Failure


@dataclass(frozen=True, slots=True)
class ResponseStarted:
    """An answer began; its (empty) assistant item follows `previous_item_id`."""

    response: Response
    previous_item_id: str | None


@dataclass(frozen=True, slots=True)
class ResponseText:
    """More of the answer's text, as the model wrote it."""

    response: Response
    delta: str


@dataclass(frozen=True, slots=True, eq=False)
class ResponseAudio:
    """More of the answer's audio, to be played from output sample `start_sample` on.

    Frames of a generation older than the last `PlaybackCleared` must never leave.
    """

    response: Response
    generation: int
    start_sample: int
    samples: Samples


@dataclass(frozen=True, slots=True)
class PlaybackCleared:
    """Frames of `generation` and older are void: unsent ones are dropped, the player flushes."""

    response_id: str
    generation: int


@dataclass(frozen=True, slots=True)
class ResponseFinished:
    """An answer ended; `item` is its assistant item as it stands (`heard` may still be cut)."""

    response: Response
    item: Item


@dataclass(frozen=True, slots=True)
class TurnFinished:
    """A turn is over: where its time went, and what the user heard of it."""

    turn_id: int
    outcome: Literal["done", "interrupted", "failed", "discarded"]
    timeline: Timeline
    response_id: str | None
    transcript: str | None
    heard: str | None
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class StageFailed:
    """A stage failed in a way that the turn survives (for the log and the metrics)."""

    stage: Literal["asr", "llm", "tts"]
    failure: Failure


@dataclass(frozen=True, slots=True)
class Refused:
    """A command could not be carried out; nothing changed."""

    command_id: str | None
    code: str
    message: str
    param: str | None = None


Notice = (
    SettingsChanged
    | SpeechStarted
    | SpeechStopped
    | AudioCommitted
    | AudioCleared
    | UtteranceDiscarded
    | IdleTimeout
    | ItemAdded
    | ItemDone
    | ItemRetrieved
    | ItemDeleted
    | ItemTruncated
    | TranscriptCompleted
    | TranscriptionFailed
    | ResponseStarted
    | ResponseText
    | ResponseAudio
    | PlaybackCleared
    | ResponseFinished
    | TurnFinished
    | StageFailed
    | Refused
)

Effect = Work | Notice
