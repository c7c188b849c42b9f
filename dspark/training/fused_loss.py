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

from dspark.training.loss import CROSS_ENTROPY, DISTANCE, Terms
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
        tokens: `[rows]`, as places in the drafter's vocabulary; -1 for others.
        weights: `[rows]`, how much each counts; 0 where the answer is over.
    """

    probabilities: Tensor
    predicting: Tensor
    tokens: Tensor
    weights: Tensor


class _Fused(NamedTuple):
    loss: Tensor
    cross_entropy: Tensor
    distance: Tensor
    acceptance: Tensor


class _Distances(torch.autograd.Function):
    """`CROSS_ENTROPY · cross-entropy + DISTANCE · distance`, from hidden states and corrections."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, correction: Tensor, spread: Tensor, head: Tensor, labels: Labels
    ) -> _Fused:
        """See `fused_terms`; `spread` is `[drafted vocabulary, rank]`."""
        logits = torch.addmm(hidden @ head.T, correction, spread.T)
        known = labels.tokens >= 0
        tiny = torch.finfo(torch.float32).tiny
        total = labels.weights.sum().clamp_min(tiny)
        total_known = (labels.weights * known).sum().clamp_min(tiny)
        surprise, distance = torch.empty_like(labels.weights), torch.empty_like(labels.weights)
        rows = _ROWS_IN_CACHE if logits.device.type == "cpu" else _ROWS_ON_DEVICE
        for start in range(0, len(logits), rows):
            part = slice(start, start + rows)
            surprise[part], distance[part] = _into_gradients(
                logits[part],
                labels.probabilities[labels.predicting[part]],
                labels.tokens[part, None],
                (DISTANCE / total * labels.weights[part])[:, None],
                (CROSS_ENTROPY / total_known * labels.weights[part] * known[part])[:, None],
            )
        ctx.save_for_backward(logits @ head, logits @ spread, logits.T @ correction)
        mean_surprise = (surprise * labels.weights * known).sum() / total_known
        mean_distance = (distance * labels.weights).sum() / total
        acceptance = (1 - distance / 2).clamp(0, 1)
        ctx.mark_non_differentiable(mean_surprise, mean_distance, acceptance)
        loss = CROSS_ENTROPY * mean_surprise + DISTANCE * mean_distance
        return _Fused(loss, mean_surprise, mean_distance, acceptance)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Those of the loss, which are known already."""
        return (*(gradients[0] * saved for saved in ctx.saved_tensors), None, None)


def _into_gradients(
    logits: Tensor, target: Tensor, tokens: Tensor, of_distance: Tensor, of_surprise: Tensor
) -> tuple[Tensor, Tensor]:
    """Overwrite a few rows of logits with the loss's gradients; the surprises and the distances.

    Args:
        logits: `[rows, vocab]`.
        target: the target's probabilities, float32.
        tokens: `[rows, 1]`, -1 where the drafter has no such token.
        of_distance: `[rows, 1]`, how much the loss grows with the distance.
        of_surprise: the same of the surprise; 0 where the token is not known.
    """
    log_drafter = logits.float().log_softmax(-1)
    tokens = tokens.clamp_min(0)
    surprise = -log_drafter.gather(-1, tokens)
    drafter = log_drafter.exp_()
    rest = (1 - target.sum(-1)).clamp_min_(0)
    difference = target.neg_().add_(drafter)
    distance = torch.linalg.vector_norm(difference, 1, -1) + rest
    signs = difference.sign_()
    mean_sign = torch.linalg.vecdot(signs, drafter)[:, None]
    gradient = signs.sub_(mean_sign).mul_(of_distance).add_(of_surprise).mul_(drafter)
    gradient.scatter_add_(-1, tokens, -of_surprise)
    logits.copy_(gradient)
    return surprise[:, 0], distance


def fused_terms(blocks: Blocks, labels: Labels) -> tuple[Tensor, Terms]:
    """The loss, to be differentiated, and its terms (see `dspark.training.loss.loss_terms`)."""
    size = blocks.confidence_logits.shape
    found = _Fused(
        *_Distances.apply(  # type: ignore[no-untyped-call]  # torch does not say
            blocks.hidden, blocks.corrections, blocks.spread, blocks.head, labels
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
