"""The web server: the protocol's websocket, the pages, health and metrics."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import socket
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import uvicorn
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket

from assistant.addresses import address_for_others, is_wildcard
from assistant.config import Config
from assistant.dashboard import Dashboard
from assistant.effects import Notice, TurnFinished
from assistant.errors import AddressUnavailable
from assistant.metrics import CONTENT_TYPE, Metrics
from assistant.realtime.client_secrets import KeyRefused, Keys, SecretRequest, TooManySecrets
from assistant.realtime.connection import RealtimeConnection
from assistant.realtime.door import Door
from assistant.realtime.errors import (
    INTERNAL_ERROR,
    TRY_LATER,
    ConnectionEnded,
    ProtocolError,
    from_validation,
)
from assistant.realtime.refusal import (
    Denied,
    RefusableWebSocket,
    full,
    http_error,
    log_refusal,
    not_ready,
)
from assistant.realtime.websocket import (
    accept,
    close,
    converse,
    deny,
    turn_away,
)
from assistant.stages import STAGES, StageProgress, Stages, open_stages
from assistant.workers import Urgency
from dspark import EngineMetrics

logger = logging.getLogger(__name__)

WEB = Path(__file__).parent / "web"
MOST_BODY_BYTES = 1024 * 1024
STALLED_CLIENT_S = 30
"""A peer that takes no data for this long is dropped by the kernel, where that can be asked for."""
SHUTDOWN_PATIENCE_S = 5


class AssistantServer:
    """What one server process holds: the stages, the keys, the metrics, the count of sessions."""

    def __init__(
        self,
        config: Config,
        stages: Stages | None = None,
        on_progress: Callable[[StageProgress], None] | None = None,
    ) -> None:
        self.config = config
        self.metrics = Metrics()
        self._keys = Keys(key.get_secret_value() for key in config.server.api_keys)
        self._door = Door(self._keys, config.server.allowed_origins)
        self.dashboard = Dashboard(
            config,
            door=self._door,
            sessions=lambda: self._sessions,
            engine_metrics=self._engine_metrics,
        )
        self.failure: BaseException | None = None
        """Why the stages could not be loaded."""
        self._stages = stages
        self._progress = dict.fromkeys(STAGES, "waiting" if stages is None else "ready")
        self._on_progress = on_progress
        self._sessions = 0

    # -- life ---------------------------------------------------------------------------

    async def run(self, on_ready: Callable[[], None], on_failure: Callable[[], None]) -> None:
        """Load the stages, unless they were given, and hold them until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.metrics.watch_event_loop(self.dashboard.load.note_lag))
            tasks.create_task(self.dashboard.run())
            if self._stages is None:
                tasks.create_task(self._hold_stages(on_ready, on_failure))
            else:
                on_ready()

    async def _hold_stages(
        self, on_ready: Callable[[], None], on_failure: Callable[[], None]
    ) -> None:
        try:
            async with open_stages(self.config, self._note_progress, self._note_wait) as stages:
                self._stages = stages
                on_ready()
                await asyncio.Event().wait()  # until cancelled
        except Exception as error:
            self.failure = error
            on_failure()
        finally:
            self._stages = None

    def _note_progress(self, progress: StageProgress) -> None:
        self._progress[progress.stage] = progress.state
        if self._on_progress is not None:
            self._on_progress(progress)

    def _note_wait(self, worker: str, urgency: Urgency, waited_s: float) -> None:
        self.metrics.observe_wait(worker, urgency, waited_s)
        self.dashboard.load.note_wait(worker, urgency, waited_s)

    def _engine_metrics(self) -> EngineMetrics | None:
        stages = self._stages
        return stages.engine_metrics() if stages and stages.engine_metrics else None

    # -- http ---------------------------------------------------------------------------

    async def index(self, request: Request) -> Response:
        """The browser client."""
        page = WEB / "index.html"
        return FileResponse(page) if page.is_file() else Response(status_code=404)

    async def healthz(self, request: Request) -> Response:
        """Whether the process answers."""
        return JSONResponse({"status": "ok"})

    async def readyz(self, request: Request) -> Response:
        """Whether a session opened now would be answered at full speed, and if not, why."""
        ready = self._stages is not None
        body: dict[str, object] = {"ready": ready, "stages": self._progress}
        if self.failure is not None:
            body["error"] = str(self.failure)
        return JSONResponse(body, 200 if ready else 503)

    async def metrics_page(self, request: Request) -> Response:
        """All metrics, for Prometheus."""
        return Response(self.metrics.exposition(), media_type=CONTENT_TYPE)

    async def create_client_secret(self, request: Request) -> Response:
        """Issue a short-lived key that a browser may hold."""
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        try:
            self._keys.check(key.strip() if scheme.lower() == "bearer" else None)
        except KeyRefused as refused:
            error = ProtocolError("invalid_api_key", str(refused))
            log_refusal("a client secret", request, error)
            return http_error(401, error)
        if self._stages is None:
            return http_error(503, not_ready())
        try:
            wished = _secret_request(await _body(request))
            # A session that could not be opened later is refused now, where it can be mended.
            preview = RealtimeConnection.session_preview(self._stages, wished.session)
            secret = self._keys.issue(wished)
        except ProtocolError as error:
            return http_error(400, error)
        except TooManySecrets as error:
            return http_error(429, ProtocolError("too_many_secrets", str(error)))
        session = {"id": f"sess_{uuid.uuid4().hex[:16]}", **preview}
        return JSONResponse(
            {"value": secret.value, "expires_at": secret.expires_at_s, "session": session}
        )

    # -- websocket ----------------------------------------------------------------------

    async def realtime(self, websocket: WebSocket) -> None:
        """One session of the realtime protocol."""
        try:
            session = self._door.session_of(websocket)
        except Denied as denied:
            self._note_refusal(websocket, denied.error)
            await deny(websocket, denied)
            return
        await accept(websocket)
        stages = self._stages
        if stages is None:
            await self._turn_away(websocket, not_ready())
        elif self._sessions >= self.config.server.max_sessions:
            await self._turn_away(websocket, full())
        else:
            await close(websocket, await self._hold_session(websocket, stages, session))

    async def _turn_away(self, websocket: WebSocket, error: ProtocolError) -> None:
        """Refuse a session for now, where a page can read why."""
        self._note_refusal(websocket, error)
        await turn_away(websocket, TRY_LATER, error)

    def _note_refusal(self, websocket: WebSocket, error: ProtocolError) -> None:
        self.metrics.session_refused(error.code)
        log_refusal("a session", websocket, error)

    async def _hold_session(
        self, websocket: WebSocket, stages: Stages, session: dict[str, object]
    ) -> ConnectionEnded:
        limits = self.config.server
        connection = RealtimeConnection(
            stages,
            session=session,
            outbox_limit=limits.outbox_frames,
            message_limit=limits.max_message_mib * 1024 * 1024,
            observe=lambda notice: self._observe(connection.session_id, notice),
        )
        ended = ConnectionEnded(*INTERNAL_ERROR)
        self._sessions += 1
        self.metrics.session_opened()
        try:
            async with connection:
                ended = await converse(websocket, connection, limits.idle_close_s)
        except Exception:
            logger.exception("session %s failed", connection.session_id)
        finally:
            self._sessions -= 1
            self.metrics.session_closed(ended.reason, connection.voided_frames)
        logger.info("session %s ended: %s", connection.session_id, ended.reason)
        return ended

    def _observe(self, session_id: str, notice: Notice) -> None:
        self.metrics.observe(notice)
        if isinstance(notice, TurnFinished):
            self.dashboard.feed.tell_turn(session_id, notice)
            logger.info("turn %s", json.dumps(self._turn_record(session_id, notice)))

    def _turn_record(self, session_id: str, turn: TurnFinished) -> dict[str, object]:
        """What the log says of a turn; what was said stays out of it unless asked for."""
        record: dict[str, object] = {
            "session": session_id,
            "turn": turn.turn_id,
            "outcome": turn.outcome,
            "response": turn.response_id,
            "drafted": turn.drafted,
            "accepted": turn.accepted,
            "speculation": turn.speculation,
            "wasted_tokens": turn.wasted_tokens,
            **turn.timeline.as_milliseconds(),
        }
        if self.config.log.transcripts:
            record |= {"transcript": turn.transcript, "heard": turn.heard}
        return record


