"""`dspark.sampling` for many rows at once, made of tensors alone, so that it can be recorded.

What needs a request's history stays with `dspark.sampling`: penalties, and for simplicity logit
bias; so does a top-k of more than `CANDIDATES`. `on_device` tells which requests are left.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import IntEnum

import torch
from torch import Tensor

from dspark.sampling import SamplingParams

CANDIDATES = 1024
"""Top-k and top-p look at this many of the most probable tokens: sorting all takes too long."""

SETTINGS = 4
"""How many numbers `settings_row` gives."""


class Kind(IntEnum):
    """How much has to be computed to serve all rows of a step; each includes those before."""

    GREEDY = 0
    WHOLE = 1  # temperature and min-p, which need the whole vocabulary but no order in it
    NARROW = 2  # top-k and top-p


def on_device(params: SamplingParams) -> bool:
    """Whether the request's distributions can be computed here."""
    return (
        not params.depends_on_history
        and not params.logit_bias
        and (params.greedy or params.top_k <= CANDIDATES)
    )


def kind_for(requests: Iterable[SamplingParams]) -> Kind:
    """What has to be computed for requests that share a step."""
    return max((_kind(params) for params in requests), default=Kind.GREEDY)


def _kind(params: SamplingParams) -> Kind:
    if params.greedy:
        return Kind.GREEDY
    return Kind.NARROW if params.top_k > 0 or params.top_p < 1 else Kind.WHOLE


def settings_row(params: SamplingParams) -> tuple[float, ...]:
    """A request's settings as one row of numbers; all zero means greedy."""
    if params.greedy:
        return (0.0,) * SETTINGS
    return params.temperature, float(params.top_k), params.top_p, params.min_p


def distributions(logits: Tensor, settings: Tensor, kind: Kind) -> tuple[Tensor, Tensor]:
    """The distribution that each row's token is drawn from (see `dspark.sampling.distribution`).

    Args:
        logits: `[rows, vocab]` float32.
        settings: `[rows, SETTINGS]`, a `settings_row` each.
        kind: enough for all rows.

    Returns:
        `[rows, vocab]` float32, one-hot for greedy rows, and `[rows]` bool: whether the row's
        nucleus is larger than `CANDIDATES`, and was cut to those.
    """
    best = torch.zeros_like(logits).scatter_(1, logits.argmax(-1, keepdim=True), 1.0)
    cut = torch.zeros(len(logits), dtype=torch.bool, device=logits.device)
    if kind is Kind.GREEDY:
        return best, cut
    temperature, top_k, top_p, min_p = settings.float()[:, :, None].unbind(1)
    greedy = temperature == 0
    scaled = logits / temperature.masked_fill(greedy, 1)
    if kind is Kind.NARROW:
        probabilities, cut = _narrowed(scaled, top_k, top_p)
    else:
        probabilities = scaled.softmax(-1)
    floor = min_p * probabilities.amax(-1, keepdim=True)
    above = _normalised(probabilities.masked_fill(probabilities < floor, 0))
    probabilities = torch.where(min_p > 0, above, probabilities)
    return torch.where(greedy, best, probabilities), cut & ~greedy[:, 0]


def _narrowed(scaled: Tensor, top_k: Tensor, top_p: Tensor) -> tuple[Tensor, Tensor]:
    """Top-k and top-p on `[rows, vocab]` logits; `top_k` and `top_p` are `[rows, 1]`."""
    size = min(CANDIDATES, scaled.shape[-1])
    values, indices = scaled.topk(size)
    rank = torch.arange(size, device=scaled.device)
    most_probable = torch.full_like(scaled, -math.inf).scatter_(
        1, indices, values.masked_fill(rank >= top_k, -math.inf)
    )
    probabilities = torch.where(top_k > 0, most_probable, scaled).softmax(-1)
    ordered = probabilities.gather(1, indices)
    cumulative = ordered.cumsum(-1)
    inside = cumulative - ordered < top_p
    nucleus = torch.zeros_like(scaled).scatter_(1, indices, ordered.masked_fill(~inside, 0))
    filtered = top_p < 1
    if size < scaled.shape[-1]:
        cut = filtered & (cumulative[:, -1:] < top_p)
    else:
        cut = torch.zeros_like(filtered)
    return torch.where(filtered, _normalised(nucleus), probabilities), cut[:, 0]


def _normalised(weights: Tensor) -> Tensor:
    return weights / weights.sum(-1, keepdim=True)


def draw(weights: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Draw one token of each row by a uniform number of 0 … 1 (see `dspark.sampling.draw`).

    Args:
        weights: `[rows, vocab]`, not negative; they need not sum to 1.
        uniforms: `[rows]` float64.

    Returns:
        The tokens `[rows]`, and `[rows]` bool: whether there was anything to draw from.
    """
    cumulative = weights.double().cumsum(-1)
    total = cumulative[:, -1]
    below = torch.nextafter(total, torch.zeros_like(total))
    point = torch.minimum(uniforms * total, below)
    # The first token whose cumulative weight exceeds the point has itself a weight above zero.
    tokens = torch.searchsorted(cumulative, point[:, None], right=True)[:, 0]
    return tokens.clamp_max(weights.shape[-1] - 1), (total > 0) & total.isfinite()
