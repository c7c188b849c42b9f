"""Somebody who calls the server: speaks a recording in real time, listens, tells what came."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from assistant.bench.clips import Clip
from assistant.bench.loudspeaker import Loudspeaker
from assistant.bench.outcome import MOMENTS, Outcome
from assistant.client import INPUT_RATE_HZ, Dialogue
from assistant.errors import AssistantError
from assistant.event_stream import EventStream
from assistant.replies import OUTPUT_RATE_HZ, WireEvent
from audio.pcm import Samples, from_pcm16, read_audio, resample, to_pcm16

FRAME_MS = 20
"""What a microphone hands over at a time."""
PATIENCE_S = 10.0
"""How long after the recording an answer may take to begin."""
_REPORT_S = 0.1
"""How often the loudspeaker says where it is."""


@dataclass
class _Answer:
    """One answer of the server, as far as it has come."""

    speech_end_ms: float
    """Where the server heard the speech end, on the input's sample clock."""
    loudspeaker: Loudspeaker = field(default_factory=lambda: Loudspeaker(OUTPUT_RATE_HZ))
    output_tokens: int = 0
    hung_up: bool = False
    account: WireEvent | None = None
    """The server's account of the turn, once it is over."""


class Call:
    """One recording played to a server, in a dialogue of its own.

    The listener hangs up when `listen_s` of the answer have sounded.
    """

    def __init__(self, dialogue: Dialogue, clip: Clip, listen_s: float) -> None:
        self._dialogue = dialogue
        self._listen_s = listen_s
        self._speech_end_s = clip.speech_end_s
        self._samples = resample(*read_audio(clip.path), INPUT_RATE_HZ)
        self._clock = asyncio.get_running_loop()
        self._begin_s = 0.0
        self._speaking = self._waiting = False
        self._heard_end_ms = 0.0
        self._answers: dict[str, _Answer] = {}
        self._transcripts: dict[str, str] = {}
        self._wasted_tokens = 0

    async def outcome(self) -> Outcome:
        """Play the recording, listen to the answer, and tell what became of it."""
        error = None
        try:
            await self._converse()
        except* AssistantError as failed:
            error = str(failed.exceptions[0])
        return self._told(error)

    async def _converse(self) -> None:
        events = self._dialogue.events()
        self._begin_s = self._clock.time()
        patience_s = self._begin_s + self._speech_end_s + PATIENCE_S + self._listen_s
        async with asyncio.TaskGroup() as group:
            beside = [group.create_task(self._speak()), group.create_task(self._play())]
            with suppress(TimeoutError):  # what has come by then is what there is
                async with asyncio.timeout_at(patience_s):
                    await self._listen(events)
            for task in beside:
                task.cancel()

    async def _speak(self) -> None:
        """Hand over each frame when its last sample has been spoken; at the end, silence."""
        for number, frame in enumerate(frames(self._samples, INPUT_RATE_HZ), start=1):
            await asyncio.sleep(self._begin_s + number * FRAME_MS / 1000 - self._clock.time())
            await self._dialogue.append(to_pcm16(frame).astype("<i2").tobytes())

    async def _play(self) -> None:
        """Say where the loudspeaker is; hang up when enough has sounded."""
        while True:
            await asyncio.sleep(_REPORT_S)
            for response_id, answer in self._answers.items():
                played_s = answer.loudspeaker.played_s(self._clock.time())
                if answer.account is not None or not played_s:
                    continue
                await self._dialogue.played(response_id, 1000 * played_s)
                if played_s >= self._listen_s and not answer.hung_up:
                    answer.hung_up = True
                    await self._dialogue.cancel()

    async def _listen(self, events: EventStream) -> None:
        async for event in events:
            self._take(event)
            ended = event["type"] in ("x.turn.timeline", "x.turn.discarded")
            said_all = self._clock.time() > self._begin_s + self._speech_end_s
            unfinished = any(answer.account is None for answer in self._answers.values())
            if ended and said_all and not (self._speaking or self._waiting or unfinished):
                return

    def _take(self, event: WireEvent) -> None:
        match event["type"]:
            case "input_audio_buffer.speech_started":
                self._speaking = True
            case "input_audio_buffer.speech_stopped":
                self._speaking, self._waiting = False, True
                self._heard_end_ms = event["x_speech_end_ms"]
            case "conversation.item.input_audio_transcription.completed":
                self._transcripts[event["item_id"]] = event["transcript"]
            case "response.created":
                self._waiting = False
                self._answers[event["response"]["id"]] = _Answer(self._heard_end_ms)
            case "response.output_audio.delta":
                sound = from_pcm16(np.frombuffer(base64.b64decode(event["delta"]), "<i2"))
                answer = self._answers[event["response_id"]]
                answer.loudspeaker.play(sound, self._clock.time())
            case "response.done":
                usage = event["response"]["usage"] or {}
                answer = self._answers[event["response"]["id"]]
                answer.output_tokens = usage.get("output_tokens", 0)
            case "x.turn.discarded":
                self._speaking = self._waiting = False
            case "x.turn.timeline":
                self._wasted_tokens += event["wasted_tokens"]
                if told := self._answers.get(event["response_id"] or ""):
                    told.account = event

    def _told(self, error: str | None) -> Outcome:
        """Put together what came; the latencies are those of the first answer that sounded."""
        answers = [each for each in self._answers.values() if each.loudspeaker.received_s]
        first = answers[0] if answers else None
        return Outcome(
            transcript=" ".join(filter(None, self._transcripts.values())),
            moments_ms=self._moments_ms(first),
            heard_ms=self._heard_ms(first),
            cut_in=self._cut_in(first),
            underruns=sum(each.loudspeaker.underruns for each in answers),
            output_tokens=sum(each.output_tokens for each in answers),
            accepted=sum(each.account["accepted"] for each in answers if each.account),
            speculation=first.account["speculation"] if first and first.account else "none",
            wasted_tokens=self._wasted_tokens,
            error=error or (None if answers else "no answer was heard"),
        )

    def _moments_ms(self, answer: _Answer | None) -> dict[str, float]:
        """The server's moments, from where the label says that the speech ended.

        Of an answer that was still not over when the listener's patience was, it is only known when
        its first sound came; leaving it out would hide the slowest turns.
        """
        if answer is None or (received_s := answer.loudspeaker.first_received_s) is None:
            return {}
        if answer.account is None:
            return {"first_sent": self._after_speech_ms(received_s)}
        timeline = answer.account["timeline"]
        label_ms = 1000 * self._speech_end_s
        moments = {name: timeline.get(f"{name}_ms") for name in MOMENTS}
        return {
            name: ms + answer.speech_end_ms - label_ms
            for name, ms in moments.items()
            if ms is not None
        }

    def _heard_ms(self, answer: _Answer | None) -> float | None:
        if answer is None or (audible_s := answer.loudspeaker.first_audible_s) is None:
            return None
        return self._after_speech_ms(audible_s)

    def _after_speech_ms(self, moment_s: float) -> float:
        return 1000 * (moment_s - self._begin_s - self._speech_end_s)

    def _cut_in(self, answer: _Answer | None) -> bool:
        if answer is None or (received_s := answer.loudspeaker.first_received_s) is None:
            return False
        return received_s < self._begin_s + self._speech_end_s


def frames(samples: Samples, rate_hz: int) -> Iterator[Samples]:
    """The recording as a microphone hands it over, and silence behind it for ever."""
    size = rate_hz * FRAME_MS // 1000
    for start in range(0, len(samples), size):
        frame = np.zeros(size, np.float32)
        piece = samples[start : start + size]
        frame[: len(piece)] = piece
        yield frame
    while True:
        yield np.zeros(size, np.float32)
