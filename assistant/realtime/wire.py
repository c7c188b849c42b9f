"""The pieces that session objects, client events and responses are made of on the wire."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from audio.pcm import Encoding

JsonObject = dict[str, object]
"""A decoded JSON object; what its values are is for a model to find out."""

HIGHEST_OUTPUT_TOKENS = 4096
MOST_CHARACTERS = 65_536
"""Length of one message or of the instructions; no model here could read more."""

Text = Annotated[str, Field(max_length=MOST_CHARACTERS)]


class WireModel(BaseModel):
    """Base of everything a client may send: strict types, no unknown keys, immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


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


class PcmFormat(WireModel):
    """16-bit little-endian PCM, mono."""

    type: Literal["audio/pcm"] = "audio/pcm"
    rate: Literal[24_000] = 24_000


class MulawFormat(WireModel):
    """G.711 μ-law at 8 kHz."""

    type: Literal["audio/pcmu"]


class AlawFormat(WireModel):
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

    id: Annotated[str, Field(min_length=1, max_length=256)]


VoiceName = Annotated[str, Field(min_length=1, max_length=256)] | CustomVoice


def _tool_choice(value: object) -> object:
    if value in ("auto", "none"):
        return value
    raise unsupported("no tool can be called; leave it out, or send auto or none")


NO_TOOLS = "tools are not supported; leave the list out or empty"
ToolChoice = Annotated[Literal["auto", "none"], BeforeValidator(_tool_choice)]
NoTools = Annotated[list[object] | None, absent(NO_TOOLS)]
NoPrompt = Annotated[object, absent("stored prompts are not supported; send instructions")]
NoReasoning = Annotated[object, absent("the model does not reason; leave it out")]
