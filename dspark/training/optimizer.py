"""What turns gradients into steps: Muon for the layers' matrices, Adam for everything else.

Muon makes every direction of a matrix's step equally long, which Adam's element by element does
not, and so gets further on the same data. Embeddings, norms and the heads' small tables are no maps
between hidden states and stay with Adam. Source: K. Jordan, "Muon: an optimizer for hidden layers
in neural networks", 2024; steps are scaled to the size of Adam's (arXiv 2502.16982), so that one
learning rate serves both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

NAME = "muon"
_MOMENTUM = 0.95


class Optimizer:
    """Both, over the tensors of a drafter that learn.

    Args:
        tensors: by their names in the checkpoint.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        matrices = [tensor for name, tensor in tensors.items() if is_map(name, tensor)]
        others = [tensor for name, tensor in tensors.items() if not is_map(name, tensor)]
        self._muon = torch.optim.Muon(
            matrices, weight_decay=0.0, momentum=_MOMENTUM, adjust_lr_fn="match_rms_adamw"
        )
        self._adam = torch.optim.Adam(others, fused=True)

    def step(self, learning_rate: float) -> None:
        """Follow the gradients, and drop them."""
        for optimizer in (self._muon, self._adam):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
            optimizer.step()  # type: ignore[no-untyped-call]  # torch does not say
            optimizer.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` goes on from."""
        return {"muon": self._muon.state_dict(), "adam": self._adam.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another one stopped."""
        self._muon.load_state_dict(state["muon"])
        self._adam.load_state_dict(state["adam"])


def is_map(name: str, tensor: Tensor) -> bool:
    """Whether a tensor maps hidden states to hidden states: the fusing layer, and the layers'."""
    return tensor.ndim == 2 and name.startswith(("fc.", "layers."))
