"""The page at `/dashboard`, and the websocket that feeds it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from assistant.config import Config
from assistant.dashboard.feed import Feed
from assistant.dashboard.load import LoadMeter
from assistant.realtime.door import Door
from assistant.realtime.errors import CLIENT_LEFT, TRY_LATER, ConnectionEnded, ProtocolError
from assistant.realtime.outbox import Outbox
from assistant.realtime.refusal import Denied, log_refusal
from assistant.realtime.websocket import accept, close, deny, turn_away
from dspark import EngineMetrics

PAGE = Path(__file__).parent.parent / "web" / "dashboard.html"
LOAD_PERIOD_S = 1.0
"""How often the load is told."""
MOST_WATCHING = 16
"""Pages that may be open at the same time."""


class Dashboard:
    """What is shown, and to whom.

    `sessions` tells how many are open.
    """

    def __init__(
        self,
        config: Config,
        *,
        door: Door,
        sessions: Callable[[], int],
        engine_metrics: Callable[[], EngineMetrics | None],
    ) -> None:
        self.feed = Feed(config)
        self.load = LoadMeter(engine_metrics)
        self._door = door
        self._sessions = sessions

    @property
    def routes(self) -> list[BaseRoute]:
        """Where to find the page and its feed."""
        return [
            Route("/dashboard", self.page),
            WebSocketRoute("/dashboard/events", self.events),
        ]

    async def run(self) -> None:
        """Tell the load, until cancelled."""
        while True:
            self.feed.tell_load(self.load.take(at_s=time.time(), sessions=self._sessions()))
            await asyncio.sleep(LOAD_PERIOD_S)

    async def page(self, request: Request) -> Response:
        """The page itself, which shows nothing to who may not look."""
        return FileResponse(PAGE) if PAGE.is_file() else Response(status_code=404)

    async def events(self, websocket: WebSocket) -> None:
        """What the page shows, until it leaves, falls behind, or the server stops."""
        try:
            self._door.check_operator(websocket)
        except Denied as denied:
            log_refusal("the dashboard", websocket, denied.error)
            await deny(websocket, denied)
            return
        await accept(websocket)
        if self.feed.watching >= MOST_WATCHING:
            message = "As many dashboards are open as may be; close another one."
            await turn_away(websocket, TRY_LATER, ProtocolError("too_many_dashboards", message))
            return
        with self.feed.watch() as outbox:
            ended = await _show(websocket, outbox)
        await close(websocket, ended)


async def _show(websocket: WebSocket, outbox: Outbox) -> ConnectionEnded:
    async with asyncio.TaskGroup() as group:
        parts = [
            # A page that does not read blocks the writing, so the end is waited for beside it.
            group.create_task(outbox.wait_ended()),
            group.create_task(_wait_gone(websocket)),
            group.create_task(_write(websocket, outbox)),
        ]
        await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        over = [part for part in parts if part.done()]
        for part in parts:
            part.cancel()
    return over[0].result()


async def _wait_gone(websocket: WebSocket) -> ConnectionEnded:
    """Read on until the page leaves; what it says is of no interest."""
    while (await websocket.receive())["type"] != "websocket.disconnect":
        pass
    return ConnectionEnded(*CLIENT_LEFT)


async def _write(websocket: WebSocket, outbox: Outbox) -> ConnectionEnded:
    try:
        while True:
            await websocket.send_text(json.dumps(await outbox.take(), separators=(",", ":")))
    except ConnectionEnded as ended:
        return ended
    except WebSocketDisconnect:
        return ConnectionEnded(*CLIENT_LEFT)
