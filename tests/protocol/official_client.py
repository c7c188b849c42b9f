"""Conversations held with OpenAI's own Python client, each event checked on the way."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from openai import AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection

from tests.protocol.client import Event, of, silence
from tests.protocol.ordering import Ordering
from tests.protocol.schema import check

PIECE_BYTES = 4_800
"""100 ms of PCM16 at 24 kHz, as a microphone would send it."""
TURN_PATIENCE_S = 120.0


@dataclass
class Conversation:
    """One open connection of the official client, and all that came over it."""

    connection: AsyncRealtimeConnection
    ordering: Ordering = field(default_factory=Ordering)
    events: list[Event] = field(default_factory=list)

    async def say(self, pcm: bytes) -> None:
        """Append sound, PCM16 at 24 kHz."""
        for start in range(0, len(pcm), PIECE_BYTES):
            audio = base64.b64encode(pcm[start : start + PIECE_BYTES]).decode()
            await self.connection.input_audio_buffer.append(audio=audio)

    async def until(self, event_type: str) -> Event:
        """Read until an event of this type."""
        async with asyncio.timeout(TURN_PATIENCE_S):
            while True:
                event: Event = (await self.connection.recv()).to_dict()
                check(event)
                self.ordering.feed(event)
                self.events.append(event)
                if event["type"] == event_type:
                    return event

    def transcript(self) -> str:
        """Return the words of the user's first utterance."""
        kind = "conversation.item.input_audio_transcription.completed"
        return str(of(self.events, kind)[0]["transcript"])

    def audio_seconds(self) -> float:
        """Return how much sound came."""
        deltas = of(self.events, "response.output_audio.delta")
        return sum(len(base64.b64decode(event["delta"])) for event in deltas) / 2 / 24_000


@asynccontextmanager
async def conversation(address: str, **session: Any) -> AsyncIterator[Conversation]:
    """Connect to a server and, with `session`, change the session."""
    client = AsyncOpenAI(api_key="any", base_url=f"http://{address}/v1")
    async with client.realtime.connect(model="gpt-realtime") as connection:
        opened = Conversation(connection)
        await opened.until("session.created")
        if session:
            await connection.session.update(session={"type": "realtime", **session})
            await opened.until("session.updated")
        yield opened


async def spoken_turn(address: str, pcm: bytes) -> Conversation:
    """Say something; silence ends the turn."""
    async with conversation(address) as dialogue:
        await dialogue.say(pcm + silence(1.0))
        done = await dialogue.until("response.done")
        assert done["response"]["status"] == "completed"
        dialogue.ordering.finish()
    return dialogue


async def manual_turn(address: str, pcm: bytes) -> Conversation:
    """Say something, and say when it is over; the answer is asked for right away."""
    manual = {"input": {"turn_detection": None}}
    async with conversation(address, audio=manual) as dialogue:
        await dialogue.say(pcm)
        await dialogue.connection.input_audio_buffer.commit()
        await dialogue.connection.response.create()
        done = await dialogue.until("response.done")
        assert done["response"]["status"] == "completed"
        dialogue.ordering.finish()
    return dialogue


async def interruption(address: str, pcm: bytes) -> Conversation:
    """Say something, and say it again while the answer is heard; then tell what was heard."""
    async with conversation(address) as dialogue:
        await dialogue.say(pcm + silence(1.0))
        delta = await dialogue.until("response.output_audio.delta")
        await dialogue.say(pcm)
        cancelled = await dialogue.until("response.done")
        assert cancelled["response"]["status"] == "cancelled"
        assert cancelled["response"]["status_details"]["reason"] == "turn_detected"
        await dialogue.connection.conversation.item.truncate(
            item_id=delta["item_id"], content_index=0, audio_end_ms=0
        )
        await dialogue.until("conversation.item.truncated")
        await dialogue.connection.conversation.item.retrieve(item_id=delta["item_id"])
        retrieved = await dialogue.until("conversation.item.retrieved")
        assert retrieved["item"]["status"] == "incomplete"
        assert retrieved["item"]["content"][0]["transcript"] == ""
        await dialogue.say(silence(1.0))
        again = await dialogue.until("response.done")
        assert again["response"]["status"] == "completed"
        dialogue.ordering.finish()
    return dialogue
