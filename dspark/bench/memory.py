"""How much memory the process has come to use."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from pathlib import Path

import torch


def memory_bytes(device: str) -> int | None:
    """Memory in use on the device; on a CPU what is not a file's own. None if nobody can tell."""
    gc.collect()
    if device.startswith("cuda"):
        return int(torch.cuda.memory_allocated(device))
    with suppress(OSError, AttributeError):  # what was freed counts until it is given back
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    sizes = [line.split()[1] for line in lines if line.startswith("RssAnon:")]
    return 1024 * int(sizes[0]) if sizes else None
