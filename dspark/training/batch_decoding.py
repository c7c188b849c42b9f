"""Many answers at once, for throughput alone: a row of one tensor each, advanced together.

The engine keeps every sequence's bits apart from its company's, and looks at each for itself.
Here nobody waits for a single answer, so all rows are computed as one batch in the precision that
the processor multiplies fastest, and a row whose answer has ended takes up the next request.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from dspark.device_sampling import Kind, distributions, kind_for, settings_row
from dspark.errors import PromptTooLong
from dspark.fast_path import compiled_batch_attention
from dspark.kv_cache import KvCache, padded
from dspark.linear import FloatLinear, Int8Linear
from dspark.sampling import SamplingParams
from dspark.target import Span, Target

Result = TypeVar("Result")

_PART = 256  # tokens whose weights are summed first when one is drawn


class Question(NamedTuple):
    """A prompt to be continued, and how; of the penalties the repetition penalty alone counts."""

    prompt: Sequence[int]
    params: SamplingParams


class Answer(NamedTuple):
    """The new tokens, without a stop token, and whether one ended them."""

    tokens: list[int]
    stopped: bool


Interview = Generator[Question, Answer, Result]
"""Asks questions one after the other, is sent each one's answer, and comes to a result."""


@dataclass(eq=False)
class _Row(Generic[Result]):
    """One interview under way."""

    index: int
    number: int
    interview: Interview[Result]
    question: Question
    rng: Random
    answer: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Tokens so far, the last of which is not in the cache yet."""
        return len(self.question.prompt) + len(self.answer)


class BatchDecoder:
    """A target that answers as many questions at a time as it has rows.

    Args:
        target: in any precision; see `fastest_in_batches`.
        rows: how many.
        context_tokens: how long a prompt and its answer may become together.
        common: tokens that many prompts begin with; computed once.
    """

    def __init__(
        self, target: Target, rows: int, context_tokens: int, common: Sequence[int] = ()
    ) -> None:
        self._target = target
        self._decoder = target.decoder
        self._rows = rows
        self._context_tokens = context_tokens
        self._cache = target.new_cache(rows + 1, context_tokens)  # the last holds what is common
        self._common = tuple(common)
        self._stops = target.stop_token_ids
        self._head = _head(target)
        device = target.decoder.device
        # What each row says, for the repetition penalty; repeated tokens are penalised once.
        self._history = torch.zeros((rows, padded(context_tokens)), dtype=torch.long, device=device)
        if self._common:
            target.forward([Span(rows, 0, self._common, logits=0)], self._cache)

    @torch.inference_mode()
    def hold(self, interviews: Iterable[Interview[Result]]) -> Iterator[Result]:
        """Hold interviews, several at once, and yield their results in their order.

        Raises:
            PromptTooLong: a prompt leaves no room for its answer.
        """
        waiting = enumerate(interviews)
        active: dict[int, _Row[Result]] = {}
        results: dict[int, Result] = {}
        due = 0

        fresh: list[_Row[Result]] = []
        while True:
            for index in [index for index in range(self._rows) if index not in active]:
                if (row := _next_row(index, waiting, results)) is None:
                    break
                active[index] = row
                fresh.append(row)
            while due in results:
                yield results.pop(due)
                due += 1
            if not active:
                return
            self._prefill(fresh)
            fresh.clear()
            rows = list(active.values())
            for row, token in zip(rows, self._step(rows), strict=True):
                answer = self._answer(row, token)
                if answer is None:
                    continue
                try:
                    row.question = row.interview.send(answer)
                except StopIteration as ended:
                    results[row.number] = ended.value
                    del active[row.index]
                else:
                    row.answer, row.rng = [], Random(row.question.params.seed)
                    fresh.append(row)

    def _answer(self, row: _Row[Result], token: int) -> Answer | None:
        """Add a token; the whole answer if it ends with it."""
        params = row.question.params
        if token in self._stops:
            return Answer(row.answer, stopped=True)
        row.answer.append(token)
        self._history[row.index, row.length - 1] = token
        full = len(row.answer) == params.max_new_tokens
        return Answer(row.answer, stopped=False) if full else None

    def _prefill(self, rows: Sequence[_Row[Result]]) -> None:
        """Compute all of the prompts but their last tokens."""
        spans = []
        for row in rows:
            prompt, params = row.question
            if len(prompt) + params.max_new_tokens > self._context_tokens:
                raise PromptTooLong(
                    f"a prompt of {len(prompt)} tokens and an answer of {params.max_new_tokens} do "
                    f"not fit into {self._context_tokens}: shorten one of them"
                )
            self._history[row.index] = prompt[0]
            self._history[row.index, : len(prompt)] = torch.tensor(prompt)
            known = len(self._common)
            if tuple(prompt[:known]) != self._common or len(prompt) == known:
                known = 0
            if known:
                self._cache.copy(self._rows, row.index, known)
            if prompt[known:-1]:
                spans.append(Span(row.index, known, prompt[known:-1], logits=0))
        if spans:
            self._target.forward(spans, self._cache)

    def _step(self, rows: Sequence[_Row[Result]]) -> list[int]:
        """The next token of each row."""
        device = self._decoder.device
        last = torch.zeros(self._rows, dtype=torch.long)
        positions = torch.zeros(self._rows, dtype=torch.long)
        for row in rows:
            last[row.index] = (row.answer or row.question.prompt)[-1]
            positions[row.index] = row.length - 1
        last, positions = last.to(device), positions.to(device)
        attention = _OneTokenAttention(self._cache, positions, self._decoder.config.heads)
        hidden, _ = self._decoder.hidden_states(last, positions, attention)
        indices = torch.tensor([row.index for row in rows], device=device)
        logits = self._head(hidden[indices])
        self._penalise(logits, indices, [row.question.params for row in rows])
        return _choose(logits, rows)

    def _penalise(self, logits: Tensor, indices: Tensor, params: Sequence[SamplingParams]) -> None:
        """Apply the repetition penalties in place."""
        factors = torch.tensor([each.repetition_penalty for each in params], device=logits.device)
        if bool((factors == 1).all()):
            return
        said = self._history[indices]
        found = logits.gather(1, said)
        factor = factors[:, None]
        logits.scatter_(1, said, torch.where(found > 0, found / factor, found * factor))


def fastest_in_batches(device: str) -> str:
    """The precision in which many rows at once are computed fastest on this device and machine."""
    native = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return "bfloat16" if torch.device(device).type != "cpu" or native else "int8"


class _OneTokenAttention:
    """Attention of one token of every slot (see `dspark.attention.Attention`).

    Args:
        cache: one slot more than there are tokens.
        positions: `[slots]`.
        heads: how many query heads there are.
    """

    def __init__(self, cache: KvCache, positions: Tensor, heads: int) -> None:
        self._cache = cache
        self._positions = positions
        self._slots = torch.arange(len(positions), device=positions.device)
        kv_heads, head_dim = cache.keys.shape[2], cache.keys.shape[4]
        self._shape = (len(positions), kv_heads, heads // kv_heads, head_dim)
        self._attend = compiled_batch_attention(cache.keys)
        if self._attend is None:
            self._context = padded(int(positions.max()) + 1)
            hidden = torch.arange(self._context, device=positions.device) > positions[:, None]
            mask = torch.zeros(hidden.shape, dtype=cache.keys.dtype, device=positions.device)
            mask = mask.masked_fill(hidden, -math.inf)[:, None, None]
            self._mask = mask.expand(*self._shape[:3], -1)

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Store the tokens' keys and values, and attend."""
        all_keys = self._with(self._cache.keys[layer], keys)
        all_values = self._with(self._cache.values[layer], values)
        if self._attend is not None:
            return self._attend(queries, all_keys, all_values, self._positions + 1).flatten(1)
        # The queries of one key head lie where those of several tokens would, so that its keys are
        # read once for all of them, and where they lie: other products would copy them first.
        attended = functional.scaled_dot_product_attention(
            queries.reshape(self._shape),
            all_keys[:, :, : self._context],
            all_values[:, :, : self._context],
            attn_mask=self._mask,
        )
        return attended.reshape(len(self._slots), -1)

    def _with(self, cached: Tensor, new: Tensor) -> Tensor:
        """`[slots, kv_heads, context, head_dim]`, not copied, with the new ones stored in it."""
        cached = cached[: len(self._slots)]
        cached[self._slots, :, self._positions] = new
        return cached


