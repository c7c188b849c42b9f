"""Memory for what is large."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PAGES_AFTER_FIRST = """
import resource, torch
from dspark.memory import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

if {kept}:
    keep_freed_memory()
torch.ones(16 << 20)
before = faults()
for _ in range(4):
    torch.ones(16 << 20)
print(faults() - before)
"""


def pages(kept: bool) -> int:
    """How many pages a process gets anew for tensors as large as one it had before."""
    script = PAGES_AFTER_FIRST.format(kept=kept)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_a_process_that_keeps_freed_memory_gets_no_new_pages_for_the_same_tensors() -> None:
    assert pages(kept=True) < pages(kept=False) / 10
