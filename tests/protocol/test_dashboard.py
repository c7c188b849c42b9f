"""The operator's page on the running server: a turn is shown, and only to who may look."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest
from pydantic import SecretStr
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin, Subprotocol

from assistant.config import Config, ServerConfig
from assistant.dashboard.service import MOST_WATCHING
from tests.protocol.client import Event
from tests.protocol.live_server import PATIENCE_S, LiveServer, serving

KEY = "sk-for-the-tests"
ELSEWHERE = Origin("https://elsewhere.example")


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with serving() as live:
        yield live


@pytest.fixture(scope="module")
def locked_server() -> Iterator[LiveServer]:
    with serving(Config(server=ServerConfig(api_keys=(SecretStr(KEY),)))) as live:
        yield live


def events(server: LiveServer) -> str:
    return f"ws://{server.address}/dashboard/events"


def receive(socket: ClientConnection, kind: str) -> Event:
    """Return the next record of a kind; others are passed over."""
    while True:
        event: Event = json.loads(socket.recv(timeout=PATIENCE_S))
        if event["type"] == kind:
            return event


def have_a_turn(server: LiveServer) -> None:
    with connect(server.websocket) as client:
        part = {"type": "input_text", "text": "What is the capital of France?"}
        item = {"type": "message", "role": "user", "content": [part]}
        session = {"type": "realtime", "output_modalities": ["text"]}
        client.send(json.dumps({"type": "session.update", "session": session}))
        client.send(json.dumps({"type": "conversation.item.create", "item": item}))
        client.send(json.dumps({"type": "response.create"}))
        while json.loads(client.recv(timeout=PATIENCE_S))["type"] != "response.done":
            pass


def test_a_turn_is_shown_to_who_watches_and_to_who_comes_later(server: LiveServer) -> None:
    with connect(events(server)) as watching:
        receive(watching, "greeting")
        have_a_turn(server)
        turn = receive(watching, "turn")
        with connect(events(server)) as later:
            assert receive(later, "turn") == turn
    assert turn["outcome"] == "done"
    assert "transcript" not in turn
    assert turn["timeline"]["first_text_ms"] >= 0


def test_the_load_tells_who_is_there(server: LiveServer) -> None:
    with connect(server.websocket) as client, connect(events(server)) as watching:
        client.recv(timeout=PATIENCE_S)
        while receive(watching, "load")["sessions"] != 1:
            pass
    with connect(events(server)) as watching:
        while receive(watching, "load")["sessions"] != 0:
            pass


def test_the_page_itself_holds_nothing_secret(locked_server: LiveServer) -> None:
    answer = httpx.get(f"{locked_server.http}/dashboard")
    assert answer.status_code == 200
    assert "text/html" in answer.headers["content-type"]
    assert KEY not in answer.text


@pytest.mark.parametrize("key", [None, "wrong", KEY + "x"])
def test_without_the_key_nothing_is_told(locked_server: LiveServer, key: str | None) -> None:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with pytest.raises(InvalidStatus) as refused:
        connect(events(locked_server), additional_headers=headers)
    assert refused.value.response.status_code == 401
    body = json.loads(refused.value.response.body)
    assert body["error"]["code"] == "invalid_api_key"


def test_the_key_of_one_users_session_shows_nobody_elses(locked_server: LiveServer) -> None:
    answer = httpx.post(
        f"{locked_server.http}/v1/realtime/client_secrets",
        json={},
        headers={"Authorization": f"Bearer {KEY}"},
    )
    headers = {"Authorization": f"Bearer {answer.json()['value']}"}
    with pytest.raises(InvalidStatus) as refused:
        connect(events(locked_server), additional_headers=headers)
    assert refused.value.response.status_code == 401


def test_a_browser_shows_the_key_as_a_subprotocol(locked_server: LiveServer) -> None:
    offered = [Subprotocol("realtime"), Subprotocol(f"openai-insecure-api-key.{KEY}")]
    with connect(events(locked_server), subprotocols=offered) as socket:
        assert socket.subprotocol == "realtime"
        receive(socket, "greeting")


def test_pages_of_other_websites_may_look_only_if_they_may_talk(server: LiveServer) -> None:
    with pytest.raises(InvalidStatus) as refused:
        connect(events(server), origin=ELSEWHERE)
    assert refused.value.response.status_code == 403
    with connect(events(server), origin=Origin(server.http)) as socket:
        receive(socket, "greeting")
    allowing = Config(server=ServerConfig(allowed_origins=(str(ELSEWHERE),)))
    with (
        serving(allowing) as open_server,
        connect(events(open_server), origin=ELSEWHERE) as socket,
    ):
        receive(socket, "greeting")


def test_only_so_many_may_watch_and_places_become_free(server: LiveServer) -> None:
    feed = server.app.state.server.dashboard.feed
    with ExitStack() as stack:
        for _ in range(MOST_WATCHING):
            receive(stack.enter_context(connect(events(server))), "greeting")
        with connect(events(server)) as one_more:
            error = receive(one_more, "error")["error"]
            assert error["code"] == "too_many_dashboards"
    while feed.watching:
        httpx.get(f"{server.http}/healthz")  # let the server notice
    with connect(events(server)) as socket:
        receive(socket, "greeting")
