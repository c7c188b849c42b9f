"""A client that checks every event it gets: its shape, and its place among the others."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import numpy as np

from assistant.realtime.connection import RealtimeConnection
from audio.pcm import Encoding, PcmEncoder
from tests.protocol.instant import InstantRuntime
from tests.protocol.ordering import Ordering
from tests.protocol.schema import check

Event = dict[str, Any]
JARGON = re.compile(
    r"[Ii]nput (should|tag)|a valid (string|dictionary|list|tuple|integer|number|boolean)"
    r"|instance of|after validation"
)
"""The words of the library that checks events, in which no client should be spoken to."""


class CheckingClient:
    """One connection, without a transport; `events` is all that came."""

    def __init__(self, connection: RealtimeConnection, runtime: InstantRuntime) -> None:
        self.connection = connection
        self.runtime = runtime
        self.ordering = Ordering()
        self.events: list[Event] = []

    async def send(self, event: Event | str | bytes) -> list[Event]:
        """Send an event (as its text) and return what came of it at once."""
        message = json.dumps(event) if isinstance(event, dict) else event
        await self.connection.receive(message)
        return await self.collect()

    async def collect(self) -> list[Event]:
        """Return the events that are waiting; every one has been checked."""
        collected = []
        while self.connection.waiting_events:
            event = await self.connection.next_event()
            event = json.loads(json.dumps(event))  # as it would arrive
            check(event)
            self.ordering.feed(event)
            if event["type"] == "error":
                message = event["error"]["message"]
                assert not JARGON.search(message), message
            collected.append(event)
        self.events += collected
        return collected

    async def pass_time(self, seconds: float) -> list[Event]:
        """Let the session's clock run, and return what came of it."""
        self.runtime.pass_time(seconds)
        return await self.collect()

    async def say(self, seconds: float, pause_s: float = 1.0) -> list[Event]:
        """Speak (a loud tone) and then be silent."""
        return await self.append(tone(seconds)) + await self.append(silence(pause_s))

    async def append(self, pcm: bytes) -> list[Event]:
        """Append PCM16 at 24 kHz, in pieces as a microphone gives them."""
        collected = []
        for start in range(0, len(pcm), 4_800):
            audio = base64.b64encode(pcm[start : start + 4_800]).decode()
            collected += await self.send({"type": "input_audio_buffer.append", "audio": audio})
        return collected

    async def update(self, **session: Any) -> list[Event]:
        """Change the session, which must succeed."""
        events = await self.send({"type": "session.update", "session": session})
        assert types(events) == ["session.updated"], events
        return events


def types(events: list[Event]) -> list[str]:
    """Return the events' types, runs of the same one told once."""
    names: list[str] = []
    for event in events:
        if not names or names[-1] != event["type"]:
            names.append(event["type"])
    return names


def of(events: list[Event], event_type: str) -> list[Event]:
    """Return the events of one type."""
    return [event for event in events if event["type"] == event_type]


def tone(seconds: float) -> bytes:
    """A loud tone, PCM16 at 24 kHz: what the fake stages take for speech."""
    phase = np.arange(round(seconds * 24_000)) * (2 * np.pi * 300 / 24_000)
    samples = (0.5 * np.sin(phase)).astype(np.float32)
    return PcmEncoder(Encoding.PCM16, 24_000, 24_000).feed(samples)


def silence(seconds: float) -> bytes:
    """Silence, PCM16 at 24 kHz."""
    return bytes(2 * round(seconds * 24_000))
