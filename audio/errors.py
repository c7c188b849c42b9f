"""What can go wrong with sound, one class for each thing a caller can do about it."""

from __future__ import annotations

_MOST_CHARACTERS = 200


def brief(error: Exception) -> str:
    """Return the first line of what a library says of its failure, for a message of ours."""
    first, *_ = str(error).strip().splitlines() or [type(error).__name__]
    return first if len(first) <= _MOST_CHARACTERS else f"{first[:_MOST_CHARACTERS]}…"


class AudioError(Exception):
    """Any failure of this package; catch it to tell sound trouble from everything else."""


class AudioFileError(AudioError):
    """A sound file is missing, damaged or of an unknown format; name another file."""


class SampleRateError(AudioError):
    """A sample rate is not one this package can work at; convert the sound or correct the rate."""


class ModelFolderError(AudioError):
    """A speech model is missing or incomplete; install it or name another."""


class ModelLanguageError(AudioError):
    """A model does not know the language it was configured for; change one of the two."""


class VoiceModelError(AudioError):
    """A voice is missing, damaged or of a kind that cannot be streamed; install it or name
    another."""


class DeviceUnavailableError(AudioError):
    """The device a model was meant for is not there; configure another, or install its runtime."""


class SpeechSynthesisFailed(AudioError):
    """One text could not be spoken; leave it out and go on with the next."""
