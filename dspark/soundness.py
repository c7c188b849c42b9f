"""How much of a draft can be used, whatever a drafter that is broken puts into it."""

from __future__ import annotations

import torch

from dspark.drafters.protocol import Draft

_TOLERANCE = 1e-3  # of a distribution's sum: float32, over a large vocabulary


def sound_part(draft: Draft, vocab: int, *, sampled: bool) -> Draft:
    """The draft up to the first token that makes no sense; the whole of it if all do.

    A token makes sense if the target knows it, its confidence is a probability and, where tokens
    are sampled, it comes with a distribution over the vocabulary in which it is possible.

    The part before is kept, not thrown away with the rest: what is wrong with a token may depend on
    the tokens before it, and whether *they* are verified must not (see `dspark.verification`).

    Args:
        draft: as the drafter gave it.
        vocab: the target's vocabulary.
        sampled: whether the request draws its tokens.
    """
    if draft.tree is not None and len(draft.tree) != len(draft.tokens):
        return Draft()
    length = 0
    for token, confidence in zip(draft.tokens, draft.confidence, strict=False):
        # Comparisons with NaN are false.
        if not (0 <= token < vocab and 0.0 <= confidence <= 1.0):
            break
        length += 1
    if sampled:
        length = _drawn(draft, length, vocab)
    if draft.evidence and len(draft.evidence) != len(draft.tokens):
        length = 0
    if length == len(draft.tokens) == len(draft.confidence):
        return draft
    return draft.taking(range(length))


def _drawn(draft: Draft, length: int, vocab: int) -> int:
    """How many of the first `length` tokens were drawn from distributions."""
    shaped = 0
    for distribution in draft.distributions[:length]:
        if distribution.shape != (vocab,):
            break
        shaped += 1
    if shaped == 0:
        return 0
    # Together, so that a GPU is waited for once.
    distributions = torch.stack(draft.distributions[:shaped])
    tokens = torch.tensor(draft.tokens[:shaped], device=distributions.device)[:, None]
    sound = (
        (distributions.amin(-1) >= 0)
        & ((distributions.sum(-1) - 1).abs() < _TOLERANCE)
        & (distributions.gather(-1, tokens)[:, 0] > 0)
    ).tolist()
    return sound.index(False) if False in sound else shaped
