"""Where a model is computed: a torch device that is really there."""

from __future__ import annotations

import torch

from dspark.errors import InvalidRequest


def device_named(name: str) -> torch.device:
    """The device of that name, here or not; raises `InvalidRequest` if it is no such name."""
    try:
        return torch.device(name)
    except RuntimeError:
        raise InvalidRequest(f"device is {name!r}; give cpu, cuda, or cuda:1 and so on") from None


def require(device: torch.device) -> None:
    """Raise `InvalidRequest` if it is a GPU that this machine or this build of torch has not."""
    if device.type != "cuda":
        return
    if torch.version.cuda is None and torch.version.hip is None:
        raise InvalidRequest(
            f"device is {str(device)!r}, and this build of torch is for CPUs only: choose cpu, or "
            "install a CUDA build of torch (https://pytorch.org/get-started)"
        )
    count = torch.cuda.device_count()
    if (device.index or 0) >= count:
        advice = "one below that number" if count else "cpu, or check the driver with nvidia-smi"
        raise InvalidRequest(
            f"device is {str(device)!r}, and torch finds {count} NVIDIA GPUs here: choose {advice}"
        )
