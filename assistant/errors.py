"""What can go wrong in the assistant, by what the caller can do about it."""

from __future__ import annotations


class AssistantError(Exception):
    """Base of every error this package raises on purpose; its message is meant for the user."""


class AudioBufferFull(AssistantError):
    """More audio was appended than one utterance may hold: commit or clear the buffer."""


class ConfigError(AssistantError):
    """The configuration is wrong; the message names the file or variable, the key, and the fix."""


class ModelMissing(AssistantError):
    """A model is not on this machine: pull it, or name another one."""


class UnknownModel(AssistantError):
    """A model's name means nothing, or names a model of another kind: correct the name."""


class ModelPullFailed(AssistantError):
    """A model could not be fetched, and nothing was installed: mend the cause, pull it again."""


class ModelDamaged(AssistantError):
    """A model's file is not the one that was published: pull it again."""
