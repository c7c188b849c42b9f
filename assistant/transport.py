"""What carries a dialogue's events: a websocket to a server, or calls within this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_websocket
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidStatus,
    InvalidURI,
)

from assistant.errors import (
    AccessDenied,
    AssistantError,
    DialogueEnded,
    ServerNotReady,
    ServerUnreachable,
)

if TYPE_CHECKING:
    from assistant.stages import Stages

ENDPOINT = "/v1/realtime"
OPEN_TIMEOUT_S = 10.0
_TRY_AGAIN_LATER = 1013
_POLICY_VIOLATION = 1008


class Transport(Protocol):
    """Carries events both ways, in order."""

    async def send(self, event: Mapping[str, object]) -> None:
        """Hand over one client event. Raises `DialogueEnded`."""

    async def receive(self) -> dict[str, Any]:
        """Return the next server event. Raises `DialogueEnded`."""


class WebsocketTransport:
    """Events as JSON text over a websocket."""

    def __init__(self, websocket: ClientConnection) -> None:
        self._websocket = websocket
        self._complaint: str | None = None
        """The last error the server sent: where it hangs up, that says why in words."""

    async def send(self, event: Mapping[str, object]) -> None:
        """Hand over one client event. Raises `DialogueEnded`."""
        try:
            await self._websocket.send(json.dumps(event))
        except ConnectionClosed as closed:
            raise self._ended(closed) from closed

    async def receive(self) -> dict[str, Any]:
        """Return the next server event. Raises `DialogueEnded`."""
        try:
            event: dict[str, Any] = json.loads(await self._websocket.recv())
        except ConnectionClosed as closed:
            raise self._ended(closed) from closed
        if event["type"] == "error":
            self._complaint = event["error"]["message"]
        return event

    def _ended(self, closed: ConnectionClosed) -> AssistantError:
        close = closed.rcvd
        if close is None:
            return DialogueEnded("The connection to the server broke off: open a new dialogue.")
        reason = close.reason or f"close code {close.code}"
        if close.code == _TRY_AGAIN_LATER:
            return ServerNotReady(self._complaint or f"The server is busy: {reason}")
        if close.code == _POLICY_VIOLATION:
            return AccessDenied(f"The server refused this dialogue: {reason}")
        return DialogueEnded(f"The server ended the dialogue: {reason}")


@asynccontextmanager
async def open_websocket(url: str, api_key: str | None) -> AsyncIterator[Transport]:
    """Connect to a server; `url` may leave out the scheme and the path.

    Raises `ServerUnreachable`, `AccessDenied` or `ServerNotReady`.
    """
    address = websocket_url(url)
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        websocket = await connect_websocket(
            address,
            additional_headers=headers,
            open_timeout=OPEN_TIMEOUT_S,
            max_size=None,  # the server is trusted with the size of its own events
        )
    except InvalidURI as error:
        raise ServerUnreachable(
            f"{url!r} is no address of a server: write it like ws://127.0.0.1:8765"
        ) from error
    except InvalidStatus as refused:
        raise _refusal(address, refused.response.status_code, api_key) from refused
    except (TimeoutError, OSError, InvalidHandshake) as error:
        raise ServerUnreachable(
            f"No assistant answers at {address} ({error or type(error).__name__}): "
            "start one with `assistant serve`, or correct the address."
        ) from error
    try:
        yield WebsocketTransport(websocket)
    finally:
        await websocket.close()


@asynccontextmanager
async def open_local(stages: Stages) -> AsyncIterator[Transport]:
    """Open a session on stages loaded in this process."""
    # A client of a distant server needs none of what the stages bring with them.
    from assistant.realtime.connection import RealtimeConnection
    from assistant.realtime.errors import ConnectionEnded

    class LocalTransport:
        def __init__(self) -> None:
            self._one_sender = asyncio.Lock()

        async def send(self, event: Mapping[str, object]) -> None:
            async with self._one_sender:
                await connection.receive(dict(event))

        async def receive(self) -> dict[str, Any]:
            try:
                return await connection.next_event()
            except ConnectionEnded as ended:
                raise DialogueEnded(f"The assistant ended the dialogue: {ended}") from ended

    connection = RealtimeConnection(stages)
    await connection.__aenter__()
    try:
        yield LocalTransport()
    finally:
        # What went wrong in the caller's block is none of the session's: it is only told the end.
        await connection.__aexit__(None, None, None)


def websocket_url(url: str) -> str:
    """Complete an address: `host:port` and `http://host` become the websocket's own.

    >>> websocket_url("localhost:8765")
    'ws://localhost:8765/v1/realtime'
    """
    parts = urlsplit(url if "://" in url else f"ws://{url}")
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
    path = parts.path if parts.path.strip("/") else ENDPOINT
    return urlunsplit((scheme, parts.netloc, path, parts.query, ""))


def _refusal(address: str, status: int, api_key: str | None) -> AssistantError:
    if status == HTTPStatus.UNAUTHORIZED and not api_key:
        return AccessDenied(
            f"{address} asks for a key: give one of the server's api_keys with --api-key or in "
            "ASSISTANT_API_KEY, or from Python as api_key."
        )
    if status == HTTPStatus.UNAUTHORIZED:
        return AccessDenied(
            f"{address} does not accept this key: pass one of the server's api_keys."
        )
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        return ServerNotReady(
            f"{address} is not ready or full (HTTP {status}): try again in a moment."
        )
    return ServerUnreachable(
        f"{address} takes no dialogues (HTTP {status}): correct the address; "
        f"an assistant's own path is {ENDPOINT}."
    )