def create_app(
    config: Config,
    *,
    stages: Stages | None = None,
    on_progress: Callable[[StageProgress], None] | None = None,
    on_ready: Callable[[], None] = lambda: None,
    on_failure: Callable[[], None] | None = None,
) -> Starlette:
    """Return the ASGI app; `app.state.server` is its `AssistantServer`.

    Unless `stages` are given, they load in the background once the app has started; until then
    `/readyz` says what is still missing, and sessions are turned away.  `on_failure` is for who
    tells `failure` to the user; without it the log does.
    """
    server = AssistantServer(config, stages, on_progress)

    def log_failure() -> None:
        logger.error("the stages could not be loaded: %s", server.failure)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        running = asyncio.create_task(server.run(on_ready, on_failure or log_failure))
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    app = Starlette(
        lifespan=lifespan,
        routes=[
            Route("/", server.index),
            *server.dashboard.routes,
            Route("/healthz", server.healthz),
            Route("/readyz", server.readyz),
            Route("/metrics", server.metrics_page),
            Route("/v1/realtime/client_secrets", server.create_client_secret, methods=["POST"]),
            WebSocketRoute("/v1/realtime", server.realtime),
            Mount("/static", StaticFiles(directory=WEB, check_dir=False)),
        ],
    )
    app.state.server = server
    return app


