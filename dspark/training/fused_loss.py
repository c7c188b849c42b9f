"""The loss of `dspark.training.loss` and its gradients in one pass over the logits.

A batch has thousands of rows of logits, each as long as the vocabulary. Left to autograd, every
operation of the loss reads and writes all of them in main memory, and that takes several times as
long as the products. Here a few rows at a time go through everything while they are in the cache,
and become their own gradients in place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from dspark.training.loss import DISTANCE, Terms
from dspark.training.network import Blocks

_ROWS_IN_CACHE = 32
_ROWS_ON_DEVICE = 4096


@dataclass(frozen=True)
class Labels:
    """What the target says of the tokens of the blocks; rows are tokens, block after block.

    Attributes:
        probabilities: its distribution over the drafter's vocabulary, `[positions, drafted
            vocabulary]`; sums to 1 or less.
        predicting: `[rows]`, which position predicts each token.
        weights: `[rows]`, how much each counts; 0 where the answer is over.
    """

    probabilities: Tensor
    predicting: Tensor
    weights: Tensor


class _Fused(NamedTuple):
    loss: Tensor
    cross_entropy: Tensor
    distance: Tensor
    acceptance: Tensor


class _Distances(torch.autograd.Function):
    """Cross-entropy and `DISTANCE · distance`, from hidden states and corrections."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        correction: Tensor,
        spread: Tensor,
        head: Tensor,
        labels: Labels,
        cross_entropy: float,
    ) -> _Fused:
        """See `fused_terms`; `spread` is `[drafted vocabulary, rank]`."""
        logits = torch.addmm(hidden @ head.T, correction, spread.T)
        shares = labels.weights / labels.weights.sum().clamp_min(torch.finfo(torch.float32).tiny)
        surprise, distance = torch.empty_like(labels.weights), torch.empty_like(labels.weights)
        rows = _ROWS_IN_CACHE if logits.device.type == "cpu" else _ROWS_ON_DEVICE
        for start in range(0, len(logits), rows):
            part = slice(start, start + rows)
            surprise[part], distance[part] = _into_gradients(
                logits[part],
                labels.probabilities[labels.predicting[part]],
                DISTANCE * shares[part, None],
                cross_entropy * shares[part, None],
            )
        ctx.save_for_backward(logits @ head, logits @ spread, logits.T @ correction)
        mean_surprise, mean_distance = surprise @ shares, distance @ shares
        acceptance = (1 - distance / 2).clamp(0, 1)
        ctx.mark_non_differentiable(mean_surprise, mean_distance, acceptance)
        loss = cross_entropy * mean_surprise + DISTANCE * mean_distance
        return _Fused(loss, mean_surprise, mean_distance, acceptance)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Those of the loss, which are known already."""
        return (*(gradients[0] * saved for saved in ctx.saved_tensors), None, None, None)


def _into_gradients(
    logits: Tensor, target: Tensor, of_distance: Tensor, of_surprise: Tensor
) -> tuple[Tensor, Tensor]:
    """Overwrite a few rows of logits with the loss's gradients; the surprises and the distances.

    Args:
        logits: `[rows, vocab]`.
        target: the target's probabilities, float32.
        of_distance: `[rows, 1]`, how much the loss grows with the distance.
        of_surprise: the same of the surprise.
    """
    log_drafter = logits.float().log_softmax(-1)
    surprise = -torch.linalg.vecdot(target, log_drafter)
    drafter = log_drafter.exp_()
    said = target.sum(-1)
    difference = target.neg_().add_(drafter)
    distance = torch.linalg.vector_norm(difference, 1, -1) + (1 - said).clamp_min(0)
    signs = difference.sign()
    mean_sign = torch.linalg.vecdot(signs, drafter)[:, None]
    gradient = signs.sub_(mean_sign).mul_(of_distance).mul_(drafter)
    # Of the surprise it is `said · drafter - target`.
    excess = difference.addcmul_(drafter, (said - 1)[:, None])
    logits.copy_(gradient.addcmul_(excess, of_surprise))
    return surprise, distance


def fused_terms(blocks: Blocks, labels: Labels, cross_entropy: float) -> tuple[Tensor, Terms]:
    """The loss, to be differentiated, and its terms (see `dspark.training.loss`).

    Args:
        blocks: what the drafter says.
        labels: what the target says.
        cross_entropy: its weight in the loss.
    """
    size = blocks.confidence_logits.shape
    found = _Fused(
        *_Distances.apply(  # type: ignore[no-untyped-call]  # torch does not say
            blocks.hidden, blocks.corrections, blocks.spread, blocks.head, labels, cross_entropy
        )
    )
    doubt = functional.binary_cross_entropy_with_logits(
        blocks.confidence_logits.flatten(), found.acceptance, reduction="none"
    )
    weights = labels.weights
    mean_doubt = (doubt * weights).sum() / weights.sum().clamp_min(torch.finfo(torch.float32).tiny)
    terms = Terms(
        found.cross_entropy,
        found.distance,
        mean_doubt,
        (found.acceptance * (weights > 0)).view(size),
    )
    return found.loss + mean_doubt, terms