def _next_row(
    index: int,
    waiting: Iterator[tuple[int, Interview[Result]]],
    results: dict[int, Result],
) -> _Row[Result] | None:
    """The next interview that has a question; None when there are no more."""
    for number, interview in waiting:
        try:
            question = next(interview)
        except StopIteration as ended:
            results[number] = ended.value
            continue
        return _Row(index, number, interview, question, Random(question.params.seed))
    return None


def _choose(logits: Tensor, rows: Sequence[_Row[Result]]) -> list[int]:
    """A token of each row's distribution."""
    tokens = torch.empty(len(rows), dtype=torch.long, device=logits.device)
    certain = [place for place, row in enumerate(rows) if row.question.params.greedy]
    if certain:
        tokens[certain] = _argmax(logits[certain])
    drawn = [place for place, row in enumerate(rows) if not row.question.params.greedy]
    if drawn:
        params = [rows[place].question.params for place in drawn]
        kind = kind_for(params)
        if kind is Kind.WHOLE and not any(each.min_p for each in params):
            temperatures = torch.tensor([each.temperature for each in params])
            weights = (logits[drawn] / temperatures[:, None].to(logits.device)).softmax(-1)
        else:
            settings = torch.tensor([settings_row(each) for each in params], device=logits.device)
            weights, _ = distributions(logits[drawn], settings, kind)
        uniforms = torch.tensor([rows[place].rng.random() for place in drawn])
        tokens[drawn] = _draw(weights, uniforms.to(logits.device))
    found: list[int] = tokens.tolist()
    return found


