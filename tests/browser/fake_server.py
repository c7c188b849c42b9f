"""A server without models: it serves the page and plays one side of the protocol by a script."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from numpy.typing import NDArray
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket, WebSocketDisconnect

import assistant

WIRE_RATE_HZ = 24_000
FRAME_MS = 40
PATIENCE_S = 30.0
"""How long a test waits for what must happen, on a machine that may have much else to do."""
WEB = Path(assistant.__file__).parent / "web"

Event = dict[str, Any]
"""A protocol event as JSON: what its values are is for the test to say."""
Script = Callable[["Line"], Coroutine[Any, Any, None]]

_SERVER_EVENT: TypeAdapter[object] = TypeAdapter(RealtimeServerEvent)


def tone(seconds: float, hz: float = 330.0) -> NDArray[np.int16]:
    """A steady tone as wire PCM at half of full scale."""
    time = np.arange(round(seconds * WIRE_RATE_HZ)) / WIRE_RATE_HZ
    return (16384 * np.sin(2 * np.pi * hz * time)).astype(np.int16)


class Line:
    """One page's connection, from the script's side."""

    def __init__(self, websocket: WebSocket, take: Callable[[Event], None]) -> None:
        self._websocket = websocket
        self._tell = take
        self._loop = asyncio.get_running_loop()
        self._cues = asyncio.Semaphore(0)
        self._arrived = asyncio.Condition()
        self._seen = 0
        self._events = 0
        self.received: list[Event] = []
        self.audio = bytearray()

    async def send(self, kind: str, **fields: object) -> None:
        """Send a server event; it must be one that the official client would accept."""
        self._events += 1
        event: Event = {"type": kind, "event_id": f"event_{self._events}", **fields}
        if not kind.startswith("x."):
            _SERVER_EVENT.validate_python(event, strict=False)
        await self._websocket.send_text(json.dumps(event))

    async def expect(self, kind: str) -> Event:
        """Wait for the next client event of this kind; the ones before it are passed over."""
        async with self._arrived:
            while True:
                for at in range(self._seen, len(self.received)):
                    if self.received[at]["type"] == kind:
                        self._seen = at + 1
                        return self.received[at]
                await self._arrived.wait()

    async def heard(self, ms: float) -> None:
        """Wait until the page has appended this much audio in all."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.audio) >= ms / 1000 * WIRE_RATE_HZ * 2)

    async def played(self, response_id: str, ms: float) -> None:
        """Wait until the page says that it has played this far."""
        while True:
            report = await self.expect("x.playback")
            if report["response_id"] == response_id and report["position_ms"] >= ms:
                return

    async def cued(self) -> None:
        """Wait until the test has seen enough and gives the cue."""
        await self._cues.acquire()

    def cue(self) -> None:
        """Let the script go on; called by the test."""
        self._loop.call_soon_threadsafe(self._cues.release)

    async def hang_up(self, code: int = 1001, reason: str = "") -> None:
        """Close the connection."""
        await self._websocket.close(code, reason)

    async def run(self, script: Script) -> None:
        """Read what the page sends and play the script, until the page leaves."""
        await self.send("session.created", session={"type": "realtime"})
        playing = asyncio.create_task(script(self))
        try:
            while True:
                await self._take(json.loads(await self._websocket.receive_text()))
        except (WebSocketDisconnect, RuntimeError):
            pass
        finally:
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)

    async def _take(self, event: Event) -> None:
        self._tell(event)
        async with self._arrived:
            self.received.append(event)
            if event["type"] == "input_audio_buffer.append":
                self.audio += base64.b64decode(event["audio"])
            self._arrived.notify_all()


