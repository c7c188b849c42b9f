"""From logits to the distribution that a request asks for, and one token drawn from it.

The same processed distribution serves plain decoding and both sides of the acceptance ratio of
speculative decoding; that is what keeps speculation lossless under every setting.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from dspark.errors import InvalidSampling

# Top-p looks at this many of the most probable tokens first: sorting a whole vocabulary costs
# milliseconds, and the nucleus is nearly always inside. It widens until the nucleus fits.
_FIRST_NUCLEUS = 256


@dataclass(frozen=True)
class SamplingParams:
    """How a request wants its tokens chosen; raises `InvalidSampling` when out of range.

    Applied in this order: repetition, presence and frequency penalty, logit bias, temperature,
    top-k, top-p, min-p. `temperature=0` takes the most probable token. `top_k=0`, `top_p=1` and
    `min_p=0` filter nothing. The repetition penalty looks at prompt and answer, presence and
    frequency only at the answer. `stop_token_ids` are added to the tokenizer's own. `stop` are
    texts: the answer ends with the last token before the first of them. A `seed` repeats an answer
    whatever shares its steps; with a drafter only if as much is drafted and verified each time.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop_token_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    max_new_tokens: int = 128
    seed: int | None = None

    def __post_init__(self) -> None:
        _require(0 <= self.temperature < math.inf, "temperature", self.temperature, "≥ 0")
        _require(self.top_k >= 0, "top_k", self.top_k, "≥ 0 (0 keeps every token)")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1")
        _require(0 <= self.min_p < 1, "min_p", self.min_p, "at least 0 and below 1")
        _require(
            0 < self.repetition_penalty < math.inf,
            "repetition_penalty",
            self.repetition_penalty,
            "above 0 (1 changes nothing)",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _require(math.isfinite(value), name, value, "finite")
        for token, bias in self.logit_bias.items():
            _require(
                token >= 0 and not math.isnan(bias) and bias != math.inf,
                f"logit_bias[{token}]",
                bias,
                "a token id ≥ 0 with a bias below +infinity (-infinity forbids the token)",
            )
        _require(
            not isinstance(self.stop, str) and all(self.stop),
            "stop",
            repr(self.stop),
            "a tuple of texts, none of them empty",
        )
        _require(self.max_new_tokens >= 1, "max_new_tokens", self.max_new_tokens, "≥ 1")

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is taken and nothing is drawn."""
        return self.temperature == 0

    @property
    def depends_on_history(self) -> bool:
        """Whether the tokens before change the distribution."""
        return (
            self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
        )


def _require(holds: bool, name: str, value: object, range_: str) -> None:
    if not holds:
        raise InvalidSampling(f"{name} is {value}; it must be {range_}")


def processed_logits(
    logits: Tensor, params: SamplingParams, prompt: Sequence[int], answer: Sequence[int]
) -> Tensor:
    """Penalties and bias applied to one position's logits, before any temperature.

    Args:
        logits: `[vocab]`, float; not modified.
        params: the request's settings.
        prompt: the request's prompt.
        answer: every token between the prompt and this position.

    Returns:
        `[vocab]` float32.
    """
    logits = logits.float()
    if not params.depends_on_history and not params.logit_bias:
        return logits
    logits = logits.clone()
    if params.repetition_penalty != 1 and (prompt or answer):
        seen = torch.tensor(sorted({*prompt, *answer}), device=logits.device)
        at_seen = logits[seen]
        logits[seen] = torch.where(
            at_seen > 0, at_seen / params.repetition_penalty, at_seen * params.repetition_penalty
        )
    if (params.presence_penalty or params.frequency_penalty) and answer:
        counts = Counter(answer)
        tokens = torch.tensor(list(counts), device=logits.device)
        times = torch.tensor(list(counts.values()), device=logits.device, dtype=torch.float32)
        logits[tokens] -= params.presence_penalty + params.frequency_penalty * times
    if params.logit_bias:
        tokens = torch.tensor(list(params.logit_bias), device=logits.device)
        logits[tokens] += torch.tensor(list(params.logit_bias.values()), device=logits.device)
    return logits


def distribution(
    logits: Tensor, params: SamplingParams, prompt: Sequence[int], answer: Sequence[int]
) -> Tensor:
    """The distribution that the request draws this position's token from.

    Args and shapes as in `processed_logits`; returns `[vocab]` float32 that sums to 1, one-hot
    for a greedy request.
    """
    logits = processed_logits(logits, params, prompt, answer)
    if params.greedy:
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).float()
    logits = logits / params.temperature
    if 0 < params.top_k < logits.shape[-1]:
        kept = logits.topk(params.top_k)
        logits = torch.full_like(logits, -math.inf).scatter_(0, kept.indices, kept.values)
    probabilities = logits.softmax(-1)
    if params.top_p < 1:
        probabilities = _nucleus(probabilities, params.top_p)
    if params.min_p > 0:
        floor = params.min_p * probabilities.max()
        probabilities = _normalised(torch.where(probabilities >= floor, probabilities, 0))
    return probabilities


def _nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """The fewest most probable tokens that together reach `top_p`, renormalised."""
    vocab = probabilities.shape[-1]
    size = min(_FIRST_NUCLEUS, vocab)
    while True:
        values, indices = probabilities.topk(size)
        before = values.cumsum(-1) - values
        inside = before < top_p
        if size == vocab or not bool(inside[-1]):
            break
        size = min(8 * size, vocab)
    kept = torch.zeros_like(probabilities).scatter_(0, indices[inside], values[inside])
    return _normalised(kept)


def _normalised(weights: Tensor) -> Tensor:
    return weights / weights.sum()


def draw(probabilities: Tensor, rng: random.Random) -> int:
    """Draw one token id from `[vocab]` non-negative weights, which need not sum to 1.

    One uniform number from the request's own generator decides, so a seeded request repeats
    whatever else shares its steps. Raises ValueError if no weight is above zero.
    """
    cumulative = probabilities.double().cumsum(-1)
    total = float(cumulative[-1])
    if not 0 < total < math.inf:
        raise ValueError(f"the token weights sum to {total}: no token can be drawn")
    # The first token whose cumulative weight exceeds the point has itself a weight above zero.
    point = min(rng.random() * total, math.nextafter(total, 0.0))
    return int(torch.searchsorted(cumulative, point, right=True))


class Choice(NamedTuple):
    """A token and the distribution it was drawn from; None where nothing was drawn."""

    token: int
    distribution: Tensor | None


@dataclass(eq=False)
class Sampler:
    """Chooses tokens for one request, by its settings, its history and its random numbers.

    Every method takes the logits `[vocab]` of the position after prompt, answer and `drafted`.

    Attributes:
        params: the request's settings.
        prompt: its prompt.
        answer: its answer so far; the request's own list, which grows.
        rng: its random numbers.
    """

    params: SamplingParams
    prompt: Sequence[int]
    answer: Sequence[int]
    rng: random.Random

    def processed(self, logits: Tensor, drafted: Sequence[int] = ()) -> Tensor:
        """The logits after penalties and bias, `[vocab]`."""
        return processed_logits(logits, *self._context(drafted))

    def most_probable(self, logits: Tensor, drafted: Sequence[int] = ()) -> int:
        """The token that a greedy request takes."""
        processed = self.processed(logits, drafted)
        if processed.device.type == "cpu":
            return int(processed.numpy().argmax())  # torch's own takes twenty times as long
        return int(processed.argmax())

    def distribution(self, logits: Tensor, drafted: Sequence[int] = ()) -> Tensor:
        """The distribution that a token is drawn from, `[vocab]`."""
        return distribution(logits, *self._context(drafted))

    def choose(self, logits: Tensor, drafted: Sequence[int] = ()) -> Choice:
        """Take or draw a token."""
        if self.params.greedy:
            return Choice(self.most_probable(logits, drafted), None)
        probabilities = self.distribution(logits, drafted)
        return Choice(draw(probabilities, self.rng), probabilities)

    def _context(
        self, drafted: Sequence[int]
    ) -> tuple[SamplingParams, Sequence[int], Sequence[int]]:
        if drafted and self.params.depends_on_history:
            return self.params, self.prompt, [*self.answer, *drafted]
        return self.params, self.prompt, self.answer
