"""Sessions come and go; nothing of them stays behind."""

from __future__ import annotations

import asyncio
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from assistant.client import connect
from audio.pcm import read_audio, to_pcm16

pytestmark = pytest.mark.real

SESSIONS = 30
AT_ONCE = 4
WARM_UP = 6
"""Sessions before the first reading: caches and the allocator reach their size in these."""
NOISE_MB = 12.0
"""How much the resident memory of an idle server of this size moves by itself."""
IDLE_S = 8.0


@dataclass(frozen=True)
class Reading:
    """What the server says of itself."""

    resident_mb: float
    cpu_s: float
    threads: int
    tasks: int
    sessions: int
    lag_samples: int


def read(url: str) -> Reading:
    """Return the server's present state from its metrics."""
    with urllib.request.urlopen(f"{url}/metrics") as page:
        text = page.read().decode()
    values = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.labels
    }
    return Reading(
        resident_mb=values["process_resident_memory_bytes"] / 1e6,
        cpu_s=values["process_cpu_seconds_total"],
        threads=int(values["assistant_threads"]),
        tasks=int(values["assistant_tasks"]),
        sessions=int(values["assistant_sessions"]),
        lag_samples=int(values["assistant_event_loop_lag_seconds_count"]),
    )


@pytest.fixture(scope="module")
def clip(fixtures_folder: Path) -> tuple[bytes, int]:
    samples, rate_hz = read_audio(fixtures_folder / "speech/human/cmd_rh3_what_time_is_it.flac")
    return to_pcm16(samples).astype("<i2").tobytes(), rate_hz


async def one_session(url: str, clip: tuple[bytes, int]) -> None:
    pcm, rate_hz = clip
    async with connect(url) as dialogue:
        turn = await dialogue.listen([pcm], rate_hz)
    assert turn.transcript
    assert np.abs(np.frombuffer(turn.audio, "<i2")).max() > 0


async def settled(url: str) -> Reading:
    """Return a reading once every session has been taken down."""
    async with asyncio.timeout(10):
        while True:
            reading = await asyncio.to_thread(read, url)
            if reading.sessions == 0:
                return reading
            await asyncio.sleep(0.1)


def test_thirty_sessions_and_four_at_once_leave_nothing_behind(
    server_url: str, clip: tuple[bytes, int]
) -> None:
    async def soak() -> tuple[Reading, Reading, Reading]:
        for _ in range(WARM_UP):
            await one_session(server_url, clip)
        await asyncio.gather(*(one_session(server_url, clip) for _ in range(AT_ONCE)))
        before = await settled(server_url)
        for _ in range(SESSIONS):
            await one_session(server_url, clip)
        between = await settled(server_url)
        await asyncio.gather(*(one_session(server_url, clip) for _ in range(AT_ONCE)))
        return before, between, await settled(server_url)

    before, between, after = asyncio.run(soak())
    print(f"before {before}\nafter {SESSIONS} {between}\nafter {AT_ONCE} at once {after}")
    for later in (between, after):
        assert later.threads <= before.threads
        assert later.tasks <= before.tasks
        assert later.resident_mb <= before.resident_mb + NOISE_MB


def test_an_idle_session_costs_next_to_nothing(server_url: str) -> None:
    """What one idle session takes beside a server without one, as a share of a core."""

    async def share(sessions: int) -> float:
        async with asyncio.TaskGroup() as tasks:
            done = asyncio.Event()
            opened = asyncio.Semaphore(0)

            async def idle() -> None:
                async with connect(server_url):
                    opened.release()
                    await done.wait()

            for _ in range(sessions):
                tasks.create_task(idle())
            for _ in range(sessions):
                await opened.acquire()
            begin = await asyncio.to_thread(read, server_url)
            await asyncio.sleep(IDLE_S)
            end = await asyncio.to_thread(read, server_url)
            done.set()
        assert end.lag_samples > begin.lag_samples
        return (end.cpu_s - begin.cpu_s) / IDLE_S

    async def compare() -> tuple[float, float]:
        return await share(0), await share(AT_ONCE)

    alone, with_sessions = asyncio.run(compare())
    each = (with_sessions - alone) / AT_ONCE
    print(f"idle server {alone:.2%} of a core, an idle session {each:.2%}")
    assert each < 0.01
