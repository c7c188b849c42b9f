"""Which drafted tokens stand: those that leave the target's distribution exactly as it is.

A token x drawn from the drafter's distribution q is accepted with probability min(1, p(x)/q(x)),
p being the target's; the first that is not is replaced by a draw from what p has beyond q. Then
the token at each position is distributed as p, whatever q is (Leviathan et al., arXiv 2211.17192).
Greedy decoding is the limit: a token stands while it is the target's most probable.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from dspark.drafters.protocol import Draft
from dspark.sampling import Sampler, draw


class Verdict(NamedTuple):
    """How many drafted tokens stand, and the target's own token that follows them."""

    accepted: int
    token: int


def verify(logits: Tensor, draft: Draft, sampler: Sampler) -> Verdict:
    """Judge the first drafted tokens by the target's logits.

    Args:
        logits: `[scheduled + 1, vocab]`, after the anchor and after each scheduled token.
        draft: at least the scheduled tokens.
        sampler: the request's.

    Returns:
        The number of accepted tokens and the one after them: a replacement for the first that
        does not stand, or the bonus token if all do.
    """
    scheduled = len(logits) - 1
    for position in range(scheduled):
        token, before = draft.tokens[position], draft.tokens[:position]
        if sampler.params.greedy:
            best = sampler.most_probable(logits[position], before)
            if best != token:
                return Verdict(position, best)
            continue
        target = sampler.distribution(logits[position], before)
        drafter = draft.distributions[position]
        if sampler.rng.random() * float(drafter[token]) >= float(target[token]):
            # Rounding can leave no residual where the two distributions are the same.
            residual = (target - drafter).clamp_min(0)
            return Verdict(position, draw(residual if residual.any() else target, sampler.rng))
    return Verdict(scheduled, sampler.choose(logits[-1], draft.tokens[:scheduled]).token)
