"""Names of models, and what they lead to."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from assistant import models
from assistant.config import Config
from assistant.errors import ModelDamaged, ModelMissing, UnknownModel
from assistant.models import (
    REGISTRY,
    HubModel,
    ModelFile,
    PackagedModel,
    find,
    models_of,
    resolve,
)

WEIGHTS = b"weights"
TINY = PackagedModel(
    name="tiny",
    kind="llm",
    licence="MIT",
    package="tiny-model==1.0",
    package_size_bytes=1_000,
    files=(ModelFile("tiny_model/tiny.gguf", len(WEIGHTS), hashlib.sha256(WEIGHTS).hexdigest()),),
    entry="tiny.gguf",
)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A models folder in which `tiny` is installed."""
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "tiny.gguf").write_bytes(WEIGHTS)
    return tmp_path


def test_an_installed_model_resolves_to_its_file(installed: Path) -> None:
    assert resolve("tiny", "llm", installed, (TINY,)) == installed / "tiny" / "tiny.gguf"


def test_a_model_that_is_not_installed_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match="assistant models pull tiny"):
        resolve("tiny", "llm", tmp_path, (TINY,))


def test_a_model_with_a_cut_file_counts_as_missing(installed: Path) -> None:
    (installed / "tiny" / "tiny.gguf").write_bytes(WEIGHTS[:-1])
    with pytest.raises(ModelMissing):
        resolve("tiny", "llm", installed, (TINY,))


def test_a_model_of_another_kind_is_refused_by_its_kind(installed: Path) -> None:
    with pytest.raises(UnknownModel, match="language model, and cannot be used as the voice"):
        resolve("tiny", "tts", installed, (TINY,))


def test_a_misspelt_name_is_told_the_right_one() -> None:
    with pytest.raises(UnknownModel, match=r"Did you mean whisper-tiny\.en\?"):
        resolve("whisper-tiny-en", "asr")


def test_a_local_file_or_folder_resolves_to_itself(tmp_path: Path) -> None:
    assert resolve(str(tmp_path), "llm") == tmp_path


NAMES_OF_ALL_SORTS = ["smollm2-135m-instruct", "Qwen/Qwen3-4B", "Qwen/Qwen3-0.6B"]


@pytest.fixture
def shadowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A current directory that holds a folder named like each of the models."""
    for name in NAMES_OF_ALL_SORTS:
        (tmp_path / "here" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("ASSISTANT_MODELS", str(tmp_path / "models"))


@pytest.mark.usefixtures("shadowed")
@pytest.mark.parametrize("name", NAMES_OF_ALL_SORTS)
def test_a_folder_here_does_not_stand_for_a_model_of_its_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HubModel, "cached_folder", lambda self: None)
    config = Config.model_validate({"llm": {"model": name}})
    assert name in [model.name for model in models_of(config)]  # which pull and verify go by
    with pytest.raises(ModelMissing, match=f"assistant models pull {name}"):
        resolve(name, "llm")


@pytest.mark.usefixtures("shadowed")
def test_a_fetched_hub_model_is_loaded_from_the_cache_past_a_folder_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HubModel, "cached_folder", lambda self: tmp_path / "cache")
    assert resolve("Qwen/Qwen3-4B", "llm") == tmp_path / "cache"


@pytest.mark.usefixtures("shadowed")
@pytest.mark.parametrize("name", NAMES_OF_ALL_SORTS)
def test_written_like_a_path_a_folder_here_is_meant(name: str) -> None:
    assert resolve(f"./{name}", "llm") == Path(name)
    assert resolve(str(Path(name).absolute()), "llm") == Path(name).absolute()
    config = Config.model_validate({"llm": {"model": f"./{name}"}})
    assert [model.kind for model in models_of(config)] == ["asr", "tts"]


def test_a_word_that_names_a_folder_here_is_told_how_to_write_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownModel, match=r"name it \./mine"):
        resolve("mine", "llm")


def test_a_local_path_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match=r"nothing\.gguf"):
        resolve(str(tmp_path / "nothing.gguf"), "llm")


def test_a_hub_id_resolves_to_itself() -> None:
    assert resolve("Qwen/Qwen3-0.6B", "llm") == "Qwen/Qwen3-0.6B"


def test_a_voice_cannot_be_named_by_a_hub_id() -> None:
    with pytest.raises(UnknownModel, match=r"\.onnx"):
        resolve("rhasspy/piper-voices", "tts")


def test_verifying_finds_a_changed_byte_that_the_size_does_not_show(installed: Path) -> None:
    TINY.verify(installed)
    (installed / "tiny" / "tiny.gguf").write_bytes(WEIGHTS.upper())
    with pytest.raises(ModelDamaged, match=r"tiny\.gguf.*assistant models pull tiny --again"):
        TINY.verify(installed)


def test_the_default_configuration_uses_registered_packaged_models_of_the_right_kinds() -> None:
    used = models_of(Config())
    assert all(isinstance(model, PackagedModel) for model in used)
    assert [model.kind for model in used] == ["asr", "llm", "tts"]


def test_a_model_on_the_users_disk_needs_no_pulling(tmp_path: Path) -> None:
    config = Config.model_validate({"llm": {"model": str(tmp_path)}})
    assert [model.kind for model in models_of(config)] == ["asr", "tts"]


def test_every_registered_name_is_found_once() -> None:
    names = [model.name for model in REGISTRY]
    assert len(set(names)) == len(names)
    assert all(find(name).name == name for name in names)


def test_an_unregistered_hub_id_is_a_hub_model() -> None:
    assert find("owner/model") == HubModel("owner/model")


def test_the_models_folder_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ASSISTANT_MODELS", str(tmp_path))
    assert models.models_folder() == tmp_path
    monkeypatch.delenv("ASSISTANT_MODELS")
    assert models.models_folder().parts[-2:] == ("dspark-assistant", "models")


@pytest.mark.real
@pytest.mark.parametrize(
    "model", [m for m in REGISTRY if isinstance(m, PackagedModel)], ids=lambda model: model.name
)
def test_the_installed_models_are_the_published_ones(
    model: PackagedModel, models_folder: Path
) -> None:
    model.verify(models_folder)
