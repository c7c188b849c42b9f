"""What the dialogue core is fed: commands of the client, and results of the stages.

Frozen values without behaviour.  Audio positions are absolute sample counts: *input samples* at
16 kHz since the session began, *output samples* at the voice's own rate since the answer began.
Every result of slow work carries the turn or the `generation` it was asked for under; the core
drops results of older ones in a single place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from assistant.items import AnswerStep, Failure, Role, Usage
from assistant.settings import Settings
from audio.streaming import Segment

Samples = NDArray[np.float32]
INPUT_RATE_HZ = 16_000


# -- from the client ------------------------------------------------------------------------


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


# -- from the stages ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AudioAnalysed:
    """One window of microphone audio, with the probability that it holds speech."""

    start_sample: int
    end_sample: int
    probability: float


@dataclass(frozen=True, slots=True)
class TranscriptReady:
    """Sound was recognised. `rejection` says why it holds no words, and `text` is empty."""

    turn_id: int
    attempt: int
    text: str
    rejection: str | None = None
    segments: tuple[Segment, ...] = ()
    """The text in pieces, as far as the recogniser said where they end."""


@dataclass(frozen=True, slots=True)
class TranscriptFailed:
    """An utterance could not be recognised."""

    turn_id: int
    attempt: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class TurnEndJudged:
    """How likely the user has finished, by the words of this attempt, from 0 to 1.

    `None`: it cannot be said.
    """

    turn_id: int
    attempt: int
    probability: float | None


@dataclass(frozen=True, slots=True)
class TextGenerated:
    """Verified tokens of the answer, as text, and the step of the model that gave them."""

    generation: int
    text: str
    tokens: int = 0
    step: AnswerStep | None = None


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
    | TurnEndJudged
    | TextGenerated
    | TextFinished
    | TextFailed
    | ChunkPlanned
    | AudioSynthesised
    | ChunkFailed
    | TimePassed
)
