"""The one table from what went wrong to the error event that the client receives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_core.core_schema import ErrorType as LibraryError

from assistant.effects import Refused
from assistant.errors import AssistantError, AudioBufferFull
from assistant.realtime.wire import shortened
from audio.errors import AudioError

ErrorType = Literal["invalid_request_error", "server_error"]


class ProtocolError(AssistantError):
    """A client event was refused and nothing changed: correct what `param` names, send it again.

    `code` is stable and meant for programs, the message for people.  `event_id` is the client's
    own name for the event, if it gave one.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        event_id: str | None = None,
        error_type: ErrorType = "invalid_request_error",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.event_id = event_id
        self.error_type = error_type

    def as_wire(self) -> dict[str, str | None]:
        """Return the `error` object of an error event."""
        return {
            "type": self.error_type,
            "code": self.code,
            "message": self.message,
            "param": self.param,
            "event_id": self.event_id,
        }


class ConnectionEnded(AssistantError):
    """The connection is over: close the transport with `code` (RFC 6455) and `reason`."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"the connection ended: {reason}")
        self.code = code
        self.reason = reason


CLIENT_TOO_SLOW = (4008, "client_too_slow")
IDLE = (1000, "idle_timeout")
CLIENT_LEFT = (1000, "client_left")
SESSION_CLOSED = (1000, "session_closed")
SHUTTING_DOWN = (1001, "server_shutdown")
INTERNAL_ERROR = (1011, "internal_error")
TRY_LATER = 1013

# What the other packages raise → (type, code).  The first match counts: special before general.
_EXCEPTIONS: tuple[tuple[type[Exception], ErrorType, str], ...] = (
    (AudioBufferFull, "invalid_request_error", "input_audio_buffer_full"),
    (AudioError, "invalid_request_error", "invalid_audio"),
    (AssistantError, "server_error", "server_error"),
)

# Kinds of mistake → code; every other kind is a value that is not allowed.
_CODES = {
    "missing": "missing_required_parameter",
    "unknown_parameter": "unknown_parameter",
    "unsupported_parameter": "unsupported_parameter",
    "union_tag_not_found": "missing_required_parameter",
}

# pydantic's kinds of mistake → our words, filled in from the mistake's context.  What our own
# validators say is in our words already.
_WORDS = {
    "missing": "is required",
    "union_tag_not_found": "is required",
    "union_tag_invalid": "must be one of {expected_tags}, not '{tag}'",
    "literal_error": "must be {expected}",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "string_too_short": "must not be empty",
    "string_too_long": "must not be longer than {max_length} characters",
    "too_short": "must not be empty",
    "too_long": "must not have more entries than {max_length}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
}
_OTHER_WORDS = "has a value that is not allowed here"
_FOREIGN_WORDS = frozenset(get_args(LibraryError)) - _WORDS.keys()


def from_exception(error: AudioError | AssistantError) -> ProtocolError:
    """Return what the client is told about an error of this or the `audio` package."""
    if isinstance(error, ProtocolError):
        return error
    for kind, error_type, code in _EXCEPTIONS:
        if isinstance(error, kind):
            return ProtocolError(code, str(error), error_type=error_type)
    raise TypeError(f"{type(error).__name__} is not in the table")


def from_refusal(refusal: Refused) -> ProtocolError:
    """Return what the client is told when the core refuses a command."""
    return ProtocolError(
        refusal.code, refusal.message, param=refusal.param, event_id=refusal.command_id
    )


def from_validation(
    error: ValidationError, given: object, root: Sequence[str] = ()
) -> ProtocolError:
    """Return the first mistake in `given`, which lies at the path `root` of the client event."""
    mistake = error.errors(include_url=False)[0]
    param = ".".join([*root, *_path(mistake, given)]) or None
    words = _words(mistake)
    separator = " " if words.startswith(("is ", "must ", "has ")) else ": "
    return ProtocolError(_code(mistake), f"{param or 'the JSON'}{separator}{words}", param=param)


def _code(mistake: ErrorDetails) -> str:
    kind = mistake["type"]
    if kind.endswith("_type"):
        return "invalid_type"
    return _CODES.get(kind, "invalid_value")


def _words(mistake: ErrorDetails) -> str:
    """Return what is wrong, without the words of the library that found it."""
    kind = mistake["type"]
    if kind in _WORDS:
        context = mistake.get("ctx", {})
        return _WORDS[kind].format_map({key: shortened(str(context[key])) for key in context})
    return _OTHER_WORDS if kind in _FOREIGN_WORDS else mistake["msg"]


def _path(mistake: ErrorDetails, given: Any) -> list[str]:
    """Return the mistake's place in the client's own terms.

    pydantic names the alternatives of a union in its paths; only what is really in `given`, or is
    missing from it, means something to the client.  `given` is decoded JSON, hence `Any`.
    """
    location = list(mistake["loc"])
    named = [str(location.pop())] if mistake["type"] == "missing" else _named(mistake)
    path: list[str] = []
    for step in location:
        try:
            given = given[step]
        except (KeyError, IndexError, TypeError):
            continue
        path.append(str(step))
    return path + named


def _named(mistake: ErrorDetails) -> list[str]:
    """Return the key in the object at the mistake's place that the mistake is about, if it is."""
    context = mistake.get("ctx", {})
    if mistake["type"] == "unknown_parameter":
        return [str(context["key"])]
    if mistake["type"].startswith("union_tag"):
        return [str(context["discriminator"]).strip("'")]
    return []
