"""One typed tree of settings, read from TOML, overridden by the environment, checked whole.

Precedence: environment (`ASSISTANT__LLM__MODEL=…`) over the file over the defaults below, which
are what `configs/cpu.toml` spells out.  Every complaint names where the value came from and its
key path.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from assistant.errors import ConfigError
from assistant.settings import CAUTION, Eagerness
from audio.endpoint import SemanticEndpointer

logger = logging.getLogger(__name__)

ENVIRONMENT_PREFIX = "ASSISTANT__"

Threads = Annotated[int, Field(ge=1, le=256)]
Device = Annotated[str, Field(pattern=r"^(cpu|cuda(:\d+)?)$")]
Seconds = Annotated[float, Field(gt=0, le=86_400)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ServerConfig(_Section):
    """The web server: where it listens and what one client may use."""

    host: str = Field(default="127.0.0.1", min_length=1)
    port: int = Field(default=8765, ge=0, le=65_535)
    """0 picks a free port."""
    max_sessions: int = Field(default=16, ge=1)
    max_message_mib: int = Field(default=16, ge=1, le=1024)
    api_keys: tuple[SecretStr, ...] = ()
    """Keys that clients must show; empty lets everybody in."""
    allowed_origins: tuple[str, ...] = ()
    """Other websites (`https://example.org`) whose pages may open sessions without a key."""
    outbox_frames: int = Field(default=1024, ge=16)
    """Events waiting for a client that does not read; one more and it is disconnected."""
    idle_close_s: Seconds = 900.0
    """A session in which neither side has said anything for this long is closed."""


class VadConfig(_Section):
    """Voice activity: what counts as speech."""

    threshold: float = Field(default=0.5, gt=0, lt=1)
    min_speech_ms: int = Field(default=90, ge=0, le=2_000)
    pre_roll_ms: int = Field(default=500, ge=0, le=5_000)
    """Sound kept from before the speech was noticed, so that no first word is cut."""
    threads: Threads = 1


class AsrConfig(_Section):
    """Speech recognition."""

    model: str = Field(default="whisper-tiny.en", min_length=1)
    device: Device = "cpu"
    compute_type: Literal[
        "default", "int8", "int8_float16", "int8_float32", "float16", "bfloat16", "float32"
    ] = "int8"
    threads: Threads = 1
    language: str = Field(default="en", pattern=r"^[a-z]{2,3}$")

    @model_validator(mode="after")
    def _device_computes_the_type(self) -> Self:
        if self.device == "cpu" and self.compute_type in ("float16", "int8_float16"):
            raise PydanticCustomError(
                "not_on_the_cpu",
                "compute_type {compute_type} is for GPUs, but device is cpu: set compute_type to "
                "int8 or float32, or device to cuda",
                {"compute_type": self.compute_type},
            )
        return self

    @model_validator(mode="after")
    def _model_speaks_the_language(self) -> Self:
        if self.model.rstrip("/\\").endswith(".en") and self.language != "en":
            raise PydanticCustomError(
                "english_only",
                "model {model} knows English only, but language is {language}: "
                "set language to en, or choose a multilingual Whisper",
                {"model": self.model, "language": self.language},
            )
        return self


class EndpointConfig(_Section):
    """When the user's turn is over."""

    kind: Literal["semantic", "silence"] = "semantic"
    """semantic waits longer after words that do not sound like all; silence always the same."""
    silence_ms: int = Field(default=500, ge=100, le=10_000)
    """The silence that ends a turn by itself; with semantic, one whose words are not judged yet."""
    shortest_ms: int = Field(default=320, ge=100, le=10_000)
    """The silence after words that sound complete …"""
    doubtful_ms: int = Field(default=1_100, ge=100, le=10_000)
    """… and after such as do not …"""
    longest_ms: int = Field(default=1_500, ge=100, le=30_000)
    """… and after a hesitation, or digits said one after the other."""
    eagerness: Eagerness = "auto"
    """How soon to answer what may not be all; auto is medium."""
    speculate: bool = True
    """Prepare the answer at a pause, behind a gate that the turn's end opens."""
    pause_ms: int = Field(default=64, ge=32, le=10_000)
    """The silence that is a pause."""

    @model_validator(mode="after")
    def _shortest_is_not_longer(self) -> Self:
        if not self.shortest_ms <= self.doubtful_ms <= self.longest_ms:
            raise PydanticCustomError(
                "shortest_is_longer",
                "shortest_ms {shortest}, doubtful_ms {doubtful} and longest_ms {longest} must not "
                "fall: change one, or set kind to silence to always wait the same",
                {
                    "shortest": self.shortest_ms,
                    "doubtful": self.doubtful_ms,
                    "longest": self.longest_ms,
                },
            )
        return self

    @property
    def semantic(self) -> SemanticEndpointer | None:
        """What ends turns by what was said, if that does."""
        if self.kind == "silence":
            return None
        return SemanticEndpointer(
            shortest_ms=self.shortest_ms,
            doubtful_ms=self.doubtful_ms,
            longest_ms=self.longest_ms,
            caution=CAUTION[self.eagerness],
            unjudged_ms=self.silence_ms,
        )


