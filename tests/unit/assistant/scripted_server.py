"""A server that hears no sound and thinks no thought: enough of the protocol to talk to.

It takes each non-silent stretch of audio for an utterance, recognises `words` in it, and says
`answer`.  `unfinished` lets it begin answers that only a cancellation ends, and `afterthought`
makes it answer once more when the session is next updated.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from typing import Any

ANSWER_AUDIO = b"\x01\x00" * 2400  # 100 ms


class ScriptedServer:
    """A transport, and the server behind it."""

    def __init__(
        self,
        words: str = "hello",
        answer: str = "Hi.",
        unfinished: bool = False,
        mute: bool = False,
    ) -> None:
        self.received: list[Mapping[str, Any]] = []
        self.heard = b""
        self._words = words
        self.answer = answer
        self.unfinished = unfinished
        self.afterthought = False
        self._mute = mute
        self._events: asyncio.Queue[dict[str, Any] | Exception] = asyncio.Queue()
        self._arrival = asyncio.Event()
        self._counter = 0
        self._speaking: str | None = None
        self._active: str | None = None
        self.emit({"type": "session.created", "session": {}})

    async def receive(self) -> dict[str, Any]:
        event = await self._events.get()
        if isinstance(event, Exception):
            raise event
        return event

    async def send(self, event: Mapping[str, Any]) -> None:
        self.received.append(event)
        self._arrival.set()
        if self._mute:
            return
        match event["type"]:
            case "session.update":
                if self.afterthought:
                    self.afterthought = False
                    self._begin_answer()
                self.emit({"type": "session.updated", "session": {}})
            case "response.create":
                self._begin_answer()
            case "response.cancel" if self._active:
                self.end_answer("cancelled", heard=None)
            case "response.cancel":
                self.refuse(event, "Nothing to cancel.")
            case "input_audio_buffer.append":
                self._hear(base64.b64decode(event["audio"]))
            case "conversation.item.create" if not event["item"]["content"][0]["text"]:
                self.refuse(event, "Say something.")

    def emit(self, event: dict[str, Any]) -> None:
        self._events.put_nowait(event)

    def vanish(self, error: Exception) -> None:
        self._events.put_nowait(error)

    def refuse(self, event: Mapping[str, Any], message: str) -> None:
        self.emit(
            {"type": "error", "error": {"event_id": event.get("event_id"), "message": message}}
        )

    async def receives(self, kind: str, count: int = 1) -> Mapping[str, Any]:
        """Wait until the client has sent that many events of a type; return the last one."""
        while self.types_received().count(kind) < count:
            self._arrival.clear()
            await self._arrival.wait()
        return [event for event in self.received if event["type"] == kind][-1]

    def types_received(self) -> list[str]:
        return [event["type"] for event in self.received]

    def _new_id(self, kind: str) -> str:
        self._counter += 1
        return f"{kind}_{self._counter}"

    def _hear(self, pcm: bytes) -> None:
        self.heard += pcm
        voiced = any(pcm)
        if voiced and self._speaking is None:
            self._speaking = self._new_id("item")
            self.emit({"type": "input_audio_buffer.speech_started", "item_id": self._speaking})
        elif not voiced and self._speaking is not None:
            item, self._speaking = self._speaking, None
            self.emit({"type": "input_audio_buffer.committed", "item_id": item})
            if self._words:
                kind = "conversation.item.input_audio_transcription.completed"
                self.emit({"type": kind, "item_id": item, "transcript": self._words})
                self._begin_answer()
            else:
                self.emit({"type": "x.turn.discarded", "item_id": item, "reason": "repetition"})
                self._time(None, None)

    def _begin_answer(self) -> None:
        self._active = answer = self._new_id("answer")
        self.emit({"type": "response.created", "response": {"id": answer}})
        kind = "response.output_audio_transcript.delta"
        self.emit({"type": kind, "response_id": answer, "delta": self.answer})
        audio = base64.b64encode(ANSWER_AUDIO).decode()
        kind = "response.output_audio.delta"
        generation = self._counter
        self.emit({"type": kind, "response_id": answer, "delta": audio, "x_generation": generation})
        if not self.unfinished:
            self.end_answer("completed", heard=self.answer)

    def end_answer(self, status: str, heard: str | None) -> None:
        response = {"id": self._active, "status": status}
        self.emit({"type": "response.done", "response": response})
        self._time(self._active, heard)
        self._active = None

    def _time(self, answer: str | None, heard: str | None) -> None:
        timeline = {"server_ttfa_ms": 1.0}
        kind = "x.turn.timeline"
        self.emit({"type": kind, "response_id": answer, "heard": heard, "timeline": timeline})
