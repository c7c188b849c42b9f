"""The running server: who gets in, what it says of itself, and what one client can do to others."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
from openai.types.realtime import ClientSecretCreateResponse
from pydantic import SecretStr
from starlette.testclient import TestClient
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin, Subprotocol

import assistant.server
from assistant.config import Config, LogConfig, ServerConfig
from assistant.errors import AddressUnavailable, ModelMissing
from assistant.realtime import RealtimeConnection, connection
from assistant.server import create_app, listen, serve
from assistant.stages import StageProgress, Stages
from tests.fakes import ScriptedLanguageModel, fake_stages
from tests.protocol.client import Event, silence, tone
from tests.protocol.live_server import PATIENCE_S, LiveServer, serving
from tests.protocol.ordering import Ordering
from tests.protocol.schema import check

KEY = "sk-for-the-tests"


def config(**server: Any) -> Config:
    return Config(server=ServerConfig(**server))


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with serving() as live:
        yield live


@pytest.fixture(scope="module")
def locked_server() -> Iterator[LiveServer]:
    with serving(config(api_keys=(SecretStr(KEY),))) as live:
        yield live


def receive(socket: ClientConnection) -> Event:
    event: Event = json.loads(socket.recv(timeout=PATIENCE_S))
    return event


def closing(socket: ClientConnection) -> tuple[int | None, str]:
    """Read on until the server closes; return its code and reason."""
    try:
        while True:
            socket.recv(timeout=PATIENCE_S)
    except ConnectionClosed as closed:
        assert closed.rcvd is not None, "the connection broke off without a word"
        return closed.rcvd.code, closed.rcvd.reason


def append(pcm: bytes) -> str:
    audio = base64.b64encode(pcm).decode()
    return json.dumps({"type": "input_audio_buffer.append", "audio": audio})


# -- a turn -------------------------------------------------------------------------------------


def test_a_spoken_turn_over_the_wire(server: LiveServer) -> None:
    ordering = Ordering()
    with connect(server.websocket) as socket:
        for piece in (tone(0.5), silence(1.0)):
            socket.send(append(piece))
        event: Event = {"type": ""}
        while event["type"] != "response.done":
            event = receive(socket)
            check(event)
            ordering.feed(event)
    ordering.finish()
    assert event["response"]["status"] == "completed"


def test_a_session_ends_when_its_client_leaves(server: LiveServer) -> None:
    with connect(server.websocket) as socket:
        receive(socket)
    server.wait_for_metric("assistant_sessions", 0)


def test_a_failure_inside_a_session_is_its_own(
    monkeypatch: pytest.MonkeyPatch, server: LiveServer
) -> None:
    async def broken(*arguments: object) -> None:
        raise RuntimeError("a mistake of ours")

    with connect(server.websocket) as other:
        receive(other)
        with connect(server.websocket) as socket:
            receive(socket)
            monkeypatch.setattr(RealtimeConnection, "receive", broken)
            socket.send("{}")
            assert closing(socket) == (1011, "internal_error")
            monkeypatch.undo()
        other.send("{}")
        assert receive(other)["type"] == "error"


# -- who gets in --------------------------------------------------------------------------------


def test_without_configured_keys_everybody_gets_in(server: LiveServer) -> None:
    with connect(server.websocket, additional_headers={"Authorization": "Bearer any"}) as socket:
        assert receive(socket)["type"] == "session.created"


def test_a_page_of_another_website_opens_no_session_unless_it_may(server: LiveServer) -> None:
    with pytest.raises(InvalidStatus) as refused:
        connect(server.websocket, origin=Origin("https://elsewhere.example"))
    assert refused.value.response.status_code == 403
    assert "allowed_origins" in json.loads(refused.value.response.body)["error"]["message"]
    with connect(server.websocket, origin=Origin(server.http)) as socket:
        assert receive(socket)["type"] == "session.created"
    with (
        serving(config(allowed_origins=("https://elsewhere.example",))) as open_server,
        connect(open_server.websocket, origin=Origin("https://elsewhere.example")) as socket,
    ):
        assert receive(socket)["type"] == "session.created"


def test_a_key_opens_a_session_from_any_page(locked_server: LiveServer) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    elsewhere = Origin("https://elsewhere.example")
    with connect(locked_server.websocket, origin=elsewhere, additional_headers=headers) as socket:
        assert receive(socket)["type"] == "session.created"


def test_a_key_opens_a_session(locked_server: LiveServer) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    with connect(locked_server.websocket, additional_headers=headers) as socket:
        assert receive(socket)["type"] == "session.created"


@pytest.mark.parametrize("key", [None, "wrong", KEY + "x", "ek_unknown", "ünïcode"])
def test_a_wrong_key_opens_none(locked_server: LiveServer, key: str | None) -> None:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with pytest.raises(InvalidStatus) as refused:
        connect(locked_server.websocket, additional_headers=headers)
    assert refused.value.response.status_code == 401
    body = json.loads(refused.value.response.body)
    assert body["error"]["code"] == "invalid_api_key"


def test_a_browser_shows_its_key_as_a_subprotocol_that_is_not_repeated(
    locked_server: LiveServer,
) -> None:
    offered = [Subprotocol("realtime"), Subprotocol(f"openai-insecure-api-key.{KEY}")]
    with connect(locked_server.websocket, subprotocols=offered) as socket:
        assert socket.subprotocol == "realtime"
        assert receive(socket)["type"] == "session.created"
        assert socket.response is not None
        assert KEY not in str(socket.response.headers)


def request_secret(server: LiveServer, key: str | None = KEY, **body: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.post(f"{server.http}/v1/realtime/client_secrets", json=body, headers=headers)


def test_a_client_secret_opens_the_session_it_was_made_for(locked_server: LiveServer) -> None:
    session = {"type": "realtime", "instructions": "Rhyme."}
    answer = request_secret(locked_server, session=session)
    secret = ClientSecretCreateResponse.model_validate(answer.json(), strict=True)
    assert secret.value.startswith("ek_")
    offered = [Subprotocol("realtime"), Subprotocol(f"openai-insecure-api-key.{secret.value}")]
    with connect(locked_server.websocket, subprotocols=offered) as socket:
        assert receive(socket)["session"]["instructions"] == "Rhyme."


@pytest.mark.parametrize("key", [None, "wrong", "ek_unknown"])
def test_only_a_key_makes_client_secrets(locked_server: LiveServer, key: str | None) -> None:
    assert request_secret(locked_server, key).status_code == 401


def test_a_client_secret_makes_no_client_secrets(locked_server: LiveServer) -> None:
    value = request_secret(locked_server).json()["value"]
    assert request_secret(locked_server, value).status_code == 401


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"session": {"audio": {"output": {"speed": 9}}}}, "session.audio.output.speed"),
        ({"session": {"type": "transcription"}}, "session.type"),
        ({"expires_after": {"seconds": 5}}, "expires_after.seconds"),
        ({"expires": 5}, "expires"),
    ],
)
def test_a_wrong_wish_for_a_secret_is_refused(
    locked_server: LiveServer, body: dict[str, Any], param: str
) -> None:
    answer = request_secret(locked_server, **body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize("body", [b"{", b"[]", b"[" * 100_000, b"x" * 2_000_000])
def test_a_body_that_is_no_request_is_refused(server: LiveServer, body: bytes) -> None:
    answer = httpx.post(f"{server.http}/v1/realtime/client_secrets", content=body)
    assert answer.status_code == 400


# -- limits -------------------------------------------------------------------------------------


def test_a_session_too_many_is_turned_away_until_another_ends() -> None:
    with serving(config(max_sessions=1)) as server:
        with connect(server.websocket) as first:
            receive(first)
            with connect(server.websocket) as second:
                event = receive(second)
                check(event)
                assert event["error"]["code"] == "too_many_sessions"
                assert closing(second) == (1013, "too_many_sessions")
        server.wait_for_metric("assistant_sessions", 0)
        with connect(server.websocket) as third:
            assert receive(third)["type"] == "session.created"
        assert server.metric('assistant_refused_sessions_total{reason="too_many_sessions"}') == 1


MIB = 1024 * 1024


def test_a_message_that_is_too_long_hurts_nobody() -> None:
    with serving(config(max_message_mib=1)) as server, connect(server.websocket) as other:
        receive(other)
        with connect(server.websocket) as socket:
            receive(socket)
            socket.send(" " * (MIB + 1))
            assert receive(socket)["error"]["code"] == "message_too_long"
            socket.send("{}")
            assert receive(socket)["error"]["code"] == "missing_required_parameter"
        with connect(server.websocket) as socket:
            receive(socket)
            with pytest.raises(ConnectionClosed):
                socket.send(" " * (8 * MIB))
                while True:
                    socket.recv(timeout=PATIENCE_S)
        other.send("{}")
        assert receive(other)["type"] == "error"


LONG_ITEM = {
    "id": "item_long",
    "type": "message",
    "role": "user",
    "content": [{"type": "input_text", "text": "word " * 10_000}],
}


def ask_for_long_answers(socket: ClientConnection, count: int) -> None:
    """Ask for `count` answers of 50 kB, without reading any."""
    socket.send(json.dumps({"type": "conversation.item.create", "item": LONG_ITEM}))
    retrieve = {"type": "conversation.item.retrieve", "item_id": "item_long"}
    for _ in range(count):
        socket.send(json.dumps(retrieve))


def test_a_client_that_stops_reading_is_told_why_it_was_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "READ_PATIENCE_S", 0.3)
    with serving(config(outbox_frames=16)) as server, connect(server.websocket) as other:
        receive(other)
        with connect(server.websocket, max_queue=1) as socket:
            ask_for_long_answers(socket, count=1_000)  # 50 MB: more than any socket buffers
            server.wait_for_metric('assistant_session_ends_total{reason="client_too_slow"}', 1)
            assert closing(socket) == (4008, "client_too_slow")
        other.send("{}")
        assert receive(other)["type"] == "error"


def test_a_client_that_asks_at_once_gets_every_answer() -> None:
    asked = 500
    with serving(config(outbox_frames=16)) as server, connect(server.websocket) as socket:
        receive(socket)
        for number in range(asked):
            socket.send(json.dumps({"type": "response.cancel", "event_id": str(number)}))
        answers = [receive(socket)["error"]["event_id"] for _ in range(asked)]
        assert answers == [str(number) for number in range(asked)]


def test_a_silent_session_is_closed() -> None:
    with serving(config(idle_close_s=0.2)) as server, connect(server.websocket) as socket:
        assert closing(socket) == (1000, "idle_timeout")


def test_two_hundred_sessions_leave_nothing_behind() -> None:
    async def scenario() -> None:
        stages = fake_stages()
        for _ in range(200):
            async with RealtimeConnection(stages) as session:
                await session.next_event()
                await session.receive(append(tone(0.1)))
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


def test_a_shutdown_says_goodbye() -> None:
    with ExitStack() as client:
        with serving() as server:
            socket = client.enter_context(connect(server.websocket))
            receive(socket)
        code, _ = closing(socket)
        assert code in (1001, 1012)  # going away, service restart


# -- what the server says of itself -------------------------------------------------------------


def test_health_page_and_metrics(server: LiveServer) -> None:
    assert httpx.get(f"{server.http}/healthz").json() == {"status": "ok"}
    ready = httpx.get(f"{server.http}/readyz")
    assert (ready.status_code, ready.json()["ready"]) == (200, True)
    page = httpx.get(f"{server.http}/")
    assert page.headers["content-type"].startswith("text/html")
    assert httpx.get(f"{server.http}/static/app.js").status_code == 200
    assert httpx.get(f"{server.http}/static/../server.py").status_code == 404
    metrics = httpx.get(f"{server.http}/metrics").text
    for name in (
        "assistant_turns_total",
        "assistant_server_ttfa_seconds",
        "assistant_event_loop_lag_seconds_count",
        "process_resident_memory_bytes",
    ):
        assert name in metrics


def test_until_every_stage_is_warm_the_server_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go_on: list[Callable[[], None]] = []

    @asynccontextmanager
    async def slow(
        config: Config, on_progress: Callable[[StageProgress], None], on_wait: object
    ) -> AsyncIterator[Any]:
        loop, warm = asyncio.get_running_loop(), asyncio.Event()
        go_on.append(lambda: loop.call_soon_threadsafe(warm.set))
        on_progress(StageProgress("vad", "ready"))
        on_progress(StageProgress("asr", "loading"))
        await warm.wait()
        yield fake_stages(config=config)

    monkeypatch.setattr(assistant.server, "open_stages", slow)
    announced: list[str] = []
    app = create_app(Config(), on_ready=lambda: announced.append("ready"))
    with TestClient(app) as client:
        before = client.get("/readyz")
        assert before.status_code == 503
        assert before.json()["stages"] == {
            "vad": "ready",
            "asr": "loading",
            "llm": "waiting",
            "tts": "waiting",
        }
        assert client.post("/v1/realtime/client_secrets").status_code == 503
        with client.websocket_connect("/v1/realtime") as socket:
            assert socket.receive_json()["error"]["code"] == "server_not_ready"
            assert socket.receive()["code"] == 1013
        go_on[0]()
        while not announced:
            client.get("/healthz")
        assert client.get("/readyz").status_code == 200


def test_a_port_in_use_is_said_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(assistant.server, "open_stages")  # would be a NameError
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressUnavailable, match=rf"127\.0\.0\.1:{port}.*another"):
            serve(config(port=port))


def test_an_address_that_is_not_ours_is_said() -> None:
    with pytest.raises(AddressUnavailable, match=r"192\.0\.2\.1"):  # reserved for documentation
        listen("192.0.2.1", 8765)


def test_on_every_address_of_the_machine_the_one_for_others_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @asynccontextmanager
    async def loaded(config: Config, *others: object) -> AsyncIterator[Any]:
        yield fake_stages(config=config)

    class Announced(Exception):
        pass

    told: list[str] = []

    def announce(line: str) -> None:
        told.append(line)
        if len(told) == 2:
            raise Announced

    monkeypatch.setattr(assistant.server, "open_stages", loaded)
    monkeypatch.setattr(assistant.server, "address_for_others", lambda host: "192.0.2.7")
    with pytest.raises(Announced):
        serve(config(host="0.0.0.0", port=0), announce=announce)
    port = told[0].split()[1].rpartition(":")[2]
    assert told[0].startswith("Ready: http://127.0.0.1:")
    assert f"http://192.0.2.7:{port} " in told[1]


def test_who_takes_no_note_of_a_failure_finds_it_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @asynccontextmanager
    async def missing(*arguments: object) -> AsyncIterator[Any]:
        raise ModelMissing("pull it")
        yield

    monkeypatch.setattr(assistant.server, "open_stages", missing)
    with TestClient(create_app(Config())) as client:
        while "error" not in client.get("/readyz").json():
            pass
    assert "pull it" in caplog.text
    caplog.clear()
    with pytest.raises(ModelMissing, match="pull it"):
        serve(config(port=0))
    assert "pull it" not in caplog.text  # the caller tells it


def test_a_stage_that_cannot_be_loaded_stops_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def missing(*arguments: object) -> AsyncIterator[Any]:
        raise ModelMissing("pull it")
        yield

    monkeypatch.setattr(assistant.server, "open_stages", missing)
    announced: list[str] = []
    with pytest.raises(ModelMissing, match="pull it"):
        serve(config(port=0), announce=announced.append)
    assert announced == []


# -- the log ------------------------------------------------------------------------------------


def refused_handshake(server: LiveServer, **options: Any) -> None:
    with pytest.raises(InvalidStatus):
        connect(server.websocket, **options)


def refused_secret(server: LiveServer, **options: Any) -> None:
    assert request_secret(server, options["additional_headers"]["Authorization"]).status_code == 401


@pytest.mark.parametrize("refuse", [refused_handshake, refused_secret])
def test_a_refused_key_is_one_line_of_the_log_that_does_not_show_the_key(
    caplog: pytest.LogCaptureFixture, refuse: Callable[..., None]
) -> None:
    shown = "sk-somebody-elses"
    with serving(config(api_keys=(SecretStr(KEY),))) as server:  # its end is the log's end
        refuse(server, additional_headers={"Authorization": f"Bearer {shown}"})
    (line,) = warnings_in(caplog)
    assert "127.0.0.1 (invalid_api_key): This key is not one of the server's keys" in line
    assert shown not in line


def test_a_refused_page_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with serving() as server:
        refused_handshake(server, origin=Origin("https://elsewhere.example"))
    (line,) = warnings_in(caplog)
    assert "https://elsewhere.example" in line and "allowed_origins" in line


def test_a_session_too_many_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with (
        serving(config(max_sessions=1)) as server,
        connect(server.websocket) as first,
        connect(server.websocket) as second,
    ):
        receive(first)
        closing(second)
    (line,) = warnings_in(caplog)
    assert "too_many_sessions" in line


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What an operator sees who asks for no details."""
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.parametrize("transcripts", [False, True])
def test_what_was_said_is_in_the_log_only_on_request(
    caplog: pytest.LogCaptureFixture, transcripts: bool
) -> None:
    caplog.set_level(logging.INFO)

    def short_answers(config: Config) -> Stages:
        return fake_stages(config=config, language=ScriptedLanguageModel(lines=("Paris.",)))

    logging_config = Config(log=LogConfig(transcripts=transcripts))
    with serving(logging_config, short_answers) as server, connect(server.websocket) as socket:
        asks = {"type": "session.update", "session": {"x": {"events": True}}}
        for message in (json.dumps(asks), append(tone(0.5)), append(silence(1.0))):
            socket.send(message)
        while receive(socket)["type"] != "x.turn.timeline":
            pass
        assert server.metric('assistant_turns_total{kind="spoken",outcome="done"}') == 1
    said = "\n".join(record.getMessage() for record in caplog.records)
    (line,) = [line for line in said.splitlines() if line.startswith("turn {")]
    turn = json.loads(line.removeprefix("turn "))
    assert turn["server_ttfa_ms"] > turn["endpoint_wait_ms"] > 0
    assert ("France" in said, "Paris" in said) == (transcripts, transcripts)
    assert turn.get("heard") == ("Paris." if transcripts else None)
