"""The drafter in training: the very code that drafts, over weights that gradients flow into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from dspark.checkpoint import Checkpoint
from dspark.drafters import DSparkDrafter
from dspark.errors import MissingTensor, WrongShape
from dspark.linear import FloatLinear
from dspark.target import Target
from dspark.training.packing import Batch, PackedAttention


class LiveCheckpoint(Checkpoint):
    """A checkpoint whose tensors are the parameters of a training run, not a file's.

    Loading copies and converts them by operations that autograd follows, so a drafter loaded from
    it passes its gradients back to them.
    """

    def __init__(self, config: Mapping[str, object], tensors: Mapping[str, Tensor]) -> None:
        self.folder = Path()
        self.config = config
        self._tensors = tensors

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def tensor(self, name: str, shape: Sequence[int]) -> Tensor:
        """See `Checkpoint`."""
        if name not in self._tensors:
            raise MissingTensor(f"training has no tensor {name}")
        tensor = self._tensors[name]
        if tensor.shape != torch.Size(shape):
            raise WrongShape(f"{name} is {list(tensor.shape)}, and its drafter's {list(shape)}")
        return tensor


class Drafted(NamedTuple):
    """What a drafter says about the tokens of its blocks.

    Attributes:
        logits: `[anchors, block, drafted vocabulary]` float32.
        confidence_logits: `[anchors, block]` float32.
    """

    logits: Tensor
    confidence_logits: Tensor


class Blocks(NamedTuple):
    """The same before it is spread over the vocabulary; rows are tokens, block after block.

    The logits are `hidden @ head.T + corrections @ spread.T`.

    Attributes:
        hidden: `[anchors × block, hidden]`.
        corrections: `[anchors × block, rank]`, of the sequential stage.
        head: `[drafted vocabulary, hidden]`.
        spread: `[drafted vocabulary, rank]`.
        confidence_logits: `[anchors, block]` float32.
    """

    hidden: Tensor
    corrections: Tensor
    head: Tensor
    spread: Tensor
    confidence_logits: Tensor


class TrainableDrafter(DSparkDrafter):
    """A drafter that reads all of its contexts at once instead of from a cache.

    It is made anew for every step, as drafters copy their weights when they are loaded. That costs
    little beside the step itself.

    Args:
        config: a drafter's `config.json`.
        tensors: its weights; those that are to learn require gradients.
        frame: the target's embedding and head, in the precision to compute with.
    """

    def __init__(
        self, config: Mapping[str, object], tensors: Mapping[str, Tensor], frame: Target
    ) -> None:
        super().__init__(LiveCheckpoint(config, tensors), frame)

    def teacher_forced(self, batch: Batch) -> Drafted:
        """Both stages, every block given its true tokens as the ones before."""
        blocks = self.blocks(batch)
        logits = (blocks.hidden @ blocks.head.T).float()
        logits = logits + (blocks.corrections @ blocks.spread.T).float()
        return Drafted(logits.view(*batch.valid.shape, -1), blocks.confidence_logits)

    def blocks(self, batch: Batch) -> Blocks:
        """What `teacher_forced` makes logits of."""
        attention = PackedAttention(
            batch, *self.context(batch.taps.to(self._target.dtype), batch.context_positions)
        )
        token_ids = batch.tokens[:, :-1].clone()
        token_ids[:, 1:] = self.mask_token
        places = torch.arange(self.block_size, device=token_ids.device)
        positions = batch.anchor_positions[:, None] + places
        hidden = self.block(token_ids.flatten(), positions.flatten(), attention)
        before = functional.embedding(batch.tokens[:, :-1], self._previous).to(hidden.dtype)
        by_place = hidden.view(*token_ids.shape, -1).unbind(1)
        state = self.head.start(len(token_ids))
        corrections = []
        for here, previous in zip(by_place, before.unbind(1), strict=True):
            correction, state = self.head.correction(here, previous, state)
            corrections.append(correction)
        assert self._confidence is not None
        confidences = self._confidence(hidden, before.flatten(0, 1))
        assert isinstance(self._head, FloatLinear)
        return Blocks(
            hidden,
            torch.stack(corrections, 1).flatten(0, 1),
            self._head.weight,
            self.head.spread,
            confidences.view(token_ids.shape),
        )
