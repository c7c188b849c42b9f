"""Dialogues over a real websocket on this machine, and how a server can refuse one."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from assistant.client import connect
from assistant.errors import AccessDenied, DialogueEnded, ServerNotReady, ServerUnreachable
from assistant.transport import websocket_url
from tests.unit.assistant.scripted_server import ScriptedServer

KEY = "right"


@asynccontextmanager
async def websocket_server(
    status: HTTPStatus | None = None, close_code: int | None = None
) -> AsyncIterator[str]:
    """A scripted server on a free port that refuses with `status`, or hangs up when asked."""

    def admit(connection: ServerConnection, request: Request) -> Response | None:
        if status is not None:
            return connection.respond(status, "")
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            return connection.respond(HTTPStatus.UNAUTHORIZED, "")
        return None

    async def talk(websocket: ServerConnection) -> None:
        script = ScriptedServer()

        async def answer() -> None:
            while True:
                await websocket.send(json.dumps(await script.receive()))

        answering = asyncio.create_task(answer())
        async for message in websocket:
            event = json.loads(message)
            if close_code is not None and event["type"] == "response.create":
                await websocket.close(close_code, "because")
            await script.send(event)
        answering.cancel()

    async with serve(talk, "127.0.0.1", 0, process_request=admit) as server:
        yield f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"


def test_a_question_is_answered_over_the_wire() -> None:
    async def talk() -> None:
        async with websocket_server() as url, connect(url, KEY) as dialogue:
            assert (await dialogue.ask("Anyone there?")).text == "Hi."

    asyncio.run(talk())


def test_without_a_server_the_error_says_how_to_start_one() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # taken, but nobody listens
        url = f"ws://127.0.0.1:{free.getsockname()[1]}"

        async def talk() -> None:
            async with connect(url):
                pass

        with pytest.raises(ServerUnreachable, match="assistant serve"):
            asyncio.run(talk())


def test_a_wrong_key_is_denied() -> None:
    async def talk() -> None:
        async with websocket_server() as url, connect(url, "wrong"):
            pass

    with pytest.raises(AccessDenied, match="does not accept this key"):
        asyncio.run(talk())


def test_a_key_that_was_not_given_is_asked_for_by_the_ways_to_give_it() -> None:
    async def talk() -> None:
        async with websocket_server() as url, connect(url):
            pass

    with pytest.raises(AccessDenied, match=r"asks for a key.*--api-key.*ASSISTANT_API_KEY"):
        asyncio.run(talk())


def test_a_server_that_still_loads_is_not_ready() -> None:
    async def talk() -> None:
        async with websocket_server(HTTPStatus.SERVICE_UNAVAILABLE) as url, connect(url):
            pass

    with pytest.raises(ServerNotReady, match="try again"):
        asyncio.run(talk())


@pytest.mark.parametrize("status", [HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN])
def test_an_address_that_takes_no_dialogues_is_said_to_be_wrong(status: HTTPStatus) -> None:
    async def talk() -> None:
        async with websocket_server(status) as url, connect(url):
            pass

    with pytest.raises(ServerUnreachable, match=str(status.value)):
        asyncio.run(talk())


@pytest.mark.parametrize(
    ("code", "error"),
    [(1000, DialogueEnded), (1011, DialogueEnded), (1013, ServerNotReady), (1008, AccessDenied)],
)
def test_a_server_that_hangs_up_says_why(code: int, error: type[Exception]) -> None:
    async def talk() -> None:
        async with websocket_server(close_code=code) as url, connect(url, KEY) as dialogue:
            await dialogue.ask("Hello?")

    with pytest.raises(error, match="because"):
        asyncio.run(talk())


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("localhost:8765", "ws://localhost:8765/v1/realtime"),
        ("ws://host:1", "ws://host:1/v1/realtime"),
        ("http://host:1/", "ws://host:1/v1/realtime"),
        ("https://host", "wss://host/v1/realtime"),
        ("wss://host/v1/realtime?model=x", "wss://host/v1/realtime?model=x"),
        ("ws://host/elsewhere", "ws://host/elsewhere"),
    ],
)
def test_an_address_may_leave_out_what_is_understood(given: str, meant: str) -> None:
    assert websocket_url(given) == meant


def test_what_is_no_address_is_said_to_be_none() -> None:
    async def talk() -> None:
        async with connect("nonsense://"):
            pass

    with pytest.raises(ServerUnreachable, match="address"):
        asyncio.run(talk())
