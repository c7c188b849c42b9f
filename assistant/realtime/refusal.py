"""Who gets no session is told why, and so is the log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from assistant.errors import AssistantError
from assistant.realtime.errors import ProtocolError

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent

logger = logging.getLogger(__name__)


class RefusableWebSocket(WebSocketsSansIOProtocol):
    """uvicorn's websocket, whose handshake also ends with the last of a refusal's body.

    uvicorn sends the refusal (the ASGI extension `websocket.http.response`) as it should, but then
    logs every one as "ASGI callable returned without completing handshake.", an error that would
    be ours if it were true.
    """

    async def send(self, message: ASGISendEvent) -> None:
        """Send what the application says."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True


def log_refusal(what: str, client: HTTPConnection, error: ProtocolError) -> None:
    """Log who was refused what, and why; no message of ours repeats the key that was shown."""
    host = client.client.host if client.client else "an unknown address"
    logger.warning("refused %s to %s (%s): %s", what, host, error.code, error.message)


class Denied(AssistantError):
    """The handshake is to be answered with the HTTP `status` and `error`, and nothing else."""

    def __init__(self, status: int, error: ProtocolError) -> None:
        super().__init__(error.message)
        self.status = status
        self.error = error


def http_error(status: int, error: ProtocolError) -> JSONResponse:
    """Return the refusal of a request or a handshake."""
    return JSONResponse({"error": error.as_wire()}, status)


def foreign(origin: str | None) -> ProtocolError:
    """Return why the page of another website gets no session."""
    message = f"Pages of {origin} may not open sessions here: add it to [server] allowed_origins."
    return ProtocolError("foreign_origin", message)


def not_ready() -> ProtocolError:
    """Return why nobody gets a session yet."""
    message = "The server is still loading its models; try again in a moment."
    return ProtocolError("server_not_ready", message, error_type="server_error")


def full() -> ProtocolError:
    """Return why nobody else gets a session."""
    message = "The server holds as many sessions as it may; try again later."
    return ProtocolError("too_many_sessions", message, error_type="server_error")
