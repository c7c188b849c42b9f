"""What the documents point at is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

DOCUMENTS = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md")]
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)|src=\"(?!https?:)([^\"]+)\"")
CODE_PATH = re.compile(r"`((?:assistant|audio|dspark|tests|configs)/[\w./-]*)`")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(document: Path) -> None:
    links = [first or second for first, second in LINK.findall(document.read_text())]
    assert [link for link in links if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_named_exists(document: Path) -> None:
    named = CODE_PATH.findall(document.read_text())
    assert [path for path in named if not (REPOSITORY / path).exists()] == []
