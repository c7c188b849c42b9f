"""What a drafter is trained for: proposals that are accepted, and knowing which will be.

Source: arXiv 2607.05147. Speculative sampling accepts a token with probability
`Σ_v min(p_drafter, p_target) = 1 - ½ ‖p_drafter - p_target‖₁`, so half the distance is what is
lost, and that acceptance is what the confidence should say. The paper takes the cross-entropy of
the one token that the target said. Here it is that of the target's whole distribution, which is
known: the same on average, without the noise of the draw.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from dspark.training.network import Drafted
from dspark.training.packing import Batch

CROSS_ENTROPY, DISTANCE, CONFIDENCE = 0.1, 0.9, 1.0


class Terms(NamedTuple):
    """The weighted means of the loss's terms, and how likely each token is to be accepted.

    Attributes:
        cross_entropy: between the two distributions, over the tokens that the drafter can say.
        distance: between the two distributions, 0 … 2.
        confidence: binary cross-entropy of the confidence and the acceptance.
        acceptance: `[anchors, block]`; without gradients.
    """

    cross_entropy: Tensor
    distance: Tensor
    confidence: Tensor
    acceptance: Tensor

    def loss(self, cross_entropy: float = CROSS_ENTROPY) -> Tensor:
        """What is minimised, with a weight for the cross-entropy."""
        return (
            cross_entropy * self.cross_entropy
            + DISTANCE * self.distance
            + CONFIDENCE * self.confidence
        )


def target_probabilities(batch: Batch, head: Tensor) -> Tensor:
    """The target's probabilities of the drafter's tokens: `[positions, drafted vocabulary]`.

    Args:
        batch: the last hidden states.
        head: float32 rows of the target's head, `[drafted vocabulary, hidden]`.
    """
    logits = functional.linear(batch.finals.float(), head)
    return (logits - batch.log_normalisers[:, None]).exp()


def weights_of_places(valid: Tensor, decay: float) -> Tensor:
    """How much each token counts: position k of a block `exp(-(k - 1) / decay)` where valid.

    Args:
        valid: `[anchors, block]`, which tokens there are.
        decay: how many positions later a token counts 1/e of the first.
    """
    return valid * torch.exp(-torch.arange(valid.shape[1], device=valid.device) / decay)


def loss_terms(drafted: Drafted, probabilities: Tensor, valid: Tensor, decay: float) -> Terms:
    """The terms for a batch of blocks.

    A drafter with a part of the vocabulary gives every other token the probability 0. What the
    target gives to all those is distance: it is 1 less what it gives to the drafter's tokens.

    Args:
        drafted: what the drafter says.
        probabilities: the target's, `[anchors, block, drafted vocabulary]`; they sum to 1 or less.
        valid: `[anchors, block]`, which tokens there are.
        decay: see `weights_of_places`.
    """
    weights = weights_of_places(valid, decay)
    log_drafter = drafted.logits.log_softmax(-1)
    rest = (1 - probabilities.sum(-1)).clamp_min(0)
    distance = (log_drafter.exp() - probabilities).abs().sum(-1) + rest
    acceptance = (1 - distance.detach() / 2).clamp(0, 1)
    surprise = -torch.linalg.vecdot(probabilities, log_drafter)
    doubt = functional.binary_cross_entropy_with_logits(
        drafted.confidence_logits, acceptance, reduction="none"
    )
    return Terms(
        _mean(surprise, weights),
        _mean(distance, weights),
        _mean(doubt, weights),
        acceptance * valid,
    )


def accepted_length(acceptance: Tensor) -> Tensor:
    """Tokens a step if every block is verified whole, the target's own included: `[anchors]`.

    Args:
        acceptance: `[anchors, block]`, each given that all before it are accepted; 0 where the
            answer is over.
    """
    return 1 + acceptance.cumprod(-1).sum(-1)


def _mean(values: Tensor, weights: Tensor) -> Tensor:
    return (values * weights).sum() / weights.sum().clamp_min(torch.finfo(torch.float32).tiny)
