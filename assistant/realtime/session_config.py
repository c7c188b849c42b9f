"""The session object of the wire: checked, merged as a whole or not at all, turned into `Settings`.

The rule for what the protocol knows and this server does not do: where the client would miss the
effect (tools, stored prompts, log probabilities, another language) the update is refused; where
it would not (another voice's or model's name, noise reduction, traces, recognition hints) it is
accepted, and the effective session says what is really in force.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError

from assistant.realtime.errors import ProtocolError, from_validation
from assistant.realtime.wire import (
    NO_TRANSCRIPTION_SESSIONS,
    AudioFormat,
    JsonObject,
    Modalities,
    NoPrompt,
    NoReasoning,
    NoTools,
    PcmFormat,
    Text,
    TokenLimit,
    ToolChoice,
    VoiceName,
    WireModel,
    absent,
    unsupported,
)
from assistant.settings import CAUTION, Eagerness, Settings, TurnDetection
from audio.endpoint import SemanticEndpointer

_FORMATS = 'an object such as {"type": "audio/pcm"} (or audio/pcmu, audio/pcma)'
Milliseconds = Annotated[int, Field(ge=0, le=10_000)]


class ServerVad(WireModel):
    """The turn ends after a fixed silence."""

    type: Literal["server_vad"] = "server_vad"
    threshold: float = Field(default=0.5, ge=0, le=1)
    prefix_padding_ms: Milliseconds = 300
    silence_duration_ms: Milliseconds = 500
    create_response: bool = True
    interrupt_response: bool = True
    idle_timeout_ms: Annotated[int, Field(ge=5_000, le=30_000)] | None = None


class SemanticVad(WireModel):
    """The turn ends by what was said; `eagerness` says how soon, auto as the server is set."""

    type: Literal["semantic_vad"]
    eagerness: Eagerness = "auto"
    create_response: bool = True
    interrupt_response: bool = True


class Transcription(WireModel):
    """What the client wishes for the transcript of its audio; only the language is binding."""

    model: str | None = None
    language: str | None = None
    languages: list[str] | None = None
    prompt: str | None = None
    keywords: list[str] | None = None
    delay: Literal["minimal", "low", "medium", "high", "xhigh"] | None = None


class NoiseReduction(WireModel):
    """Accepted without effect."""

    type: Literal["near_field", "far_field"] | None = None
    strength: float | None = None


class AudioInput(WireModel):
    """How the client's audio arrives and is understood."""

    format: AudioFormat = PcmFormat()
    turn_detection: Annotated[ServerVad | SemanticVad, Field(discriminator="type")] | None
    transcription: Transcription | None = Transcription()
    noise_reduction: NoiseReduction | None = None


class AudioOutput(WireModel):
    """How answers sound."""

    format: AudioFormat = PcmFormat()
    voice: VoiceName | None = None
    speed: float = Field(default=1.0, ge=0.25, le=1.5)


class Audio(WireModel):
    """Both directions of sound."""

    input: AudioInput
    output: AudioOutput = AudioOutput()


class Extension(WireModel):
    """What this server offers beyond the protocol, to clients that ask for it."""

    events: bool = False
    """Send the `x.` events, and where in the answer each piece of audio belongs."""
    acknowledge_playback: bool = False
    """The client reports what its loudspeaker has played, with `x.playback`."""
    playback_lead_ms: Annotated[int, Field(ge=50, le=10_000)] | None
    """How far ahead of the loudspeaker audio is sent; null sends it as it is made."""


def _only_auto(value: object) -> object:
    if value == "auto":
        return value
    raise unsupported("the conversation is always shortened as needed; leave it out or send auto")


def _only_realtime(value: object) -> object:
    if value == "transcription":
        raise unsupported(NO_TRANSCRIPTION_SESSIONS)
    return value


