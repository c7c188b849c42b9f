"""The real server with the real models, from the client and from the command line."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from assistant.client import connect
from assistant.errors import ServerUnreachable
from audio.pcm import read_audio, write_wav
from audio.voice import load_piper

pytestmark = pytest.mark.real

QUESTION = "What is the capital of France?"


def assistant(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", "from assistant.cli import app; app()"]
    return subprocess.run([*program, *arguments], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def spoken_question(piper_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The question, as the embedded voice says it."""
    voice = load_piper(piper_model)
    path = tmp_path_factory.mktemp("spoken") / "question.wav"
    write_wav(path, np.concatenate(list(voice.speak(QUESTION).windows())), voice.sample_rate_hz)
    return path


def test_a_written_question_gets_a_spoken_answer(server_url: str) -> None:
    async def talk() -> None:
        async with connect(server_url) as dialogue:
            reply = await dialogue.ask(QUESTION)
            assert "Paris" in reply.text
            samples = np.frombuffer(reply.audio, "<i2")
            assert np.abs(samples).max() > 1_000  # about -30 dBFS: it is no silence

    asyncio.run(talk())


def test_a_spoken_question_is_understood_and_answered_from_the_command_line(
    server_url: str, spoken_question: Path, tmp_path: Path
) -> None:
    out = tmp_path / "answer.wav"
    asked = ["ask", "--wav", str(spoken_question), "--json", "--out", str(out)]
    finished = assistant(*asked, "--url", server_url)
    assert finished.returncode == 0, finished.stderr
    line = json.loads(finished.stdout)
    assert "capital of france" in line["transcript"].lower()
    assert "Paris" in line["reply"]
    samples, rate_hz = read_audio(out)
    assert line["heard_ms"] == pytest.approx(1000 * len(samples) / rate_hz, abs=1)


def test_the_times_of_a_spoken_turn_are_whole_and_in_order(
    server_url: str, spoken_question: Path
) -> None:
    async def talk() -> None:
        samples, rate_hz = read_audio(spoken_question)
        pcm = (samples * 32_767).astype("<i2").tobytes()
        async with connect(server_url) as dialogue:
            timeline = (await dialogue.listen([pcm], rate_hz)).timeline
        decided = ("speech_start", "speech_end", "endpoint", "first_sent", "finished")
        worked = ("speech_end", "transcript", "first_text", "first_chunk", "first_audio")
        for chain in (decided, (*worked, "first_sent")):
            moments = [timeline[f"{name}_ms"] for name in chain]
            assert moments == sorted(moments)  # none is missing, and none is early

    asyncio.run(talk())


def test_the_page_is_no_dialogue(server_url: str) -> None:
    async def talk() -> None:
        async with connect(f"{server_url}/healthz"):
            pass

    with pytest.raises(ServerUnreachable):
        asyncio.run(talk())
