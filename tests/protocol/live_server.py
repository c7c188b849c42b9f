"""The real web server on a free port, in a thread, over stages that need no model."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
from starlette.applications import Starlette

from assistant.config import Config
from assistant.server import create_app, listen, make_uvicorn
from assistant.stages import Stages
from tests.fakes import fake_stages

PATIENCE_S = 20.0
"""No test waits longer than this for what must happen."""
LOADING_PATIENCE_S = 180.0
"""The same, for models to be loaded and warmed on a busy machine."""


@dataclass(frozen=True)
class LiveServer:
    """A server that runs while the test does."""

    address: str
    app: Starlette

    @property
    def http(self) -> str:
        return f"http://{self.address}"

    @property
    def websocket(self) -> str:
        return f"ws://{self.address}/v1/realtime"

    def metric(self, line: str) -> float:
        """Return the value of one metric, named with its labels; 0 if it was never counted."""
        page = httpx.get(f"{self.http}/metrics").text
        values = [row.rpartition(" ")[2] for row in page.splitlines() if row.startswith(f"{line} ")]
        return float(values[0]) if values else 0.0

    def wait_for_metric(self, line: str, value: float) -> None:
        """Wait until a metric has a value."""
        deadline_s = time.monotonic() + PATIENCE_S
        while self.metric(line) != value:
            assert time.monotonic() < deadline_s, f"{line} is {self.metric(line)}, not {value}"


def scripted(config: Config) -> Stages:
    """Return stages that need no model."""
    return fake_stages(config=config)


@contextmanager
def serving(
    config: Config | None = None, make_stages: Callable[[Config], Stages] | None = scripted
) -> Iterator[LiveServer]:
    """Run a server until it is ready; leaving shuts it down gracefully.

    With `make_stages=None` it loads the models that `config` names.
    """
    config = config or Config()
    loaded = threading.Event()
    stages = make_stages(config) if make_stages else None
    app = create_app(config, stages=stages, on_ready=loaded.set, on_failure=loaded.set)
    listener = listen("127.0.0.1", 0)
    host, port = listener.getsockname()
    server = make_uvicorn(app, config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    try:
        live = LiveServer(f"{host}:{port}", app)
        assert loaded.wait(LOADING_PATIENCE_S), "the server was not ready in time"
        assert app.state.server.failure is None, app.state.server.failure
        yield live
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
