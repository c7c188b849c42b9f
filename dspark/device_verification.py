"""`dspark.verification` for all sequences of a step at once, with a single read of the results.

Judging token by token, as on the CPU, would wait for the GPU at every token. Here acceptance,
residual distribution and draw are computed for all rows on the device, from uniform numbers that
each request's own generator gives beforehand; the numbers that were not needed go back. So a
seed gives the same answer as the other way does.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from itertools import product

import torch
from torch import Tensor

from dspark.device_sampling import (
    SETTINGS,
    Kind,
    distributions,
    draw,
    kind_for,
    on_device,
    settings_row,
)
from dspark.drafters.protocol import Draft
from dspark.graphs import Graphs
from dspark.sampling import Sampler
from dspark.static_shapes import InputTable, StaticShapes, fitting
from dspark.verification import Verdict

_SCHEDULED, _TOKENS = 0, 1  # columns of the input of integers
_ACCEPTED, _TOKEN, _UNDECIDED = range(3)  # columns of the output


class BatchVerification:
    """Judges the drafts of several sequences together.

    Args:
        shapes: rows and lengths that steps are padded to; a length includes the anchor.
        vocab_size: how many tokens there are.
        device: where.
        graphs: runs the steps.
    """

    def __init__(
        self, shapes: StaticShapes, vocab_size: int, device: torch.device, graphs: Graphs
    ) -> None:
        self._shapes = shapes
        self._graphs = graphs
        rows, longest = shapes.rows[-1], shapes.lengths[-1]
        self._integers = InputTable(rows, _TOKENS + longest, torch.int64, device)
        self._reals = InputTable(rows, SETTINGS + longest, torch.float64, device)
        # Whatever padding finds in here is finite, and only ever what some row has left.
        self._logits = torch.zeros((rows, longest, vocab_size), device=device)
        self._drafted = torch.zeros((rows, longest, vocab_size), device=device)
        self._verdicts = torch.zeros((rows, 3), dtype=torch.int64, device=device)

    def __call__(
        self, logits: Sequence[Tensor], drafts: Sequence[Draft], samplers: Sequence[Sampler]
    ) -> list[Verdict | None]:
        """Judge each sequence as `verify` would.

        Args:
            logits: one `[scheduled + 1, vocab]` a sequence.
            drafts: at least the scheduled tokens.
            samplers: the requests'.

        Returns:
            One verdict a sequence; None where `verify_tree` has to be asked: the draft is a tree,
            the request's settings are none of those that are computed here, its nucleus is too
            large, or the model gave no distribution at all.
        """
        verdicts: list[Verdict | None] = [None] * len(logits)
        judged = [
            index
            for index, (rows, draft, sampler) in enumerate(
                zip(logits, drafts, samplers, strict=True)
            )
            if draft.tree is None
            and 1 <= len(rows) <= self._shapes.lengths[-1]
            and on_device(sampler.params)
        ]
        if judged:
            together = self._together(
                [logits[index] for index in judged],
                [drafts[index] for index in judged],
                [samplers[index] for index in judged],
            )
            for index, verdict in zip(judged, together, strict=True):
                verdicts[index] = verdict
        return verdicts

    def prepare(self) -> None:
        """Record every shape, the largest first."""
        self._integers.send([], (0,))
        self._reals.send([], (0.0,) * SETTINGS)
        for shape in product(self._shapes.rows[::-1], self._shapes.lengths[::-1], Kind):
            self._graphs.prepare(("verification", *shape), partial(self._step, *shape))

    def _together(
        self, logits: Sequence[Tensor], drafts: Sequence[Draft], samplers: Sequence[Sampler]
    ) -> list[Verdict | None]:
        scheduled = [len(each) - 1 for each in logits]
        for row, (each, draft) in enumerate(zip(logits, drafts, strict=True)):
            self._logits[row, : len(each)] = each
            if scheduled[row] and not samplers[row].params.greedy:
                drafted = torch.stack(draft.distributions[: scheduled[row]])
                self._drafted[row, : scheduled[row]] = drafted
        lookaheads = [
            _Lookahead(sampler.rng, 0 if sampler.params.greedy else count + 1)
            for sampler, count in zip(samplers, scheduled, strict=True)
        ]
        self._integers.send(
            [
                (count, *draft.tokens[:count])
                for count, draft in zip(scheduled, drafts, strict=True)
            ],
            padding=(0,),
        )
        self._reals.send(
            [
                (*settings_row(sampler.params), *lookahead.uniforms)
                for sampler, lookahead in zip(samplers, lookaheads, strict=True)
            ],
            padding=(0.0,) * SETTINGS,
        )
        rows = fitting(self._shapes.rows, len(logits))
        length = fitting(self._shapes.lengths, max(scheduled) + 1)
        kind = kind_for(sampler.params for sampler in samplers)
        step = partial(self._step, rows, length, kind)
        self._graphs.run(("verification", rows, length, kind), step)
        # The only place where the host waits for the device.
        found = self._verdicts[: len(logits)].tolist()
        verdicts: list[Verdict | None] = []
        for (accepted, token, undecided), count, lookahead in zip(
            found, scheduled, lookaheads, strict=True
        ):
            # One number a judged token, accepted or not, and one for the token that follows.
            lookahead.give_back_after(0 if undecided else min(accepted + 1, count) + 1)
            verdicts.append(None if undecided else Verdict(accepted, token))
        return verdicts

    def _step(self, rows: int, length: int, kind: Kind) -> None:
        integers, reals = self._integers.table[:rows], self._reals.table[:rows]
        scheduled = integers[:, _SCHEDULED]
        tokens = integers[:, _TOKENS : _TOKENS + length - 1, None]
        settings, uniforms = reals[:, :SETTINGS], reals[:, SETTINGS : SETTINGS + length]
        logits = self._logits[:rows, :length]
        verdicts = self._verdicts[:rows]
        considered = torch.arange(length - 1, device=logits.device) < scheduled[:, None]
        if kind is Kind.GREEDY:
            best = logits.argmax(-1)
            accepted = _prefix((best[:, :-1] == tokens[:, :, 0]) & considered)
            verdicts[:, _ACCEPTED] = accepted
            verdicts[:, _TOKEN] = best.gather(1, accepted[:, None])[:, 0]
            verdicts[:, _UNDECIDED].zero_()
            return
        flat = settings[:, None].expand(-1, length, -1).reshape(rows * length, SETTINGS)
        flat_targets, flat_cut = distributions(logits.flatten(0, 1), flat, kind)
        targets = flat_targets.view(rows, length, -1)
        # Greedy drafts count as drawn from nothing: a token then stands if the target, which is
        # one-hot, takes it, and what is left over is the target's own token.
        greedy = settings[:, :1] == 0
        of_target = targets[:, :-1].gather(2, tokens)[:, :, 0].double()
        of_drafter = self._drafted[:rows, : length - 1].gather(2, tokens)[:, :, 0].double()
        of_drafter = of_drafter.masked_fill(greedy, 0)
        accepted = _prefix((uniforms[:, :-1] * of_drafter < of_target) & considered)
        replaced = accepted < scheduled
        at = accepted[:, None, None].expand(-1, 1, targets.shape[-1])
        target = targets.gather(1, at)[:, 0]
        drafted = self._drafted[:rows, :length].gather(1, at)[:, 0]
        residual = (target - drafted.masked_fill(~replaced[:, None] | greedy, 0)).clamp_min(0)
        # Rounding can leave no residual where the two distributions are the same.
        some = residual.amax(-1, keepdim=True) > 0
        chosen = (accepted + replaced)[:, None]
        token, drawable = draw(
            torch.where(some, residual, target), uniforms.gather(1, chosen)[:, 0]
        )
        # A cut at a position beyond the last judged one has not been looked at.
        looked_at = torch.arange(length, device=logits.device) <= accepted[:, None]
        cut = (flat_cut.view(rows, length) & looked_at).any(-1)
        verdicts[:, _ACCEPTED] = accepted
        verdicts[:, _TOKEN] = token
        verdicts[:, _UNDECIDED] = cut | ~drawable


def _prefix(accepted: Tensor) -> Tensor:
    """How many are true before the first that is not: `[rows, tokens]` → `[rows]`."""
    return accepted.long().cumprod(-1).sum(-1)


class _Lookahead:
    """Random numbers taken before it is known how many of them are needed."""

    def __init__(self, rng: random.Random, count: int) -> None:
        self._rng = rng
        self._state = rng.getstate() if count else None
        self.uniforms = [rng.random() for _ in range(count)]

    def give_back_after(self, used: int) -> None:
        """Leave the generator as if only the first `used` numbers had been taken."""
        if used < len(self.uniforms):
            assert self._state is not None
            self._rng.setstate(self._state)
            for _ in range(used):
                self._rng.random()
