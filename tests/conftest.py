"""Where the tests find models, recordings and reference vectors."""

from __future__ import annotations

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_folder() -> Path:
    """The folder of shared recordings and reference vectors beside the checkout, if present."""
    folder = REPOSITORY.parent / "shared"
    if not folder.is_dir():
        pytest.skip("the shared recordings are not beside this checkout")
    return folder


@pytest.fixture(scope="session")
def fixtures_folder() -> Path:
    """The recordings that come with the project."""
    return REPOSITORY / "tests" / "fixtures"
