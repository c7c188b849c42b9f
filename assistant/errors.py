"""What can go wrong in the assistant, by what the caller can do about it."""

from __future__ import annotations


class AssistantError(Exception):
    """Base of every error this package raises on purpose; its message is meant for the user."""


class AudioBufferFull(AssistantError):
    """More audio was appended than one utterance may hold: commit or clear the buffer."""


class UsageError(AssistantError):
    """What was asked for cannot be meant: correct it as the message says."""


class ConfigError(UsageError):
    """The configuration is wrong; the message names the file or variable, the key, and the fix."""


class ManifestError(UsageError):
    """A line of a manifest of recordings is wrong; the message has its number, and what is."""


class ModelMissing(AssistantError):
    """A model is not on this machine: pull it, or name another one."""


class UnknownModel(UsageError):
    """A model's name means nothing, or names a model of another kind: correct the name."""


class ModelPullFailed(AssistantError):
    """A model could not be fetched, and nothing was installed: mend the cause, pull it again."""


class ModelDamaged(AssistantError):
    """A model's file is not the one that was published: pull it again."""


class DialogueError(AssistantError):
    """Base of what can go wrong between a client and the assistant it talks to."""


class ServerUnreachable(DialogueError):
    """Nothing answers at the address: start the server, or correct the address."""


class AccessDenied(DialogueError):
    """The server asks for a key, or for another one: pass `api_key`."""


class ServerNotReady(DialogueError):
    """The server still loads its models, or serves as many sessions as it may: try again later."""


class DialogueEnded(DialogueError):
    """The connection is gone, and the conversation with it: open a new dialogue."""


class RequestRefused(DialogueError):
    """The server did not do what was asked; the message says why, the dialogue goes on."""


class AnswerFailed(DialogueError):
    """A stage failed while the answer was made; the dialogue goes on, so ask again."""


class AnswerTimeout(DialogueError):
    """No whole answer came in time; it was cancelled, and the dialogue goes on."""


class EventsMissed(DialogueError):
    """An iterator over a dialogue's events was read too slowly: read on with a new one."""


class AudioDeviceError(AssistantError):
    """There is no usable microphone or loudspeaker, or no library that drives them."""


class AddressUnavailable(AssistantError):
    """The server cannot listen at its address: free the port, or configure another one."""
