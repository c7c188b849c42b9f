"""Large tensors and the pages they lie in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PAGES_OF_TENSORS = """
import resource, torch
from dspark.memory import use_large_pages

if {large}:
    use_large_pages()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    torch.ones(16 << 20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def pages(large: bool) -> int:
    """How many pages a process is given for some large tensors."""
    script = PAGES_OF_TENSORS.format(large=large)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(
    not LARGE_PAGES.exists() or "[madvise]" not in LARGE_PAGES.read_text(),
    reason="the system gives large pages to everybody, or to nobody",
)
def test_large_tensors_lie_in_large_pages_if_they_are_to() -> None:
    assert pages(large=True) < pages(large=False) / 10
