"""The other ways to draft, for the tiny model: each by a name, with and without trees."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from dspark import Drafter, Target, load_drafter
from dspark.drafters import branched
from dspark.tree import TreeShape
from tests.unit.dspark.conftest import CONFIG

Write = Callable[..., Path]

TREE = TreeShape.likeliest(7, acceptance=(0.5, 0.4, 0.3))
"""Three candidates at first, and branches at several depths."""

TREES: Mapping[str, TreeShape | None] = {"chain": None, "tree": TREE}
RIVALS = ("prompt-lookup", "layer-skip:2", "draft-model")


def draft_model_folder(tmp_path: Path, target: Target) -> Path:
    """The target cut to two of its three layers, as a model of its own."""
    folder = tmp_path / "draft-model"
    if not folder.is_dir():
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": 2}))
        shutil.copy(target.folder / "model.safetensors", folder)
    return folder


def rival(name: str, target: Target, tmp_path: Path, tree: TreeShape | None = None) -> Drafter:
    """One of `RIVALS`, or `dspark` if `tmp_path` is the folder of such a drafter."""
    source = {
        "draft-model": lambda: draft_model_folder(tmp_path, target),
        "dspark": lambda: tmp_path,
    }
    drafter = load_drafter(source[name]() if name in source else name, target)
    return drafter if tree is None else branched(drafter, tree)
