"""The yardstick: a voice assistant as one writes it first, each step after the one before.

It waits for half a second of silence, has Whisper's own front end recognise the recording (padded
to its 30 s), writes a sentence with plain decoding, speaks it in one go, and only then writes the
next.  The models, their precision and their threads are those of the configuration; everything is
loaded and warm, and the system prompt is in the cache, before it is asked anything.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from faster_whisper import WhisperModel

from assistant.config import Config
from assistant.models import resolve
from assistant.stages import load_engine, load_voice, sampling
from audio.pcm import Samples
from audio.vad import SileroVad, SpeechGate, load_vad
from audio.voice import Voice
from dspark import Tokenizer

SILENCE_MS = 500
"""The silence that ends a turn."""
RATE_HZ = 16_000
_SENTENCE = re.compile(r"(.+?[.!?…])\s+", re.DOTALL)


@dataclass
class Trace:
    """What was understood, and when each step was done, in seconds of `time.monotonic`."""

    transcript: str = ""
    tokens: int = 0
    moments_s: dict[str, float] = field(default_factory=dict)

    def mark(self, moment: str) -> None:
        """Note that something happened now; only the first time counts."""
        self.moments_s.setdefault(moment, time.monotonic())


class NaivePipeline:
    """The models, shared by all who talk; each turn runs on its caller's thread."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._vad: SileroVad = load_vad(threads=config.vad.threads)
        self._whisper = WhisperModel(
            str(resolve(config.asr.model, "asr")),
            device=config.asr.device,
            compute_type=config.asr.compute_type,
            cpu_threads=config.asr.threads,
        )
        plain = config.llm.model_copy(update={"drafter": "none"})
        target, self._engine = load_engine(config.model_copy(update={"llm": plain}))
        self._tokenizer: Tokenizer = target.tokenizer
        self._voice: Voice = load_voice(config)
        self._warm_up()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.close()

    @property
    def voice_rate_hz(self) -> int:
        """The sample rate of what it says."""
        return self._voice.sample_rate_hz

    def converse(
        self, microphone: Iterable[Samples], play: Callable[[Samples], bool], trace: Trace
    ) -> None:
        """Hear one turn and answer it, until the answer ends or `play` says that it is enough.

        `microphone` blocks for sound at 16 kHz.  What happens is noted in `trace`.
        """
        recording = self._listen(microphone)
        trace.mark("endpoint")
        trace.transcript = self._recognise(recording)
        trace.mark("transcript")
        if not trace.transcript:
            return
        for sentence in self._sentences(trace):
            trace.mark("first_chunk")
            sound = self._voice.speak(sentence).whole()
            trace.mark("first_audio")
            enough = play(sound)
            trace.mark("first_sent")
            if enough:
                return

    def _listen(self, microphone: Iterable[Samples]) -> Samples:
        """Return everything up to half a second after the last voiced sample."""
        stream, recorded = self._vad.stream(), []
        gate = SpeechGate(self._config.vad.threshold, self._config.vad.min_speech_ms)
        for samples in microphone:
            recorded.append(samples)
            for frame in stream.feed(samples):
                gate.feed(frame.start_sample, frame.end_sample, frame.probability)
                silence_ms = (frame.end_sample - gate.last_voiced_sample) * 1000 / RATE_HZ
                if gate.speaking and silence_ms >= SILENCE_MS:
                    return np.concatenate(recorded)
        return np.concatenate(recorded)

    def _recognise(self, recording: Samples) -> str:
        segments, _ = self._whisper.transcribe(
            recording, language=self._config.asr.language, beam_size=1
        )
        return " ".join(segment.text.strip() for segment in segments).strip()

    def _sentences(self, trace: Trace) -> Iterator[str]:
        """Write the answer, a sentence at a time; not taking the next one ends it."""
        text, unspoken = self._tokenizer.detokenizer(), ""
        generation = self._engine.submit(self._prompt(trace.transcript), sampling(self._config))
        try:
            for step in generation:
                trace.mark("first_text")
                trace.tokens += len(step.committed)
                unspoken += text.feed(step.committed)
                while sentence := _SENTENCE.match(unspoken):
                    unspoken = unspoken[sentence.end() :]
                    yield sentence[1]
        finally:
            generation.cancel()
        if rest := (unspoken + text.flush()).strip():
            yield rest

    def _prompt(self, words: str) -> list[int]:
        instructions = {"role": "system", "content": self._config.llm.instructions}
        return self._tokenizer.chat([instructions, {"role": "user", "content": words}])

    def _warm_up(self) -> None:
        noise = np.random.default_rng(0).normal(0, 0.01, RATE_HZ).astype(np.float32)
        self._recognise(noise)
        self._voice.speak("This sentence is as long as most of those that it will say.").whole()
        for _ in self._sentences(Trace("Good morning.")):
            break