class LlmConfig(_Section):
    """The language model, and how it answers."""

    model: str = Field(default="smollm2-135m-instruct", min_length=1)
    drafter: str = Field(default="auto", min_length=1)
    """What proposes tokens for the model to check: auto is what comes with the package for the
    model, if anything does; none; a DSpark drafter's folder or hub id, or a smaller model's;
    prompt-lookup or layer-skip:8, which need no weights. It changes no answer, only how fast."""
    device: Device = "cpu"
    dtype: Literal["auto", "float32", "bfloat16", "int8", "int4"] = "auto"
    """auto is the fastest that the machine computes: on a CPU int4, for models that are in 4 bits
    already, as the embedded one is."""
    threads: Threads = 1
    slots: int = Field(default=4, ge=1, le=1024)
    """Answers generated at the same time; more wait."""
    context_tokens: int = Field(default=2048, ge=256)
    max_new_tokens: int = Field(default=120, ge=1)
    temperature: float = Field(default=0.0, ge=0, le=2)
    """0 always takes the likeliest token."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    """0 does not limit."""
    repetition_penalty: float = Field(default=1.03, ge=1, le=2)
    seed: int | None = Field(default=None, ge=0)
    """Makes sampled answers repeatable; unset draws anew each time."""
    instructions: str = "You are a helpful AI assistant. Your answers are short."

    @model_validator(mode="after")
    def _device_computes_the_dtype(self) -> Self:
        if self.dtype in ("int8", "int4") and self.device != "cpu":
            raise PydanticCustomError(
                "only_on_the_cpu",
                "dtype {dtype} is computed on the CPU only, but device is {device}: set dtype to "
                "bfloat16, or device to cpu",
                {"dtype": self.dtype, "device": self.device},
            )
        return self

    @model_validator(mode="after")
    def _answer_fits_the_context(self) -> Self:
        if self.max_new_tokens > self.context_tokens // 2:
            raise PydanticCustomError(
                "answer_too_long",
                "max_new_tokens is {answer}, but at most half of context_tokens ({context}) may be "
                "kept for the answer: the conversation needs the rest",
                {"answer": self.max_new_tokens, "context": self.context_tokens},
            )
        return self


class VoiceConfig(_Section):
    """Speech synthesis."""

    model: str = Field(default="piper-en_US-joe-medium", min_length=1)
    device: Literal["cpu", "cuda"] = "cpu"
    threads: Threads = 1
    gain: float = Field(default=1.3, gt=0, le=10)
    """A fixed factor, so that the level does not jump from sentence to sentence."""


class PlaybackConfig(_Section):
    """How answers are sent."""

    lead_ms: int = Field(default=400, ge=50, le=10_000)
    """How far ahead of the listening client audio is sent."""


class LimitsConfig(_Section):
    """What nobody waits for longer than, and nothing grows beyond."""

    transcript_deadline_s: Seconds = 15.0
    answer_deadline_s: Seconds = 30.0
    max_utterance_s: Seconds = 120.0
    buffered_audio_s: Seconds = 30.0
    """Received audio not yet analysed; a client that sends faster is slowed down."""


class LogConfig(_Section):
    """What is logged. What people say is not, unless `transcripts` is set."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    transcripts: bool = False


class Config(_Section):
    """Everything that can be set. `Config()` is the embedded default."""

    server: ServerConfig = ServerConfig()
    vad: VadConfig = VadConfig()
    asr: AsrConfig = AsrConfig()
    endpoint: EndpointConfig = EndpointConfig()
    llm: LlmConfig = LlmConfig()
    voice: VoiceConfig = VoiceConfig()
    playback: PlaybackConfig = PlaybackConfig()
    limits: LimitsConfig = LimitsConfig()
    log: LogConfig = LogConfig()


def load_config(path: Path | str | None = None, env: Mapping[str, str] | None = None) -> Config:
    """Return the configuration in `path` (or the defaults), overridden by the environment.

    `env` is `os.environ` unless given.  A variable that nearly names a key is warned about in the
    log.  Raises `ConfigError` naming the file or the variable, the key path, and what is wrong
    there; all mistakes at once.
    """
    env = os.environ if env is None else env
    for variable, meant in sorted(misspelt_variables(env).items()):
        logger.warning("%s is not read: write it %s", variable, meant)
    source = "the defaults" if path is None else str(path)
    values = {} if path is None else _read(Path(path))
    origins = _override(values, env)
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        complaints = [_complaint(detail, source, origins) for detail in error.errors()]
        raise ConfigError("\n".join(complaints)) from None


