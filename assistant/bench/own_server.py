"""A server of its own for the bench: the real one, in another process, on a free port."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from assistant.config import ENVIRONMENT_PREFIX
from assistant.errors import ServerNotReady

START_S = 180.0
"""How long a server may take to load its models."""

_ALONE = {"server.host": "127.0.0.1", "server.port": "0", "server.api_keys": "[]"}


@asynccontextmanager
async def own_server(
    config: Path | None, changes: Mapping[str, str] | None = None
) -> AsyncIterator[str]:
    """Start `assistant serve` and yield its address once it is ready.

    `changes` are keys of the configuration, such as `{"endpoint.speculate": "false"}`.  Raises
    `ServerNotReady`, with what it said, if it does not come up.
    """
    command = [sys.executable, "-c", "from assistant.cli import app; app()", "serve"]
    command += [] if config is None else ["--config", str(config)]
    overrides = {
        ENVIRONMENT_PREFIX + key.upper().replace(".", "__"): value
        for key, value in {**_ALONE, **(changes or {})}.items()
    }
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *command,
            env={**os.environ, **overrides},
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the bench, which then stops it
        )
        try:
            address = await _address(process)
            if address is None:
                log.seek(0)
                told = log.read().decode(errors="replace").strip()
                raise ServerNotReady(f"The bench's server did not start:\n{told}")
            yield address
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def _address(process: asyncio.subprocess.Process) -> str | None:
    """What the server announces when it is ready; nothing if it ends or takes too long."""
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_S):
            async for line in process.stdout:
                if line.startswith(b"Ready: "):
                    return line.split()[1].decode()
    except TimeoutError:
        pass
    return None
