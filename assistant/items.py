"""What a conversation is made of: items, answers, and what became of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


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
class DraftToken:
    """A drafted token, as text, and what became of it; `unverified`: the step left it out."""

    text: str
    fate: Literal["accepted", "rejected", "unverified"]


@dataclass(frozen=True, slots=True)
class AnswerStep:
    """What one step of the language model did for an answer.

    `committed` is what the answer grew by, token by token, as text: the drafted ones that were
    accepted, then the model's own.
    """

    committed: tuple[str, ...]
    draft: tuple[DraftToken, ...] = ()

    @property
    def accepted(self) -> int:
        """How many of the drafted tokens stood."""
        return sum(token.fate == "accepted" for token in self.draft)


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


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the language model's prompt."""

    role: Role
    text: str
