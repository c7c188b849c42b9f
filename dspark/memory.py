"""Memory for what is large: in large pages where the system has them, and kept when it is free."""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
from collections.abc import Sequence

import torch
from torch import Tensor

_LARGE_PAGE = 2 << 20


def large_zeros(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """`torch.zeros`, in large pages if it is large.

    A step reads all weights, and all keys and values of its sequences. With small pages a third of
    its time goes into looking up where they lie. Linux gives large ones where it is asked to, for
    memory that begins at one.
    """
    size = math.prod(shape) * dtype.itemsize
    if size < _LARGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(tuple(shape), dtype=dtype)
    room = mmap.mmap(-1, size + _LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    room.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(room, dtype=torch.uint8)
    start = -whole.data_ptr() % _LARGE_PAGE
    return whole[start : start + size].view(dtype).view(tuple(shape))


def joined(parts: Sequence[Tensor]) -> Tensor:
    """`torch.cat`, in large pages if it is large."""
    shape = (sum(len(part) for part in parts), *parts[0].shape[1:])
    return torch.cat(list(parts), out=large_zeros(shape, parts[0].dtype))


_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of glibc's malloc.h
_NEVER = (1 << 31) - 1


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees, where the C library is glibc.

    A training step needs the same large tensors as the one before. glibc gives large ones back to
    the system at once and asks for new ones, and then half of a matrix product's time goes into
    zeroing pages.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, _NEVER)
