"""What is compared: each system takes a recording, in real time, and tells what became of it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Protocol

from assistant.bench.caller import FRAME_MS, PATIENCE_S, Call, frames
from assistant.bench.clips import Clip
from assistant.bench.loudspeaker import Loudspeaker
from assistant.bench.naive import RATE_HZ, NaivePipeline, Trace
from assistant.bench.outcome import Outcome
from assistant.client import connect
from assistant.errors import AssistantError
from audio.pcm import Samples, read_audio, resample

LEAD_MS = 400


class System(Protocol):
    """Something that answers, for any number of callers at once."""

    @property
    def name(self) -> str:
        """How it is called in tables."""
        ...

    async def play(self, clip: Clip, listen_s: float) -> Outcome:
        """Play a recording to it in real time, and listen to so much of its answer."""
        ...


class Server:
    """A server of this project, over its websocket."""

    def __init__(self, name: str, url: str, api_key: str | None = None) -> None:
        self.name = name
        self._url = url
        self._api_key = api_key

    async def play(self, clip: Clip, listen_s: float) -> Outcome:
        """See `System`."""
        try:
            async with connect(self._url, self._api_key, playback_lead_ms=LEAD_MS) as dialogue:
                return await Call(dialogue, clip, listen_s).outcome()
        except AssistantError as error:
            return Outcome(error=str(error))


class Naive:
    """The naive pipeline in this process, each caller on a thread."""

    name = "naive"

    def __init__(self, pipeline: NaivePipeline) -> None:
        self._pipeline = pipeline

    async def play(self, clip: Clip, listen_s: float) -> Outcome:
        """See `System`."""
        samples = resample(*read_audio(clip.path), RATE_HZ)
        hung_up = threading.Event()
        try:
            return await asyncio.to_thread(
                self._converse, samples, clip.speech_end_s, listen_s, hung_up
            )
        finally:
            hung_up.set()  # the thread of a bench that is broken off must end, too

    def _converse(
        self, samples: Samples, speech_end_s: float, listen_s: float, hung_up: threading.Event
    ) -> Outcome:
        trace, loudspeaker = Trace(), Loudspeaker(self._pipeline.voice_rate_hz)

        def microphone() -> Iterator[Samples]:
            """Each frame when its last sample has been spoken, while somebody may answer."""
            for number, frame in enumerate(frames(samples, RATE_HZ), start=1):
                spoken_s = number * FRAME_MS / 1000
                if hung_up.is_set() or spoken_s > speech_end_s + PATIENCE_S:
                    return
                time.sleep(max(0.0, begin_s + spoken_s - time.monotonic()))
                yield frame

        def play(sound: Samples) -> bool:
            loudspeaker.play(sound, time.monotonic())
            return hung_up.is_set() or loudspeaker.received_s >= listen_s

        begin_s = time.monotonic()
        self._pipeline.converse(microphone(), play, trace)

        def after_speech_ms(moment_s: float) -> float:
            return 1000 * (moment_s - begin_s - speech_end_s)

        audible_s, received_s = loudspeaker.first_audible_s, loudspeaker.first_received_s
        return Outcome(
            transcript=trace.transcript,
            moments_ms={name: after_speech_ms(at_s) for name, at_s in trace.moments_s.items()},
            heard_ms=None if audible_s is None else after_speech_ms(audible_s),
            cut_in=received_s is not None and received_s < begin_s + speech_end_s,
            underruns=loudspeaker.underruns,
            output_tokens=trace.tokens,
            error=None if received_s is not None else "no answer was heard",
        )
