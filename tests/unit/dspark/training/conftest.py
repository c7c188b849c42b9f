"""Targets that speak a small language, so that there is something for a drafter to learn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dspark.training.pipeline import Plan
from tests.unit.dspark.training.speaking import small_plan, write_speaking_target


@pytest.fixture(scope="session")
def speaking_targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By family; not to be written to."""
    torch.set_num_threads(1)
    return {
        family: write_speaking_target(tmp_path_factory.mktemp(family), family)
        for family in ("llama", "qwen3")
    }


@pytest.fixture(scope="session")
def speaking_target(speaking_targets: dict[str, Path]) -> Path:
    return speaking_targets["llama"]


@pytest.fixture(scope="session")
def make_plan() -> Callable[..., Plan]:
    return small_plan