def serve(
    config: Config,
    *,
    announce: Callable[[str], None] = print,
    on_progress: Callable[[StageProgress], None] | None = None,
) -> None:
    """Serve until interrupted; `announce` is told the address once every stage is warm.

    Raises `AddressUnavailable` before anything is loaded, and the typed error of a stage that
    cannot be loaded.
    """
    listener = listen(config.server.host, config.server.port)
    host, port = listener.getsockname()[:2]
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    address = f"[{shown}]:{port}" if ":" in shown else f"{shown}:{port}"

    def on_ready() -> None:
        announce(f"Ready: http://{address} (protocol: ws://{address}/v1/realtime)")
        if is_wildcard(host) and (ours := address_for_others(host)):
            elsewhere = f"[{ours}]:{port}" if ":" in ours else f"{ours}:{port}"
            announce(
                f"From other machines: http://{elsewhere} (their browsers give the microphone "
                "over HTTPS only)"
            )

    def on_failure() -> None:
        server.should_exit = True

    logging.basicConfig(
        level=config.log.level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    app = create_app(config, on_progress=on_progress, on_ready=on_ready, on_failure=on_failure)
    server = make_uvicorn(app, config)
    with listener, suppress(KeyboardInterrupt):  # the way to stop it
        server.run(sockets=[listener])
    if app.state.server.failure is not None:
        raise app.state.server.failure


def make_uvicorn(app: Starlette, config: Config) -> uvicorn.Server:
    """Return the uvicorn server for `app`, with the limits of `config`."""
    settings = uvicorn.Config(
        app,
        ws=RefusableWebSocket,
        # A message somewhat too long is answered by an error event; this is where memory ends.
        ws_max_size=2 * config.server.max_message_mib * 1024 * 1024,
        ws_per_message_deflate=False,  # base64 sound hardly shrinks, and every event would wait
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_PATIENCE_S,
    )
    return uvicorn.Server(settings)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises `AddressUnavailable`.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise AddressUnavailable(
                f"Something already listens on {host}:{port}: stop it, or set [server] port to "
                "another one (0 picks a free one)."
            ) from error
        raise AddressUnavailable(
            f"Cannot listen on {host}:{port} ({error}): correct [server] host and port."
        ) from error
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        milliseconds = STALLED_CLIENT_S * 1000
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    return listener


async def _body(request: Request) -> bytes:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_BODY_BYTES:
            raise ProtocolError("body_too_long", f"the body exceeds {MOST_BODY_BYTES} bytes")
    return body


def _secret_request(body: bytes) -> SecretRequest:
    try:
        given = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise ProtocolError("invalid_json", f"the body is not valid JSON: {error}") from None
    try:
        return SecretRequest.model_validate(given)
    except ValidationError as error:
        raise from_validation(error, given) from None
