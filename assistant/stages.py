"""The stages behind every session of one process: loaded once, warmed, shared, closed together."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from assistant.config import Config
from assistant.context import Limits
from assistant.errors import ModelMissing
from assistant.events import Samples
from assistant.items import Message, Role
from assistant.language import EngineLanguageModel, LanguageModel
from assistant.load import CertainWork
from assistant.models import has_no_weights, resolve
from assistant.settings import Settings, TurnDetection
from assistant.workers import OnWait, ThreadWorker, Worker
from audio.transcriber import Transcriber, load_whisper
from audio.vad import SpeechFrame, load_vad
from audio.voice import Voice, load_piper
from dspark import (
    Drafter,
    DSparkError,
    Engine,
    EngineMetrics,
    SamplingParams,
    Target,
    fastest_dtype,
    load_target,
)
from dspark.drafters import load_drafter, shipped_drafter

logger = logging.getLogger(__name__)
T = TypeVar("T")

StageName = Literal["vad", "asr", "llm", "tts"]
STAGES: tuple[StageName, ...] = ("vad", "asr", "llm", "tts")


class VoiceActivity(Protocol):
    """Finds speech in one session's microphone audio."""

    def feed(self, samples: Samples) -> list[SpeechFrame]:
        """Return the windows that these samples complete, analysed in order."""
        ...


@dataclass(frozen=True, slots=True)
class StageProgress:
    """A stage began to load, or is warm."""

    stage: StageName
    state: Literal["loading", "ready"]
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Stages:
    """What a session needs to hear, think and speak."""

    config: Config
    new_voice_activity: Callable[[], VoiceActivity]
    transcriber: Transcriber
    language: LanguageModel
    voice: Voice
    hearing_worker: Worker
    asr_worker: Worker
    tts_worker: Worker
    certain_work: CertainWork = field(default_factory=CertainWork)
    engine_metrics: Callable[[], EngineMetrics] | None = None
    """What the engine has done so far, if the language model runs in one here."""

    @property
    def voice_rate_hz(self) -> int:
        """The sample rate of everything the voice says."""
        return self.voice.sample_rate_hz

    def default_settings(self) -> Settings:
        """Return the settings that a session starts with."""
        endpoint = self.config.endpoint
        return Settings(
            instructions=self.config.llm.instructions,
            turn_detection=TurnDetection(
                threshold=self.config.vad.threshold,
                prefix_padding_ms=self.config.vad.pre_roll_ms,
                silence_ms=endpoint.silence_ms,
                semantic=endpoint.semantic,
                pause_ms=endpoint.pause_ms if endpoint.speculate else None,
            ),
            playback_lead_ms=self.config.playback.lead_ms,
        )

    def limits(self) -> Limits:
        """Return the deadlines of a session's states."""
        return Limits(
            min_speech_ms=self.config.vad.min_speech_ms,
            max_utterance_s=self.config.limits.max_utterance_s,
            transcript_deadline_s=self.config.limits.transcript_deadline_s,
            answer_deadline_s=self.config.limits.answer_deadline_s,
        )


