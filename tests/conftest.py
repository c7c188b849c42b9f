"""Where the tests find models, recordings, reference vectors, and a running server."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from assistant import models

REPOSITORY = Path(__file__).resolve().parent.parent
SERVER_START_S = 180
"""Loading takes seconds; a machine that shares its cores may take minutes."""


@pytest.fixture(scope="session")
def shared_folder() -> Path:
    """The folder of shared recordings and reference vectors beside the checkout, if present."""
    folder = REPOSITORY.parent / "shared"
    if not folder.is_dir():
        pytest.skip("the shared recordings are not beside this checkout")
    return folder


@pytest.fixture(scope="session")
def fixtures_folder() -> Path:
    """The recordings that come with the project."""
    return REPOSITORY / "tests" / "fixtures"


def _installed(name: str) -> Path:
    model = models.find(name)
    assert isinstance(model, models.PackagedModel)
    folder = models.models_folder()
    if not model.is_present(folder):
        pytest.skip(f"{name} is not in {folder}: run `make models`")
    return model.folder(folder) / (model.entry or "")


@pytest.fixture(scope="session")
def models_folder(whisper_folder: Path, smollm2_gguf: Path, piper_model: Path) -> Path:
    """The models folder, with all three embedded models in it."""
    return models.models_folder()


@pytest.fixture(scope="session")
def whisper_folder() -> Path:
    """The embedded Whisper, as faster-whisper loads it."""
    return _installed("whisper-tiny.en")


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The embedded language model."""
    return _installed("smollm2-135m-instruct")


@pytest.fixture(scope="session")
def piper_model() -> Path:
    """The embedded voice; its `.onnx.json` lies beside it."""
    return _installed("piper-en_US-joe-medium")


@pytest.fixture(scope="session")
def server_url(models_folder: Path) -> Iterator[str]:
    """The address (`http://…`) of the real server with the real models, in a process of its own."""
    program = "from assistant.cli import app; app()"
    command = [sys.executable, "-c", program, "serve", "--port", "0"]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None and server.stderr is not None
        log: list[str] = []
        # Nobody else reads what the server logs: a full pipe would stop it.
        threading.Thread(target=log.extend, args=(server.stderr,), daemon=True).start()
        patience = threading.Timer(SERVER_START_S, server.kill)
        patience.start()
        try:
            ready = next((line for line in server.stdout if line.startswith("Ready: ")), None)
            patience.cancel()
            if ready is None:
                server.wait()
                pytest.fail("the server did not start:\n" + "".join(log))
            yield ready.split()[1]
        finally:
            patience.cancel()
            server.terminate()
            server.wait()