def _argmax(logits: Tensor) -> Tensor:
    """`[rows, vocab]` → `[rows]`; torch's own takes several times as long on a CPU."""
    best = logits.amax(-1, keepdim=True)
    return (logits == best).to(torch.uint8).argmax(-1)


def _draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    """A token of each row `[rows, vocab]` by a uniform number each: first its part of the row.

    Sums over the whole vocabulary, one token after the other, would take longer than a layer.
    """
    last = weights.shape[-1] - 1
    if missing := -weights.shape[-1] % _PART:
        weights = functional.pad(weights, (0, missing))
    parts = weights.view(len(weights), -1, _PART)
    sums = parts.sum(-1)
    part, rest = _place(sums, uniforms * sums.sum(-1))
    token, _ = _place(parts[torch.arange(len(parts), device=parts.device), part], rest)
    return (part * _PART + token).clamp_max(last)


def _place(weights: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Where `[rows]` points fall when weights `[rows, n]` are laid end to end, and how far in."""
    ends = weights.cumsum(-1)
    below = torch.nextafter(ends[:, -1], torch.zeros_like(points))
    points = torch.minimum(points, below)
    places = torch.searchsorted(ends, points[:, None], right=True)
    starts = ends.gather(-1, places) - weights.gather(-1, places)
    return places[:, 0], (points - starts[:, 0]).clamp_min(0)


def _head(target: Target) -> Callable[[Tensor], Tensor]:
    """Hidden states to float32 logits: in bfloat16 too many of the best ones would be equal."""
    decoder = target.decoder
    if decoder.dtype == torch.float32 or not isinstance(decoder.head, FloatLinear):
        return decoder.logits
    weight = decoder.head.weight.float()
    precise = Int8Linear(weight) if decoder.device.type == "cpu" else FloatLinear(weight)
    norm, epsilon = decoder.final_norm.float(), decoder.config.norm_epsilon
    return lambda hidden: precise(functional.rms_norm(hidden.float(), norm.shape, norm, epsilon))
