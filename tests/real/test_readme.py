"""The programs in the README do what it says, as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from audio.pcm import write_wav
from audio.voice import load_piper
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.real

PROGRAMS = re.findall(r"```python\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
DEFAULT_ADDRESS = "127.0.0.1:8765"


def output_of(program: str, folder: Path) -> str:
    finished = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.mark.parametrize("mark", ["import Assistant", "import connect", "import AsyncOpenAI"])
def test_each_program_answers(
    mark: str, server_url: str, piper_model: Path, tmp_path: Path
) -> None:
    voice = load_piper(piper_model)
    question = np.concatenate(list(voice.speak("What is the capital of France?").windows()))
    write_wav(tmp_path / "question.wav", question, voice.sample_rate_hz)
    [program] = [program for program in PROGRAMS if mark in program]
    program = program.replace(DEFAULT_ADDRESS, server_url.removeprefix("http://"))
    assert "Paris" in output_of(program, tmp_path)
