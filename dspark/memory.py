"""Memory for what is large: in large pages where the system has them."""

from __future__ import annotations

import math
import mmap
import os
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


def use_large_pages() -> None:
    """Let torch ask for large pages for all large tensors of this process.

    A training step makes and drops large tensors all the time. With small pages as much time goes
    into getting them as into a matrix product. Torch looks whether it is to do so when the first
    tensor is made; later this changes nothing.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