class SessionConfig(WireModel):
    """A whole session object, as far as a client may send it."""

    ELSEWHERE: ClassVar[dict[str, str]] = {
        "modalities": "use output_modalities, with one entry: audio or text",
        "voice": "use audio.output.voice",
        "speed": "use audio.output.speed",
        "turn_detection": "use audio.input.turn_detection",
        "input_audio_format": f"use audio.input.format, {_FORMATS}",
        "output_audio_format": f"use audio.output.format, {_FORMATS}",
        "input_audio_transcription": "use audio.input.transcription",
        "input_audio_noise_reduction": "use audio.input.noise_reduction",
        "max_response_output_tokens": "use max_output_tokens",
        "temperature": "it is set in the server's configuration",
        "client_secret": "ask for one with POST /v1/realtime/client_secrets",
    }
    """The keys of the protocol's beta."""

    type: Annotated[Literal["realtime"], BeforeValidator(_only_realtime)] = "realtime"
    model: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    instructions: Text
    output_modalities: Modalities
    audio: Audio
    max_output_tokens: TokenLimit
    tools: NoTools = None
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool | None = None
    truncation: Annotated[Literal["auto"], BeforeValidator(_only_auto)] = "auto"
    include: Annotated[
        list[object] | None, absent("log probabilities are not offered; leave it out or empty")
    ] = None
    prompt: NoPrompt = None
    reasoning: NoReasoning = None
    tracing: object = None
    x: Extension | None = None


@dataclass(frozen=True, slots=True)
class Installed:
    """The models behind every session, by the names the effective session reports."""

    model: str
    transcriber: str
    language: str
    voice: str


@dataclass(frozen=True, slots=True)
class WireSession:
    """A session's configuration as the client sees it; `updated` makes the next one."""

    config: SessionConfig
    base: Settings
    """What holds where the client says nothing."""
    installed: Installed

    @classmethod
    def initial(cls, base: Settings, installed: Installed) -> Self:
        """Return the session of a client that has asked for nothing yet."""
        config = SessionConfig.model_validate({**_defaults(base), "x": None})
        return cls(config, base, installed)

    def updated(self, patch: JsonObject) -> WireSession:
        """Return this session with `patch` merged in.

        Raises `ProtocolError` for the first mistake; nothing is taken over then.
        """
        default = _defaults(self.base, _named_detection(patch))
        merged = _merged(self.config.model_dump(), patch, default)
        try:
            config = SessionConfig.model_validate(merged)
        except ValidationError as error:
            raise from_validation(error, merged, root=["session"]) from None
        self._check_language(config.audio.input.transcription)
        return replace(self, config=config)

    @property
    def settings(self) -> Settings:
        """What the core is to run with."""
        config, x = self.config, self.config.x
        limit = config.max_output_tokens
        return replace(
            self.base,
            instructions=config.instructions,
            modality=config.output_modalities[0],
            turn_detection=self._turn_detection(),
            max_output_tokens=None if limit == "inf" else limit,
            speed=config.audio.output.speed,
            playback_lead_ms=x.playback_lead_ms if x else self.base.playback_lead_ms,
            playback_acknowledged=bool(x and x.acknowledge_playback),
        )

    def describe(self) -> JsonObject:
        """Return the effective session object: what is in force, whatever was wished for."""
        config = self.config
        transcribes = config.audio.input.transcription is not None
        session: JsonObject = {
            "type": "realtime",
            "object": "realtime.session",
            "model": self.installed.model,
            "instructions": config.instructions,
            "output_modalities": list(config.output_modalities),
            "audio": {
                "input": {
                    "format": config.audio.input.format.model_dump(),
                    "transcription": {
                        "model": self.installed.transcriber,
                        "language": self.installed.language,
                    }
                    if transcribes
                    else None,
                    "noise_reduction": None,
                    "turn_detection": _dump(config.audio.input.turn_detection),
                },
                "output": {
                    "format": config.audio.output.format.model_dump(),
                    "voice": self.installed.voice,
                    "speed": config.audio.output.speed,
                },
            },
            "max_output_tokens": config.max_output_tokens,
            "tools": [],
            "tool_choice": config.tool_choice,
            "truncation": config.truncation,
            "include": None,
            "prompt": None,
            "tracing": None,
        }
        if config.x is not None:
            session["x"] = config.x.model_dump()
        return session

    def _turn_detection(self) -> TurnDetection | None:
        wished = self.config.audio.input.turn_detection
        base = self.base.turn_detection or TurnDetection()
        match wished:
            case None:
                return None
            case ServerVad():
                return replace(
                    base,
                    threshold=wished.threshold,
                    prefix_padding_ms=wished.prefix_padding_ms,
                    silence_ms=wished.silence_duration_ms,
                    semantic=None,
                    create_response=wished.create_response,
                    interrupt_response=wished.interrupt_response,
                    idle_timeout_ms=wished.idle_timeout_ms,
                )
            case SemanticVad():
                return replace(
                    base,
                    semantic=_semantic(base, wished.eagerness),
                    create_response=wished.create_response,
                    interrupt_response=wished.interrupt_response,
                    idle_timeout_ms=None,
                )

    def _check_language(self, transcription: Transcription | None) -> None:
        if transcription is None:
            return
        spoken = self.installed.language
        wished = [transcription.language, *(transcription.languages or ())]
        for language in filter(None, wished):
            if language.lower().split("-")[0] != spoken:
                raise ProtocolError(
                    "unsupported_parameter",
                    f"the recogniser on this server knows {spoken}, not {language}; "
                    f"send {spoken}, or leave the language out",
                    param="session.audio.input.transcription.language",
                )


