"""Short-lived keys open sessions until they expire, and there are never too many of them."""

from __future__ import annotations

import pytest

from assistant.realtime import client_secrets
from assistant.realtime.client_secrets import (
    ExpiresAfter,
    KeyRefused,
    Keys,
    SecretRequest,
    TooManySecrets,
)


class Clock:
    """Seconds since the epoch, as the test wishes."""

    now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def keys(clock: Clock) -> Keys:
    return Keys(["key"], clock)


def minute(**session: object) -> SecretRequest:
    return SecretRequest(expires_after=ExpiresAfter(seconds=60), session=session)


def test_a_secret_opens_sessions_until_it_expires(keys: Keys, clock: Clock) -> None:
    secret = keys.issue(minute(instructions="Rhyme."))
    assert secret.expires_at_s == clock.now_s + 60
    assert keys.session_of(secret.value) == {"instructions": "Rhyme."}
    clock.now_s += 59
    assert keys.session_of(secret.value) == {"instructions": "Rhyme."}
    clock.now_s += 1
    with pytest.raises(KeyRefused, match="expired"):
        keys.session_of(secret.value)


def test_a_configured_key_starts_with_the_default_session(keys: Keys) -> None:
    assert keys.session_of("key") == {}


@pytest.mark.parametrize("key", [None, "", "wrong", "key2"])
def test_another_key_opens_nothing(keys: Keys, key: str | None) -> None:
    with pytest.raises(KeyRefused):
        keys.session_of(key)


def test_an_open_server_still_knows_a_false_secret(clock: Clock) -> None:
    keys = Keys([], clock)
    assert keys.session_of(None) == {}
    with pytest.raises(KeyRefused):
        keys.session_of("ek_false")


def test_expired_secrets_make_room(
    keys: Keys, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_secrets, "MOST_SECRETS", 2)
    values = {keys.issue(minute()).value for _ in range(2)}
    assert len(values) == 2
    with pytest.raises(TooManySecrets):
        keys.issue(minute())
    clock.now_s += 60
    keys.issue(minute())
