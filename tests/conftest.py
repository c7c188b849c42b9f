"""Where the tests find models, recordings and reference vectors."""

from __future__ import annotations

from pathlib import Path

import pytest

from assistant import models

REPOSITORY = Path(__file__).resolve().parent.parent


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
