"""The drafter that comes with the package is found for the model it was trained for alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dspark import CheckpointNotFound, DSparkDrafter, Target, load_drafter
from dspark.drafters import shipped, shipped_drafter


@pytest.fixture
def folder(tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where shipped drafters lie, with one for `target`."""
    monkeypatch.setattr(shipped, "_FOLDER", tmp_path)
    config = {
        "num_target_layers": target.decoder.config.layers,
        "hidden_size": target.decoder.config.hidden_size,
        "vocab_size": target.vocab_size,
        "target_stop_token_ids": sorted(target.stop_token_ids),
    }
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_a_target_finds_its_drafter(folder: Path, target: Target) -> None:
    assert shipped_drafter(target) == folder / "tiny"


def test_it_is_loaded_by_the_name_auto(
    target: Target, write_drafter: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dspark.drafters.registry.shipped_drafter", lambda wanted: write_drafter())
    assert isinstance(load_drafter("auto", target), DSparkDrafter)
    monkeypatch.setattr("dspark.drafters.registry.shipped_drafter", lambda wanted: None)
    with pytest.raises(CheckpointNotFound, match="train one"):
        load_drafter("auto", target)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_target_layers", 99),
        ("hidden_size", 1),
        ("vocab_size", 7),
        ("target_stop_token_ids", [5]),
        ("target_stop_token_ids", None),
    ],
)
def test_another_models_drafter_is_not_taken(
    folder: Path, target: Target, key: str, value: object
) -> None:
    path = folder / "tiny" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    assert shipped_drafter(target) is None


def test_where_nothing_is_shipped_nothing_is_found(
    tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped, "_FOLDER", tmp_path / "missing")
    assert shipped_drafter(target) is None