@asynccontextmanager
async def open_stages(
    config: Config,
    on_progress: Callable[[StageProgress], None] | None = None,
    on_wait: OnWait = lambda name, urgency, waited_s: None,
) -> AsyncIterator[Stages]:
    """Load and warm every stage, yield them, and close them at the end.

    `on_progress` is called on the event loop as each stage begins to load and is warm; `on_wait`
    on a worker's thread whenever it takes up a job.  Raises the typed error of the stage that
    cannot be loaded (`ModelMissing`, an `AudioError`, a `DSparkError`).
    """
    async with AsyncExitStack() as stack:

        async def load(stage: StageName, function: Callable[[], T]) -> T:
            begin_s = time.monotonic()
            if on_progress:
                on_progress(StageProgress(stage, "loading"))
            loaded = await asyncio.to_thread(function)
            seconds = time.monotonic() - begin_s
            logger.info("%s is warm after %.1f s", stage, seconds)
            if on_progress:
                on_progress(StageProgress(stage, "ready", seconds))
            return loaded

        def worker(name: str) -> ThreadWorker:
            thread = ThreadWorker(name, on_wait)
            stack.callback(thread.close)
            return thread

        vad = await load("vad", lambda: load_vad(threads=config.vad.threads))
        transcriber = await load("asr", lambda: _load_transcriber(config))
        target, engine = await load("llm", lambda: load_engine(config))
        stack.callback(engine.close)
        voice = await load("tts", lambda: load_voice(config))
        language = EngineLanguageModel(
            engine,
            target.tokenizer,
            sampling(config),
            context_tokens=min(config.llm.context_tokens, target.context_tokens),
        )
        if config.endpoint.semantic is not None:
            await _judge_once(language, config.llm.instructions)
        yield Stages(
            config=config,
            new_voice_activity=vad.stream,
            transcriber=transcriber,
            language=language,
            voice=voice,
            hearing_worker=worker("hearing"),
            asr_worker=worker("asr"),
            tts_worker=worker("tts"),
            engine_metrics=lambda: engine.metrics,
        )


async def _judge_once(language: LanguageModel, instructions: str) -> None:
    """Let the first turn's end not wait for what is set up once; say so if none can be judged."""
    messages = (Message(Role.SYSTEM, instructions), Message(Role.USER, "Hello there."))
    try:
        await language.turn_end(messages)
    except DSparkError as error:
        logger.warning("turns end by silence alone: %s", error)


def _load_transcriber(config: Config) -> Transcriber:
    transcriber = load_whisper(
        resolve(config.asr.model, "asr"),
        device=config.asr.device,
        compute_type=config.asr.compute_type,
        threads=config.asr.threads,
        language=config.asr.language,
    )
    transcriber.warm_up()
    return transcriber


def load_engine(config: Config) -> tuple[Target, Engine]:
    """Load and warm the language model, in an engine of its own; close it in the end."""
    target = load_target(
        resolve(config.llm.model, "llm"),
        device=config.llm.device,
        dtype=fastest_dtype(config.llm.device) if config.llm.dtype == "auto" else config.llm.dtype,
        threads=config.llm.threads,
    )
    context_tokens = min(config.llm.context_tokens, target.context_tokens)
    drafter = _load_drafter(config, target)
    engine = Engine(
        target,
        drafter,
        "confidence",  # drafts are not to cost where they do not pay
        slots=config.llm.slots,
        context_tokens=context_tokens,
    )
    engine.warm_up()
    return target, engine


def _load_drafter(config: Config, target: Target) -> Drafter | None:
    name = config.llm.drafter
    if name == "none":
        return None
    if name == "auto":
        shipped = shipped_drafter(target)
        return None if shipped is None else load_drafter(shipped, target)
    return load_drafter(name if has_no_weights(name) else resolve(name, "drafter"), target)


def load_voice(config: Config) -> Voice:
    """Load and warm the voice. Raises `ModelMissing` or an `AudioError`."""
    model = resolve(config.voice.model, "tts")
    if not isinstance(model, Path):
        raise ModelMissing(
            f"voice.model {model!r} is not on this machine: name a voice from "
            "`assistant models list`, or a Piper voice's .onnx file."
        )
    voice = load_piper(
        model,
        device=config.voice.device,
        threads=config.voice.threads,
        gain=config.voice.gain,
    )
    voice.warm_up()
    return voice


def sampling(config: Config) -> SamplingParams:
    """Return how answers are drawn."""
    llm = config.llm
    return SamplingParams(
        temperature=llm.temperature,
        top_p=llm.top_p,
        top_k=llm.top_k,
        repetition_penalty=llm.repetition_penalty,
        max_new_tokens=llm.max_new_tokens,
        seed=llm.seed,
    )
