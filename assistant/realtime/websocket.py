"""One websocket carries one connection: events in and out as JSON text, until either side ends."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.websockets import WebSocket, WebSocketDisconnect

from assistant.realtime.connection import RealtimeConnection
from assistant.realtime.errors import (
    CLIENT_LEFT,
    IDLE,
    SHUTTING_DOWN,
    ConnectionEnded,
    ProtocolError,
)
from assistant.realtime.refusal import Denied, http_error
from assistant.realtime.wire import JsonObject

CLOSE_PATIENCE_S = 10.0
"""How long a client that does not read may delay being told why it was disconnected."""
SUBPROTOCOL = "realtime"
_KEY_SUBPROTOCOL = "openai-insecure-api-key."
_SERVICE_RESTART = 1012


def key_of(websocket: WebSocket) -> str | None:
    """Return the key that the client shows: a header, or (browsers can set none) a subprotocol."""
    scheme, _, key = websocket.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key:
        return key.strip()
    for offered in websocket.scope["subprotocols"]:
        if offered.startswith(_KEY_SUBPROTOCOL):
            return str(offered).removeprefix(_KEY_SUBPROTOCOL)
    return None


def foreign_origin(websocket: WebSocket) -> str | None:
    """Return the website whose page opens this websocket, unless it is our own or no page does.

    A browser lets any page open a websocket to any server, this machine's own included.
    """
    origin = websocket.headers.get("origin")
    if origin is None or urlsplit(origin).netloc == websocket.headers.get("host"):
        return None
    return origin


async def accept(websocket: WebSocket) -> None:
    """Accept the websocket; of the offered subprotocols, only the one without the key is named."""
    offered = SUBPROTOCOL in websocket.scope["subprotocols"]
    await websocket.accept(subprotocol=SUBPROTOCOL if offered else None)


async def converse(
    websocket: WebSocket, connection: RealtimeConnection, idle_close_s: float
) -> ConnectionEnded:
    """Carry events both ways until the connection is over; return why it is."""
    async with asyncio.TaskGroup() as group:
        parts = [
            # A client that does not read blocks the writing, so the end is waited for beside it.
            group.create_task(connection.wait_ended()),
            group.create_task(_read(websocket, connection)),
            group.create_task(_write(websocket, connection)),
            group.create_task(_wait_idle(connection, idle_close_s)),
        ]
        await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        over = [part for part in parts if part.done()]
        for part in parts:
            part.cancel()
    return over[0].result()


async def close(websocket: WebSocket, ended: ConnectionEnded) -> None:
    """Tell the client why it is disconnected, if it still listens."""
    with suppress(TimeoutError, WebSocketDisconnect, RuntimeError):  # RuntimeError: closed already
        async with asyncio.timeout(CLOSE_PATIENCE_S):
            await websocket.close(ended.code, ended.reason)


async def deny(websocket: WebSocket, denied: Denied) -> None:
    """Refuse the handshake."""
    await websocket.send_denial_response(http_error(denied.status, denied.error))


async def turn_away(websocket: WebSocket, code: int, error: ProtocolError) -> None:
    """Refuse a session to a client whose websocket was accepted: an error event, then the close."""
    event: JsonObject = {"type": "error", "event_id": "event_0", "error": error.as_wire()}
    with suppress(WebSocketDisconnect):
        await websocket.send_text(json.dumps(event))
    await close(websocket, ConnectionEnded(code, error.code))


async def _read(websocket: WebSocket, connection: RealtimeConnection) -> ConnectionEnded:
    while True:
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            stopping = message.get("code") == _SERVICE_RESTART
            return ConnectionEnded(*SHUTTING_DOWN if stopping else CLIENT_LEFT)
        text = message.get("text")
        await connection.receive(message["bytes"] if text is None else text)


async def _write(websocket: WebSocket, connection: RealtimeConnection) -> ConnectionEnded:
    try:
        while True:
            event = await connection.next_event()
            await websocket.send_text(json.dumps(event, separators=(",", ":")))
    except ConnectionEnded as ended:
        return ended
    except WebSocketDisconnect:
        return ConnectionEnded(*CLIENT_LEFT)


async def _wait_idle(connection: RealtimeConnection, idle_close_s: float) -> ConnectionEnded:
    clock = asyncio.get_running_loop().time
    while True:
        left_s = connection.active_s + idle_close_s - clock()
        if left_s <= 0:
            return ConnectionEnded(*IDLE)
        await asyncio.sleep(left_s)
