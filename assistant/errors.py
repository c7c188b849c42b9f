"""What can go wrong in the assistant, by what the caller can do about it."""

from __future__ import annotations


class AssistantError(Exception):
    """Base of every error this package raises on purpose; its message is meant for the user."""


class AudioBufferFull(AssistantError):
    """More audio was appended than one utterance may hold: commit or clear the buffer."""