class FakeServer:
    """Serves the page from a thread; `script` is played to every page that connects."""

    def __init__(self) -> None:
        # It listens from now on: a page that comes before the thread is ready waits for it.
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        routes = [
            Route("/", self._page),
            Route("/readyz", self._readyz),
            WebSocketRoute("/v1/realtime", self._realtime),
            Mount("/static", StaticFiles(directory=WEB)),
        ]
        self._server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_level="error"))
        self._thread = threading.Thread(
            target=lambda: self._server.run(sockets=[self._listener]), daemon=True
        )
        self._changed = threading.Condition()
        self._door = threading.Event()
        self.reset()

    def reset(self) -> None:
        """Forget what happened; play nothing."""
        self.script: Script = silent
        self.refusal: str | None = None
        """Why nobody gets a session, as the close reason; `None` lets everybody in."""
        self.received: list[Event] = []
        self.lines: list[Line] = []
        self.failures: list[BaseException] = []
        self.open_door()

    def __enter__(self) -> FakeServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._listener.close()

    def sent(self, kind: str) -> list[Event]:
        """What the pages sent of this kind."""
        return [event for event in self.received if event["type"] == kind]

    def wait_until_sent(self, kind: str, times: int = 1) -> None:
        """Wait until the pages have sent this kind so often."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.sent(kind)) >= times, PATIENCE_S), (
                f"{kind} came {len(self.sent(kind))} times, not {times}"
            )

    def cue(self) -> None:
        """Let the script of the latest page go on."""
        self.lines[-1].cue()

    def shut_door(self) -> None:
        """Let pages that connect wait from now on."""
        self._door.clear()

    def open_door(self) -> None:
        """Let in whoever waits, and whoever comes."""
        self._door.set()

    def _take(self, event: Event) -> None:
        with self._changed:
            self.received.append(event)
            self._changed.notify_all()

    async def _page(self, _request: Request) -> FileResponse:
        return FileResponse(WEB / "index.html")

    async def _readyz(self, _request: Request) -> PlainTextResponse:
        return PlainTextResponse("", 200 if self.refusal is None else 503)

    async def _realtime(self, websocket: WebSocket) -> None:
        await asyncio.to_thread(self._door.wait, PATIENCE_S)
        await websocket.accept("realtime")
        if self.refusal is not None:
            error = {"type": "server_error", "code": self.refusal, "message": "Not now."}
            event = {"type": "error", "event_id": "event_0", "error": error}
            await websocket.send_text(json.dumps(event))
            await websocket.close(1013, self.refusal)
            return
        line = Line(websocket, self._take)
        self.lines.append(line)
        await line.run(self._watched(self.script))

    def _watched(self, script: Script) -> Script:
        async def play(line: Line) -> None:
            try:
                await script(line)
            except Exception as failure:  # shown by the test's fixture, not lost in the thread
                self.failures.append(failure)
                raise

        return play


# -- scripts --------------------------------------------------------------------------------


async def silent(line: Line) -> None:
    """Say nothing."""


def response(response_id: str, status: str = "in_progress", **more: object) -> Event:
    """A response object."""
    return {"object": "realtime.response", "id": response_id, "status": status, **more}


async def begin_answer(line: Line, name: str) -> None:
    """The events before an answer's first words; its ids are `resp_NAME` and `item_NAME`."""
    item = {"type": "message", "role": "assistant", "id": f"item_{name}", "content": []}
    place = {"response_id": f"resp_{name}", "item_id": f"item_{name}", "output_index": 0}
    await line.send("response.created", response=response(f"resp_{name}"))
    await line.send(
        "response.output_item.added", response_id=f"resp_{name}", output_index=0, item=item
    )
    await line.send("conversation.item.added", item=item, previous_item_id=None)
    part = {"type": "audio", "transcript": ""}
    await line.send("response.content_part.added", **place, content_index=0, part=part)


async def say(line: Line, name: str, text: str) -> None:
    """Words of the answer."""
    place = {"response_id": f"resp_{name}", "item_id": f"item_{name}", "output_index": 0}
    await line.send("response.output_audio_transcript.delta", **place, content_index=0, delta=text)


async def sound(
    line: Line, name: str, pcm: NDArray[np.int16], *, generation: int, start_ms: float = 0
) -> None:
    """Audio of the answer, in frames, all at once."""
    place = {"response_id": f"resp_{name}", "item_id": f"item_{name}", "output_index": 0}
    step = FRAME_MS * WIRE_RATE_HZ // 1000
    for at in range(0, len(pcm), step):
        await line.send(
            "response.output_audio.delta",
            **place,
            content_index=0,
            delta=base64.b64encode(pcm[at : at + step].tobytes()).decode(),
            x_generation=generation,
            x_start_ms=start_ms + at * 1000 / WIRE_RATE_HZ,
        )


async def end_answer(
    line: Line, name: str, text: str, status: str = "completed", **more: object
) -> None:
    """The events after an answer's last words."""
    place = {"response_id": f"resp_{name}", "item_id": f"item_{name}", "output_index": 0}
    await line.send("response.output_audio.done", **place, content_index=0)
    await line.send(
        "response.output_audio_transcript.done", **place, content_index=0, transcript=text
    )
    await line.send("response.done", response=response(f"resp_{name}", status, **more))


async def answer(
    line: Line, name: str, text: str, pcm: NDArray[np.int16], *, generation: int
) -> None:
    """A whole answer."""
    await begin_answer(line, name)
    await say(line, name, text)
    await sound(line, name, pcm, generation=generation)
    await end_answer(line, name, text)


async def echo_question(line: Line) -> str:
    """Wait for a typed question, put it into the conversation, return it."""
    item = (await line.expect("conversation.item.create"))["item"]
    item = {**item, "id": item.get("id", f"item_question_{len(line.received)}")}
    await line.send("conversation.item.added", item=item, previous_item_id=None)
    await line.send("conversation.item.done", item=item, previous_item_id=None)
    await line.expect("response.create")
    return str(item["content"][0]["text"])


async def finish_turn(
    line: Line,
    turn_id: int,
    *,
    response_id: str,
    transcript: str,
    heard: str,
    outcome: str = "done",
    kind: str = "written",
) -> None:
    """What the extension says after a turn."""
    timeline = {
        "kind": kind,
        "speech_start_ms": -900.0 if kind == "spoken" else None,
        "speech_end_ms": 0.0 if kind == "spoken" else None,
        "endpoint_ms": 512.0 if kind == "spoken" else 0.0,
        "transcript_ms": 701.4 if kind == "spoken" else None,
        "first_text_ms": 768.2,
        "first_chunk_ms": 803.9,
        "first_audio_ms": 951.0,
        "first_sent_ms": 951.6,
        "first_heard_ms": 1014.5,
        "finished_ms": 3_000.0,
        "endpoint_wait_ms": 512.0 if kind == "spoken" else None,
        "server_ttfa_ms": 951.6,
        "client_ttfa_ms": 1014.5,
        "added_latency_ms": 439.6,
        "cut_in": False,
    }
    await line.send(
        "x.turn.timeline",
        turn_id=turn_id,
        outcome=outcome,
        response_id=response_id,
        transcript=transcript,
        heard=heard,
        timeline=timeline,
        drafted=0,
        accepted=0,
        speculation="none",
        wasted_tokens=0,
    )
