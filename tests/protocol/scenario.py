"""A connection over the real dialogue core, with stages that take no time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

from assistant.config import Config
from assistant.realtime import RealtimeConnection
from assistant.settings import Settings, TurnDetection
from assistant.stages import Stages
from tests.protocol.client import CheckingClient
from tests.protocol.instant import VOICE_RATE_HZ, InstantRuntime

T = TypeVar("T")
Scenario = Callable[[CheckingClient], Awaitable[T]]


class InstantStages:
    """As much of the stages as the protocol looks at."""

    config = Config()
    voice_rate_hz = VOICE_RATE_HZ

    def default_settings(self) -> Settings:
        return Settings(instructions="Be brief.", turn_detection=TurnDetection())


STAGES = cast(Stages, InstantStages())


@asynccontextmanager
async def connect(**options: Any) -> AsyncIterator[CheckingClient]:
    """Open a connection; `options` are the connection's own."""
    runtimes: list[InstantRuntime] = []

    def open_runtime(*arguments: Any) -> InstantRuntime:
        runtimes.append(InstantRuntime(*arguments))
        return runtimes[0]

    async with RealtimeConnection(STAGES, open_runtime=open_runtime, **options) as connection:
        yield CheckingClient(connection, runtimes[0])


def play(scenario: Scenario[T], **options: Any) -> T:
    """Run a scenario with a client that has seen `session.created`."""

    async def run() -> T:
        async with connect(**options) as client:
            await client.collect()
            return await scenario(client)

    return asyncio.run(run())