def _semantic(base: TurnDetection, eagerness: Eagerness) -> SemanticEndpointer:
    server = base.semantic or SemanticEndpointer(unjudged_ms=base.silence_ms)
    return server if eagerness == "auto" else replace(server, caution=CAUTION[eagerness])


def _named_detection(patch: JsonObject) -> object:
    """The type of turn detection that the patch names, if it does."""
    found: object = patch
    for key in ("audio", "input", "turn_detection", "type"):
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _defaults(base: Settings, named_detection: object = None) -> JsonObject:
    """What a session object says where the client says nothing but the type of turn detection."""
    return {
        "type": "realtime",
        "instructions": base.instructions,
        "output_modalities": [base.modality],
        "audio": {
            "input": {
                "format": PcmFormat().model_dump(),
                "turn_detection": _detection(base.turn_detection, named_detection),
            },
            "output": {"format": PcmFormat().model_dump(), "speed": base.speed},
        },
        "max_output_tokens": base.max_output_tokens or "inf",
        "x": {"playback_lead_ms": base.playback_lead_ms},
    }


def _detection(detection: TurnDetection | None, named: object) -> JsonObject | None:
    if detection is None:
        return None
    either: JsonObject = {
        "create_response": detection.create_response,
        "interrupt_response": detection.interrupt_response,
    }
    if named == "semantic_vad" or (detection.semantic is not None and named != "server_vad"):
        return {"type": "semantic_vad", "eagerness": "auto"} | either
    return either | {
        "type": "server_vad",
        "threshold": detection.threshold,
        "prefix_padding_ms": detection.prefix_padding_ms,
        "silence_duration_ms": detection.silence_ms,
        "idle_timeout_ms": detection.idle_timeout_ms,
    }


def _merged(present: object, patch: object, default: object) -> object:
    """Lay `patch` over `present`, key by key.

    An object that was `null` so far, or that names another `type`, starts from the default of
    that type instead of from what was there.
    """
    if not isinstance(patch, dict):
        return patch
    if not isinstance(default, dict):
        default = {}
    if not isinstance(present, dict) or patch.get("type", present.get("type")) != present.get(
        "type"
    ):
        same_type = patch.get("type", default.get("type")) == default.get("type")
        present = default if same_type else {}
    return present | {
        key: _merged(present.get(key), value, default.get(key)) for key, value in patch.items()
    }


def _dump(model: WireModel | None) -> JsonObject | None:
    return model.model_dump() if model else None
