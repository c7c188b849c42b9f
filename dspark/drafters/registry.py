"""A drafter by its name, or by where its weights lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import torch

from dspark.checkpoint import Checkpoint, find_checkpoint, read_json
from dspark.drafters.autoregressive import DEFAULT_BLOCK_SIZE
from dspark.drafters.draft_model import DraftModel
from dspark.drafters.dspark import ARCHITECTURE, DSparkDrafter
from dspark.drafters.layer_skip import LayerSkipDrafter
from dspark.drafters.prompt_lookup import DEFAULT_BLOCK_SIZE as LOOKUP_BLOCK_SIZE
from dspark.drafters.prompt_lookup import PromptLookupDrafter
from dspark.drafters.protocol import Drafter
from dspark.drafters.shipped import shipped_drafter
from dspark.errors import CheckpointNotFound, InvalidRequest
from dspark.target import Target


def load_drafter(source: str | Path, target: Target) -> Drafter:
    """Load a drafter for a target.

    Args:
        source: the folder or hub id of a DSpark drafter, in the layout of the published ones; or a
            causal language model with the target's vocabulary (a folder, a `.gguf` file or a hub
            id), which then drafts as it is; or `auto`, what comes with the package for the target;
            or one of these, which need no weights:
            `prompt-lookup`, or `prompt-lookup:10` to propose that many tokens;
            `layer-skip:8`, the target's first 8 layers, or `layer-skip:8:5` for that many tokens.
            `draft-model:SOURCE:5` says of a language model how many tokens it proposes.
        target: the model it drafts for.

    Raises:
        CheckpointError: it is not there, incomplete, or of an unknown kind.
        DrafterMismatch: it was trained for another model, or has another vocabulary.
        InvalidRequest: a name's numbers make no sense.
    """
    name, _, argument = str(source).partition(":")
    with torch.inference_mode():
        if name in _NAMED:
            return _NAMED[name](argument, target)
        folder = find_checkpoint(source)
        if _is_dspark(folder):
            return DSparkDrafter(Checkpoint(folder), target)
        return DraftModel.load(folder, target)


def _prompt_lookup(argument: str, target: Target) -> Drafter:
    return PromptLookupDrafter(target, _count("prompt-lookup", argument or str(LOOKUP_BLOCK_SIZE)))


def _layer_skip(argument: str, target: Target) -> Drafter:
    layers, _, block_size = argument.partition(":")
    return LayerSkipDrafter(
        target,
        _count("layer-skip", layers),
        _count("layer-skip", block_size or str(DEFAULT_BLOCK_SIZE)),
    )


def _draft_model(argument: str, target: Target) -> Drafter:
    source, _, block_size = argument.rpartition(":")
    if not source:
        return DraftModel.load(argument, target)
    return DraftModel.load(source, target, _count("draft-model", block_size))


def _shipped(_: str, target: Target) -> Drafter:
    folder = shipped_drafter(target)
    if folder is None:
        raise CheckpointNotFound(
            f"no drafter comes with the package for {target.folder}: train one (`dspark train`), "
            "or decode without"
        )
    return DSparkDrafter(Checkpoint(folder), target)


_NAMED: Mapping[str, Callable[[str, Target], Drafter]] = MappingProxyType(
    {
        "auto": _shipped,
        "prompt-lookup": _prompt_lookup,
        "layer-skip": _layer_skip,
        "draft-model": _draft_model,
    }
)


def _count(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise InvalidRequest(
            f"{name} takes numbers of at least 1, as in layer-skip:8 or prompt-lookup:10; "
            f"{text!r} is none"
        )
    return int(text)


def _is_dspark(folder: Path) -> bool:
    architectures = read_json(folder / "config.json").get("architectures")
    return isinstance(architectures, list) and ARCHITECTURE in architectures
