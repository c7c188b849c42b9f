"""What the reference implementation computed: a target, a drafter, and their every cycle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dspark import DSparkDrafter, Target, load_drafter, load_target


@pytest.fixture(scope="module", params=["vanilla_block7", "gated_block7", "rnn_block5"])
def folder(request: pytest.FixtureRequest, shared_folder: Path) -> Path:
    return shared_folder / "golden" / request.param


@pytest.fixture(scope="module")
def prompts(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "expected.json").read_text())["prompts"]
    assert found
    return found


@pytest.fixture(scope="module")
def target(folder: Path) -> Target:
    return load_target(folder / "target")


@pytest.fixture(scope="module")
def drafter(folder: Path, target: Target) -> DSparkDrafter:
    return load_drafter(folder / "drafter", target)
