"""Which drafted tokens stand: those that leave the target's distribution exactly as it is.

A token x drawn from the drafter's distribution q is accepted with probability min(1, p(x)/q(x)),
p being the target's; the first that is not is replaced by a draw from what p has beyond q. Then
the token at each position is distributed as p, whatever q is (Leviathan et al., arXiv 2211.17192).
Greedy decoding is the limit: a token stands while it is the target's most probable.

In a tree, a refused candidate leaves what p has beyond q in p's place, and the next candidate is
judged by that. Each was drawn from its own q, which may depend on the candidates before it, so each
time the rule above holds for what is left, and with it for p (recursive rejection: SpecInfer,
arXiv 2305.09781; drawing siblings without replacement: arXiv 2402.14160).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from dspark.acceptance import candidates
from dspark.drafters.protocol import Draft
from dspark.sampling import Sampler, draw
from dspark.tree import ANCHOR


class Verdict(NamedTuple):
    """How many drafted tokens stand, and the target's own token that follows them."""

    accepted: int
    token: int


class TreeVerdict(NamedTuple):
    """Which drafted tokens stand, each the parent of the next, and the token that follows them."""

    path: Sequence[int]
    token: int


def verify(logits: Tensor, draft: Draft, sampler: Sampler) -> Verdict:
    """Judge the first tokens of a draft that is no tree by the target's logits.

    Args:
        logits: `[scheduled + 1, vocab]`, after the anchor and after each scheduled token.
        draft: at least the scheduled tokens.
        sampler: the request's.

    Returns:
        The number of accepted tokens and the one after them: a replacement for the first that
        does not stand, or the bonus token if all do.
    """
    path, token = verify_tree(logits, draft, sampler)
    return Verdict(len(path), token)


def verify_tree(logits: Tensor, draft: Draft, sampler: Sampler) -> TreeVerdict:
    """Judge a draft, tree or not; arguments as for `verify`."""
    scheduled = len(logits) - 1
    path: list[int] = []
    before: list[int] = []
    node = ANCHOR
    while True:
        offered = [each for each in candidates(draft, node) if each < scheduled]
        accepted, token = _chosen(logits[node + 1], offered, draft, before, sampler)
        if accepted is None:
            return TreeVerdict(tuple(path), token)
        node = accepted
        path.append(node)
        before.append(token)


def _chosen(
    logits: Tensor, offered: Sequence[int], draft: Draft, before: Sequence[int], sampler: Sampler
) -> tuple[int | None, int]:
    """The accepted candidate for one place, if there is one, and the token that comes there."""
    if sampler.params.greedy:
        best = sampler.most_probable(logits, before)
        return next((node for node in offered if draft.tokens[node] == best), None), best
    left = sampler.distribution(logits, before)
    for place, node in enumerate(offered):
        token, drafter = draft.tokens[node], draft.distributions[node]
        if place > 0:
            left = left / left.sum()
        if sampler.rng.random() * float(drafter[token]) < float(left[token]):
            return node, token
        residual = (left - drafter).clamp_min(0)
        # Rounding can leave no residual where the two distributions are the same.
        left = residual if residual.any() else left
    return None, draw(left, sampler.rng)
