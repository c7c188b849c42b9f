"""Who may open a websocket: by their key, and without one by the page that they come from."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from starlette.websockets import WebSocket

from assistant.realtime.client_secrets import KeyRefused, Keys
from assistant.realtime.errors import ProtocolError
from assistant.realtime.refusal import Denied, foreign
from assistant.realtime.websocket import foreign_origin, key_of
from assistant.realtime.wire import JsonObject

T = TypeVar("T")


class Door:
    """Lets in holders of a key; if none is configured, everybody but the pages of other websites,
    which a user may have open without knowing what they do."""

    def __init__(self, keys: Keys, allowed_origins: Collection[str]) -> None:
        self._keys = keys
        self._allowed_origins = allowed_origins

    def session_of(self, websocket: WebSocket) -> JsonObject:
        """Return what the session starts with that is asked for.

        Raises `Denied`.
        """
        return self._check(websocket, self._keys.session_of)

    def check_operator(self, websocket: WebSocket) -> None:
        """See that this is somebody who may see everybody's turns: a short-lived key is for the
        sessions of one user.

        Raises `Denied`.
        """
        self._check(websocket, self._keys.check)

    def _check(self, websocket: WebSocket, check: Callable[[str | None], T]) -> T:
        try:
            granted = check(key_of(websocket))
        except KeyRefused as refused:
            raise Denied(401, ProtocolError("invalid_api_key", str(refused))) from None
        origin = foreign_origin(websocket)
        if not self._keys.required and origin not in (None, *self._allowed_origins):
            raise Denied(403, foreign(origin))
        return granted
