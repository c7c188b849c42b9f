"""Who may open a session: holders of a configured key, and of a short-lived one they hand out."""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from assistant.errors import AssistantError
from assistant.realtime.wire import JsonObject, WireModel

PREFIX = "ek_"
MOST_SECRETS = 10_000
"""Unexpired secrets kept; beyond it no new one is issued."""


class KeyRefused(AssistantError):
    """The key is missing, unknown or expired: show one of the server's keys."""


class TooManySecrets(AssistantError):
    """Too many short-lived keys are unexpired: wait for some to expire."""


class ExpiresAfter(WireModel):
    """How long a secret opens sessions."""

    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, Field(ge=10, le=7_200)] = 600


class SecretRequest(WireModel):
    """The body of a request for a secret; `session` is merged into each session it opens."""

    expires_after: ExpiresAfter = ExpiresAfter()
    session: dict[str, object] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClientSecret:
    """A short-lived key for a browser, and what the sessions it opens start with."""

    value: str
    expires_at_s: int
    session: JsonObject


class Keys:
    """The configured keys and the secrets issued to their holders.

    Without a configured key everybody is let in.  `clock` returns seconds since the epoch.
    """

    def __init__(self, api_keys: Iterable[str], clock: Callable[[], float] = time.time) -> None:
        self._api_keys = [key.encode() for key in api_keys]
        self._clock = clock
        self._secrets: dict[str, ClientSecret] = {}

    @property
    def required(self) -> bool:
        """Whether a key is asked for."""
        return bool(self._api_keys)

    def check(self, key: str | None) -> None:
        """Raise `KeyRefused` unless `key` is a configured one."""
        if not self._api_keys:
            return
        if key is None:
            raise KeyRefused("This server asks for a key: send it as Authorization: Bearer KEY.")
        # Every key is compared, each in constant time: timing tells nothing about any of them.
        known = [hmac.compare_digest(key.encode(), api_key) for api_key in self._api_keys]
        if not any(known):
            raise KeyRefused("This key is not one of the server's keys.")

    def session_of(self, key: str | None) -> JsonObject:
        """Return what a session opened with `key` starts with.

        Raises `KeyRefused` if it opens none.
        """
        if key is not None and key.startswith(PREFIX):
            secret = self._secrets.get(key)
            if secret is None or secret.expires_at_s <= self._clock():
                raise KeyRefused("This client secret is unknown or has expired; ask for a new one.")
            return secret.session
        self.check(key)
        return {}

    def issue(self, request: SecretRequest) -> ClientSecret:
        """Make a new secret.

        Raises `TooManySecrets` while more are unexpired than are kept.
        """
        now_s = self._clock()
        self._secrets = {
            value: secret for value, secret in self._secrets.items() if secret.expires_at_s > now_s
        }
        if len(self._secrets) >= MOST_SECRETS:
            raise TooManySecrets("Too many client secrets are in use; try again later.")
        expires_at_s = int(now_s) + request.expires_after.seconds
        secret = ClientSecret(
            PREFIX + secrets.token_urlsafe(24), expires_at_s, dict(request.session)
        )
        self._secrets[secret.value] = secret
        return secret
