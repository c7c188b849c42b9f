"""How much memory tensors hold, measured at the tensors."""

from __future__ import annotations

import gc

import torch


def tensor_bytes() -> int:
    """What all ordinary tensors of the process hold together, each storage counted once."""
    gc.collect()
    storages = {
        storage.data_ptr(): storage.nbytes()
        for each in gc.get_objects()
        if type(each) is torch.Tensor and each.layout is torch.strided
        for storage in [each.untyped_storage()]
    }
    return sum(storages.values())
