"""What can go wrong in decoding, by what the caller can do about it."""

from __future__ import annotations


class DSparkError(Exception):
    """Base of every error this package raises on purpose; its message is meant for the user."""


class CheckpointError(DSparkError):
    """A model cannot be loaded from where it was looked for: fix the source or choose another."""


class CheckpointNotFound(CheckpointError):
    """There is no folder, file or hub repository of that name, or it could not be fetched."""


class UnsupportedArchitecture(CheckpointError):
    """The weights are of a kind this decoder does not compute: choose a supported model."""


class MissingTensor(CheckpointError):
    """A weight that the configuration asks for is not in the checkpoint: fetch it again."""


class WrongShape(CheckpointError):
    """A weight does not have the shape that the configuration gives it: fetch both again."""


class DrafterMismatch(CheckpointError):
    """The drafter was trained for another target: load the two that belong together."""


class TokenizerError(DSparkError):
    """The checkpoint has no usable tokenizer or chat template for what was asked of it."""


class InvalidRequest(DSparkError, ValueError):
    """The request itself makes no sense, whatever the engine's state: correct it."""


class InvalidSampling(InvalidRequest):
    """A sampling setting is out of range: the message names the setting and its range."""


class PromptTooLong(InvalidRequest):
    """The prompt leaves no room for an answer in the context: shorten it or enlarge the context."""


class EngineFull(DSparkError):
    """As many requests wait as the engine may hold: try again once one has finished."""


class EngineClosed(DSparkError):
    """The engine was closed, before the request or while it ran: open another engine."""


class GenerationFailed(DSparkError):
    """Computing this request failed, and only this one: the cause is chained; submit it again."""


class RunMismatch(DSparkError):
    """A training run is continued with other settings or data than it was begun with: repeat
    those, or train in another folder."""


class NoTrainingData(DSparkError):
    """A stage of training found nothing to work on: run the stages before it, for more data."""
