"""Reading weights: a folder in Hugging Face layout, a hub repository, or a GGUF file.

All three end as a folder with `config.json` and safetensors; what is read from it is checked
against the shapes that the configuration implies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dspark.errors import CheckpointError, CheckpointNotFound, MissingTensor, WrongShape
from dspark.linear import FloatLinear, Linear, Precision, linear

Progress = Callable[[str, float], None]
"""Told what is being done and which fraction of it is."""

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_WANTED_FILES = ["*.json", "*.safetensors", "*.jinja"]


def find_checkpoint(source: str | Path, progress: Progress | None = None) -> Path:
    """The folder that holds a checkpoint, fetched or converted first if need be.

    Args:
        source: a folder, a `.gguf` file, or a hub id such as `Qwen/Qwen3-0.6B`.
        progress: told about the conversion of a GGUF file.

    Raises:
        CheckpointNotFound: there is no such folder, file or repository.
        CheckpointError: there is one, and it cannot be used.
    """
    path = Path(source)
    if path.is_dir():
        return path
    if path.is_file():
        if path.suffix != ".gguf":
            raise CheckpointError(
                f"{path} is neither a folder nor a .gguf file: give the folder that holds the "
                "model's config.json"
            )
        from dspark.gguf_cache import converted_folder

        return converted_folder(path, progress)
    if isinstance(source, str) and _HUB_ID.fullmatch(source) and not source.startswith("."):
        return _hub_folder(source)
    raise CheckpointNotFound(
        f"there is no model at {source}: give a folder with config.json and safetensors files, a "
        ".gguf file, or a hub id such as Qwen/Qwen3-0.6B"
    )


def _hub_folder(repository: str) -> Path:
    import httpx  # the hub's client and its transport take a while to import,
    import huggingface_hub  # which a local model need not wait for

    try:
        return Path(huggingface_hub.snapshot_download(repository, allow_patterns=_WANTED_FILES))
    except (OSError, ValueError, httpx.HTTPError) as error:  # all that the hub's client raises
        raise CheckpointNotFound(
            f"{repository} is no local folder, and fetching it from the hub failed: check the "
            f"name, the network and, for a gated model, your login ({error})"
        ) from error


class Checkpoint:
    """A folder's configuration and tensors; tensors are read when asked for.

    Attributes:
        folder: where it lies.
        config: the parsed `config.json`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config: Mapping[str, object] = read_json(folder / "config.json")
        self._files = self._index()

    def _index(self) -> dict[str, Path]:
        """Which file each tensor is in."""
        index = self.folder / "model.safetensors.index.json"
        single = self.folder / "model.safetensors"
        if index.is_file():
            names = read_json(index).get("weight_map")
            if not isinstance(names, Mapping):
                raise CheckpointError(f"{index} has no weight_map: fetch the model again")
            return {str(name): self.folder / str(file) for name, file in names.items()}
        if single.is_file():
            with self._open(single) as file:
                return dict.fromkeys(file.keys(), single)
        raise CheckpointNotFound(
            f"{self.folder} holds neither model.safetensors nor model.safetensors.index.json: "
            "fetch the model again, in safetensors format"
        )

    @staticmethod
    def _open(path: Path) -> safe_open:
        try:
            return safe_open(path, framework="pt")
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} cannot be read ({error}): fetch it again") from error

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def tensor(self, name: str, shape: Sequence[int]) -> Tensor:
        """A tensor as stored, mapped from its file.

        Raises:
            MissingTensor: the checkpoint has none of that name.
            WrongShape: it has not the shape the configuration asks for.
        """
        path = self._files.get(name)
        if path is None:
            raise MissingTensor(
                f"{self.folder} has no tensor {name}: the weights do not belong to its "
                "config.json, or the download is incomplete; fetch both again"
            )
        with self._open(path) as file:
            try:
                tensor: Tensor = file.get_tensor(name)
            except SafetensorError as error:
                raise MissingTensor(
                    f"{path} has no tensor {name}, which its index promises ({error}): fetch the "
                    "model again"
                ) from error
        if tuple(tensor.shape) != tuple(shape):
            raise WrongShape(
                f"{name} in {path} is {list(tensor.shape)}, and config.json makes it "
                f"{list(shape)}: the weights and config.json are of different models; fetch both "
                "again"
            )
        return tensor


def read_json(path: Path) -> Mapping[str, object]:
    """A JSON file that holds an object.

    Raises:
        CheckpointNotFound: there is no such file.
        CheckpointError: it is not JSON, or no object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointNotFound(
            f"{path} does not exist: give a folder with a model in Hugging Face layout"
        ) from error
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}): fetch it again") from error
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{path} holds no JSON object: fetch it again")
    return content


class Weights:
    """A checkpoint's tensors in the precision and on the device they are computed with."""

    def __init__(self, checkpoint: Checkpoint, precision: Precision, device: torch.device) -> None:
        self.checkpoint = checkpoint
        self.precision = precision
        self.device = device

    def dense(self, name: str, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
        """A tensor, in the activations' precision if not told otherwise."""
        # Copied even where nothing changes: a mapped file may be replaced under a running engine.
        dtype = dtype or self.precision.activations
        return self.checkpoint.tensor(name, shape).to(self.device, dtype, copy=True)

    def embedding(self, name: str, shape: Sequence[int]) -> Tensor:
        """An embedding table `[vocab, hidden]`."""
        return self.dense(name, shape, self.precision.embedding)

    def linear(
        self,
        names: Sequence[str],
        out_features: Sequence[int],
        in_features: int,
        bias: bool = False,
    ) -> Linear:
        """One layer of the named ones (without `.weight`), their outputs side by side."""
        shapes = [(out, in_features) for out in out_features]
        weight = self._stacked([f"{name}.weight" for name in names], shapes)
        sizes = [(out,) for out in out_features]
        added = self._stacked([f"{name}.bias" for name in names], sizes) if bias else None
        return linear(weight, added, self.precision.layers)

    def head(self, name: str, shape: tuple[int, int]) -> Linear:
        """The head called `name` (without `.weight`), `[vocab, hidden]`."""
        return linear(self._stacked([f"{name}.weight"], [shape]), None, self.precision.head)

    def tied_head(self, name: str, embedding: Tensor) -> Linear:
        """The head whose weight is the embedding called `name`, sharing its memory if it can."""
        if self.precision.head == "float":
            return FloatLinear(embedding)
        return linear(self.checkpoint.tensor(name, embedding.shape), None, self.precision.head)

    def _stacked(self, names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> Tensor:
        rows = sum(shape[0] for shape in shapes)
        whole = torch.empty(
            (rows, *shapes[0][1:]), dtype=self.precision.activations, device=self.device
        )
        start = 0
        for name, shape in zip(names, shapes, strict=True):
            whole[start : start + shape[0]] = self.checkpoint.tensor(name, shape)
            start += shape[0]
        return whole
