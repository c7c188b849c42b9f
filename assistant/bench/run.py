"""A whole run: the systems that are wanted are opened, played to, and let go."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from assistant.bench.clips import Clip
from assistant.bench.naive import SILENCE_MS, NaivePipeline
from assistant.bench.own_server import own_server
from assistant.bench.rounds import OnProgress, play_all
from assistant.bench.scores import Played
from assistant.bench.systems import Naive, Server, System
from assistant.config import load_config
from assistant.errors import UsageError
from dspark.step_cost import processor_name

ASSISTANT = "assistant"
WITHOUT_SPECULATION = "assistant without speculation"
NAIVE = Naive.name
SYSTEMS = (ASSISTANT, WITHOUT_SPECULATION, NAIVE)


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        systems: some of `SYSTEMS`.
        clips: what is played.
        sessions: how many speak at once, one number after the other.
        turns: recordings played to each system for each number of sessions.
        listen_s: how much of each answer is listened to before hanging up.
        config: the models and settings; None is the defaults.
        url: a server that runs already, measured as the assistant.
        api_key: what that server asks for.
    """

    systems: Sequence[str]
    clips: Sequence[Clip]
    sessions: Sequence[int]
    turns: int
    listen_s: float
    config: Path | None = None
    url: str | None = None
    api_key: str | None = None

    def __post_init__(self) -> None:
        for name in self.systems:
            if name not in SYSTEMS:
                raise UsageError(f"There is no system {name!r}: choose of {', '.join(SYSTEMS)}.")
        if self.url is not None and WITHOUT_SPECULATION in self.systems:
            raise UsageError(
                f"A running server has one way to answer: leave out {WITHOUT_SPECULATION!r}."
            )
        if not self.sessions or min(self.sessions) < 1:
            raise UsageError("--sessions are how many speak at once, such as 1,2,4.")

    def settings(self) -> dict[str, object]:
        """What the figures depend on, as JSON's types."""
        config = load_config(self.config)
        return {
            "version": version("dspark-assistant"),
            "config": config.model_dump(
                mode="json", include={"vad", "asr", "endpoint", "llm", "voice", "playback"}
            ),
            "url": self.url,
            "clips": len(self.clips),
            "turns": self.turns,
            "sessions": list(self.sessions),
            "listen_s": self.listen_s,
            "naive_silence_ms": SILENCE_MS,
        }


def machine() -> dict[str, object]:
    """What it was measured on, as JSON's types."""
    return {
        "processor": processor_name(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


async def measure(plan: Plan, on_played: Callable[[Played], None], on_progress: OnProgress) -> None:
    """Carry out a plan; `on_played` is told each turn once it is over.

    Raises `ServerNotReady`, or the typed error of a model that cannot be loaded.
    """
    async with AsyncExitStack() as stack:
        systems: list[System] = []
        for name in plan.systems:
            on_progress(f"{name}: loading", 0.0)
            systems.append(await _opened(name, plan, stack))
        await play_all(
            systems,
            plan.clips,
            sessions=plan.sessions,
            turns=plan.turns,
            listen_s=plan.listen_s,
            on_played=on_played,
            on_progress=on_progress,
        )


async def _opened(name: str, plan: Plan, stack: AsyncExitStack) -> System:
    if name == NAIVE:
        config = load_config(plan.config)
        pipeline = await asyncio.to_thread(NaivePipeline, config)
        return Naive(stack.enter_context(pipeline))
    if plan.url is not None:
        return Server(name, plan.url, plan.api_key)
    changes = {"endpoint.speculate": "false"} if name == WITHOUT_SPECULATION else {}
    return Server(name, await stack.enter_async_context(own_server(plan.config, changes)))
