"""What the dialogue core answers with: work for the stages, and notices for the client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from assistant.events import Samples
from assistant.items import AnswerStep, Failure, Item, Message, Response
from assistant.settings import Settings
from assistant.timeline import Timeline
from audio.streaming import Kind

# -- work to be done ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Transcribe:
    """Recognise the input samples `[start_sample, end_sample)` of one utterance.

    Of the attempts at one turn that have not begun, only the newest is wanted.  The utterance may
    have begun earlier: the sound of old words is left behind.
    """

    turn_id: int
    attempt: int
    start_sample: int
    end_sample: int
    kind: Kind = "final"
    """`partial`: the user is speaking; `pause`: the user may have finished; `final`: has."""


@dataclass(frozen=True, slots=True)
class Hasten:
    """An attempt on its way has become more urgent than it was: it turns out to hold all words."""

    turn_id: int
    attempt: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class Prefill:
    """Compute what the next prompt begins with: these messages, the last of which may grow.

    A later one replaces it.  Nothing comes back.
    """

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class JudgeTurnEnd:
    """Say how likely the user has finished if these are the messages; `TurnEndJudged` answers.

    `attempt` is the one that the words come from; a later one replaces it.
    """

    turn_id: int
    attempt: int
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Generate:
    """Answer these messages."""

    generation: int
    messages: tuple[Message, ...]
    max_output_tokens: int | None
    speculative: bool = False


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


@dataclass(frozen=True, slots=True)
class Confirm:
    """What was begun speculatively for this generation is wanted now."""

    generation: int


Work = Transcribe | Hasten | Prefill | JudgeTurnEnd | Generate | Synthesise | StopWork | Confirm


# -- what the client is told ----------------------------------------------------------------


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
    """The user's turn is over: the last voiced sample is at `speech_end_ms` of all audio, and the
    utterance, its soft ending included, ends at `audio_end_ms`."""

    item_id: str
    audio_end_ms: int
    speech_end_ms: int


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
class TranscriptSoFar:
    """The words of a user item that is still being spoken; each one replaces the one before.

    `stable` only ever grows and will hardly change any more, `tentative` may.
    """

    item_id: str
    stable: str
    tentative: str


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
    steps: tuple[AnswerStep, ...]
    """How the language model came to the answer."""
    speculation: Literal["none", "hit", "miss"]
    """Whether the answer was one begun before the turn's end was confirmed."""
    wasted_tokens: int
    """Tokens of answers begun for words that the user then added to."""

    @property
    def drafted(self) -> int:
        """How many tokens of the answer were drafted …"""
        return sum(len(step.draft) for step in self.steps)

    @property
    def accepted(self) -> int:
        """… and how many of those stood."""
        return sum(step.accepted for step in self.steps)


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
    | TranscriptSoFar
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