def misspelt_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that would name a key if their underscores were doubled, with how.

    >>> misspelt_variables({"ASSISTANT_SERVER_PORT": "9000", "ASSISTANT_MODELS": "/models"})
    {'ASSISTANT_SERVER_PORT': 'ASSISTANT__SERVER__PORT'}
    """
    right = {}
    for key in _known_keys():
        variable = ENVIRONMENT_PREFIX + key.upper().replace(".", "__")
        right[_single_underscores(variable)] = variable
    return {
        variable: right[_single_underscores(variable)]
        for variable in env
        if not variable.upper().startswith(ENVIRONMENT_PREFIX)
        and _single_underscores(variable) in right
    }


def _single_underscores(variable: str) -> str:
    return re.sub("_+", "_", variable.upper())


def _known_keys() -> list[str]:
    """Return the path of every key that a section has."""
    return [
        f"{section}.{key}"
        for section, field in Config.model_fields.items()
        for key in cast(type[BaseModel], field.annotation).model_fields
    ]


_Tree = dict[str, object]
_KeyPath = tuple[str, ...]


def _read(path: Path) -> _Tree:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}") from None


def _override(values: _Tree, env: Mapping[str, str]) -> dict[_KeyPath, str]:
    """Put the environment's values into the tree; return which variable set which key path."""
    origins: dict[_KeyPath, str] = {}
    for variable in sorted(env):
        if not variable.upper().startswith(ENVIRONMENT_PREFIX):
            continue
        key_path = tuple(variable[len(ENVIRONMENT_PREFIX) :].lower().split("__"))
        section = values
        for key in key_path[:-1]:
            inner = section.setdefault(key, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"{variable}: {key} is a value, not a section")
            section = cast(_Tree, inner)
        section[key_path[-1]] = _from_environment(variable, env[variable])
        origins[key_path] = variable
    return origins


def _from_environment(variable: str, text: str) -> object:
    """Lists are written as in TOML; everything else is plain text, converted by its field."""
    if not text.startswith("["):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{variable}: is not a valid list: {error}") from None


def _complaint(detail: ErrorDetails, source: str, origins: Mapping[_KeyPath, str]) -> str:
    key_path = tuple(str(key) for key in detail["loc"])
    where = _origin(key_path, source, origins)
    name = ".".join(key_path)
    if detail["type"] == "extra_forbidden":
        return f"{where}: {name}: there is no such key{_suggestion(key_path)}"
    if detail["type"] == "model_type":
        return f"{where}: {name} is a section: set its keys, such as {_a_key_of(key_path, where)}"
    if detail["type"] == "tuple_type":
        return f'{where}: {name} is a list: write ["…"], or ["…", "…"] for several'
    if isinstance(detail["input"], Mapping) and detail["type"].endswith("_type"):
        return f"{where}: {name} is a value, not a section: it has no keys"
    message = detail["msg"][:1].lower() + detail["msg"][1:]
    # The value of a key that is not to be logged must not reach a terminal or a log either.
    secret = "api_keys" in key_path or isinstance(detail["input"], Mapping | BaseModel)
    found = "" if secret else f" (found {detail['input']!r})"
    return f"{where}: {name}: {message}{found}"


def _origin(key_path: _KeyPath, source: str, origins: Mapping[_KeyPath, str]) -> str:
    """Say where the value came from; a whole section may come from the file and from variables."""
    for length in range(len(key_path), 0, -1):
        if key_path[:length] in origins:
            return origins[key_path[:length]]
    beneath = [variable for path, variable in origins.items() if path[: len(key_path)] == key_path]
    return " with ".join([source, *beneath])


def _a_key_of(section: _KeyPath, where: str) -> str:
    """Name a key of a section the way its value would be written where the mistake is."""
    key = next(key for key in _known_keys() if key.startswith(f"{'.'.join(section)}."))
    if where.upper().startswith(ENVIRONMENT_PREFIX):
        return ENVIRONMENT_PREFIX + key.upper().replace(".", "__")
    return key


def _suggestion(key_path: _KeyPath) -> str:
    """Name the existing key most like the unknown one; in another section if that fits better."""
    known = {*_known_keys(), *Config.model_fields}
    name = ".".join(key_path)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    if not close:  # the right key in the wrong section
        close = [key for key in sorted(known) if key.rpartition(".")[2] == key_path[-1]][:1]
    return f"; did you mean {close[0]}?" if close else ""
