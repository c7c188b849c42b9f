"""The pieces that session objects, client events and responses are made of on the wire."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Annotated, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)
from pydantic_core import PydanticCustomError

from audio.pcm import Encoding

JsonObject = dict[str, object]
"""A decoded JSON object; what its values are is for a model to find out."""

HIGHEST_OUTPUT_TOKENS = 4096
PCM_RATE_HZ: Literal[24_000] = 24_000
MOST_CHARACTERS = 65_536
"""Length of one message or of the instructions; no model here could read more."""
LONGEST_NAME = 256
_LIKENESS = 0.8
"""Of two names (difflib's ratio), above which one may be a slip of the other."""

Text = Annotated[str, Field(max_length=MOST_CHARACTERS)]


class WireModel(BaseModel):
    """Base of everything a client may send: strict types, no unknown keys, immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    ELSEWHERE: ClassVar[dict[str, str]] = {}
    """Keys that are looked for here, and what to do instead; such as the protocol's beta had."""

    @model_validator(mode="before")
    @classmethod
    def _keys_are_known(cls, given: object) -> object:
        """Refuse an unknown key with the way to the right one, which pydantic does not know."""
        for key in given if isinstance(given, dict) else ():
            if key not in cls.model_fields:
                hint = cls.ELSEWHERE.get(key) or nearest(str(key), cls.model_fields)
                raise PydanticCustomError(
                    "unknown_parameter",
                    "{hint}",
                    {"key": shortened(str(key)), "hint": f"is not a known parameter; {hint}"},
                )
        return given


def shortened(name: str) -> str:
    """Return a name as it is repeated to the client, who may have sent megabytes."""
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}…"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint at what an unknown name may have been meant to be."""
    names = sorted(known)
    close = get_close_matches(name[:LONGEST_NAME], names, n=1, cutoff=_LIKENESS)
    return f"did you mean {close[0]}?" if close else f"known here: {', '.join(names)}"


def unsupported(reason: str) -> PydanticCustomError:
    """Return the error that refuses something the protocol knows and this server does not do."""
    return PydanticCustomError("unsupported_parameter", "{reason}", {"reason": reason})


def absent(reason: str) -> AfterValidator:
    """Accept only "none of it" (`null`, empty), because `reason`."""

    def check(value: object) -> object:
        if value in (None, [], {}):
            return value
        raise unsupported(reason)

    return AfterValidator(check)


def _only_rate(value: object) -> object:
    if value == PCM_RATE_HZ:
        return value
    raise PydanticCustomError(
        "rate",
        "must be {rate_hz}, the only rate of PCM here: resample the sound to it",
        {"rate_hz": PCM_RATE_HZ},
    )


class PcmFormat(WireModel):
    """16-bit little-endian PCM, mono."""

    type: Literal["audio/pcm"] = "audio/pcm"
    rate: Annotated[Literal[24_000], BeforeValidator(_only_rate)] = PCM_RATE_HZ


class _G711Format(WireModel):
    """One byte a sample, at 8 kHz."""

    ELSEWHERE: ClassVar[dict[str, str]] = {"rate": "leave it out: G.711 is always at 8000"}


class MulawFormat(_G711Format):
    """G.711 μ-law at 8 kHz."""

    type: Literal["audio/pcmu"]


class AlawFormat(_G711Format):
    """G.711 A-law at 8 kHz."""

    type: Literal["audio/pcma"]


AudioFormat = Annotated[PcmFormat | MulawFormat | AlawFormat, Field(discriminator="type")]


def encoding(audio_format: PcmFormat | MulawFormat | AlawFormat) -> tuple[Encoding, int]:
    """Return how samples are written in this format, and their rate in Hz."""
    match audio_format:
        case PcmFormat():
            return Encoding.PCM16, audio_format.rate
        case MulawFormat():
            return Encoding.MULAW, 8_000
        case AlawFormat():
            return Encoding.ALAW, 8_000


def _token_limit(value: object) -> object:
    if value == "inf":
        return value
    if type(value) is int and 1 <= value <= HIGHEST_OUTPUT_TOKENS:  # a bool is not a number here
        return value
    raise PydanticCustomError(
        "token_limit",
        'must be a whole number from 1 to {highest}, or "inf"',
        {"highest": HIGHEST_OUTPUT_TOKENS},
    )


TokenLimit = Annotated[int | Literal["inf"], BeforeValidator(_token_limit)]


def _one_modality(value: list[str]) -> list[str]:
    if len(value) == 1:
        return value
    raise PydanticCustomError(
        "modalities", 'must be ["audio"] (which comes with its transcript) or ["text"]'
    )


Modalities = Annotated[list[Literal["audio", "text"]], AfterValidator(_one_modality)]


class CustomVoice(WireModel):
    """A voice named by an object."""

    id: Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]


def _named(value: object) -> object:
    name = value.get("id") if isinstance(value, dict) and len(value) == 1 else value
    if isinstance(name, str) and 1 <= len(name) <= LONGEST_NAME:
        return value
    raise PydanticCustomError(
        "voice", "must be the name of a voice, or an object with the name as its id"
    )


VoiceName = Annotated[str | CustomVoice, BeforeValidator(_named)]


def _tool_choice(value: object) -> object:
    if value in ("auto", "none"):
        return value
    raise unsupported("no tool can be called; leave it out, or send auto or none")


NO_TRANSCRIPTION_SESSIONS = (
    "sessions that only transcribe are not offered: open a realtime session, where every turn is "
    "transcribed, and set create_response to false in its audio.input.turn_detection"
)
NO_TOOLS = "tools are not supported; leave the list out or empty"
ToolChoice = Annotated[Literal["auto", "none"], BeforeValidator(_tool_choice)]
NoTools = Annotated[list[object] | None, absent(NO_TOOLS)]
NoPrompt = Annotated[object, absent("stored prompts are not supported; send instructions")]
NoReasoning = Annotated[object, absent("the model does not reason; leave it out")]
