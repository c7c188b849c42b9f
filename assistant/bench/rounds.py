"""Who is played what, and when: all systems get the same recordings, in an order that rotates.

What disturbs a machine comes and goes.  So each round plays a few recordings, as many as speak at
once, to every system in turn, and begins with another system than the round before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from assistant.bench.clips import Clip, spread
from assistant.bench.scores import Played
from assistant.bench.systems import System

OnProgress = Callable[[str, float], None]
"""Told what is played, and which fraction of everything is done."""


async def play_all(
    systems: Sequence[System],
    clips: Sequence[Clip],
    *,
    sessions: Sequence[int],
    turns: int,
    listen_s: float,
    on_played: Callable[[Played], None],
    on_progress: OnProgress = lambda _what, _done: None,
) -> None:
    """Play `turns` recordings to each system, for each number of sessions at once.

    `on_played` is told each turn as soon as it is over, so that a run that is broken off has
    results too.  One turn of each system before all is not counted.
    """
    chosen = spread(clips, turns)
    seconds = sum(clip.speech_end_s + listen_s for clip in chosen) * len(systems)
    total_s = sum(seconds / count for count in sessions)
    done_s = 0.0
    for system in systems:
        on_progress(f"{system.name}: warming up", 0.0)
        await system.play(chosen[0], listen_s)
    for count in sessions:
        rounds = [chosen[start : start + count] for start in range(0, len(chosen), count)]
        for number, together in enumerate(rounds):
            start = number % len(systems)
            for system in (*systems[start:], *systems[:start]):
                on_progress(f"{system.name}, {_at_once(count)}", done_s / total_s)
                for played in await _play_together(system, together, count, listen_s):
                    on_played(played)
                done_s += sum(clip.speech_end_s + listen_s for clip in together) / count
    on_progress("", 1.0)


async def _play_together(
    system: System, clips: Sequence[Clip], sessions: int, listen_s: float
) -> list[Played]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(system.play(clip, listen_s)) for clip in clips]
    return [
        Played(system.name, sessions, clip, task.result())
        for clip, task in zip(clips, tasks, strict=True)
    ]


def _at_once(sessions: int) -> str:
    return "1 session" if sessions == 1 else f"{sessions} sessions"
