"""The DSpark drafter in static shapes: a block for every row, its tokens drawn inside the step.

See `dspark.graphs` for what static shapes are good for. The tokens of a block depend on each
other, and drawing them one by one on the host would wait for the device at each. Here the whole
block, sequential stage and all, is one step with one read at its end: tokens and confidences,
which the schedule needs.
"""

from __future__ import annotations

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
from dspark.drafters.dspark import DSparkDrafter
from dspark.drafters.protocol import Anchor, Draft
from dspark.graphs import Graphs
from dspark.kv_cache import KvCache
from dspark.static_shapes import InputTable, StaticShapes
from dspark.static_step import Rows, StaticAttention

_SLOT, _START, _COUNT, _TOKEN = range(4)  # columns of the input of integers


class StaticDSparkDrafter:
    """A `Drafter` that drafts as the one it is made of.

    Requests whose settings are not computed on the device (`dspark.device_sampling.on_device`)
    are drafted for by the original.

    Args:
        drafter: the original.
        slots: how many sequences there may be at once.
        context_tokens: how long they may become.
        graphs: runs the steps.

    Attributes:
        cache: its cache, which has a spare slot for padding.
        taps: the target layers it reads.
        block_size: how many tokens it proposes.
    """

    def __init__(
        self, drafter: DSparkDrafter, slots: int, context_tokens: int, graphs: Graphs
    ) -> None:
        self._drafter = drafter
        self._graphs = graphs
        self.taps = drafter.taps
        self.block_size = size = drafter.block_size
        self.cache = drafter.new_cache(slots + 1, context_tokens)
        self._spare = slots
        self._shapes = StaticShapes.of(
            sequences=slots, tokens=size, positions=context_tokens + size
        )
        device = self.cache.keys.device
        vocab = drafter.shape.vocab_size
        self._integers = InputTable(slots, _TOKEN + 1, torch.int64, device)
        self._reals = InputTable(slots, SETTINGS + size, torch.float64, device)
        self._distributions = torch.zeros((slots, size, vocab), device=device)
        self._results = torch.zeros((slots, 2, size), dtype=torch.float64, device=device)

    def new_cache(self, slots: int, context_tokens: int) -> KvCache:
        """A cache like the one it has; it drafts with its own only."""
        return self._drafter.new_cache(slots, context_tokens)

    def extend(self, cache: KvCache | None, slot: int, start: int, features: Tensor) -> None:
        """Take in features of a step that was not static."""
        self._drafter.extend(cache, slot, start, features)

    def take_in(self, features: Tensor, rows: Rows) -> None:
        """Take in features inside a static step of the target (see `dspark.static_step`)."""
        keys, values = self._drafter.context(features, rows.positions.view(-1))
        for layer in range(self._drafter.shape.layers):
            rows.store(self.cache.keys[layer], keys[:, layer])
            rows.store(self.cache.values[layer], values[:, layer])

    def draft(self, cache: KvCache | None, anchors: Sequence[Anchor]) -> list[Draft]:
        """Propose a block after each anchor.

        The drafts' distributions are overwritten by the next call.
        """
        together = [anchor for anchor in anchors if on_device(anchor.sampler.params)]
        alone = [anchor for anchor in anchors if not on_device(anchor.sampler.params)]
        drafts: dict[int, Draft] = {}
        if together:
            drafts |= self._together(together)
        if alone:
            of_original = self._drafter.draft(cache, alone)
            drafts |= {anchor.slot: each for anchor, each in zip(alone, of_original, strict=True)}
        return [drafts[anchor.slot] for anchor in anchors]

    def prepare(self) -> None:
        """Record every shape, the largest first, on padding alone."""
        self._integers.send([], (self._spare, 0, 0, 0))
        self._reals.send([], (0.0,) * SETTINGS)
        for shape in product(self._shapes.rows[::-1], self._shapes.contexts[::-1], Kind):
            self._graphs.prepare(("draft", *shape), partial(self._step, *shape))

    def _together(self, anchors: Sequence[Anchor]) -> dict[int, Draft]:
        """A draft by each anchor's slot."""
        size = self.block_size
        rows, _, context = self._shapes.fit(
            len(anchors), size, max(anchor.position for anchor in anchors) + size
        )
        self._integers.send(
            [(anchor.slot, anchor.position, size, anchor.token) for anchor in anchors],
            padding=(self._spare, 0, 0, 0),
        )
        params = [anchor.sampler.params for anchor in anchors]
        self._reals.send(
            [
                (
                    *settings_row(each),
                    *(anchor.sampler.rng.random() for _ in range(0 if each.greedy else size)),
                )
                for anchor, each in zip(anchors, params, strict=True)
            ],
            padding=(0.0,) * SETTINGS,
        )
        kind = kind_for(params)
        step = partial(self._step, rows, context, kind)
        self._graphs.run(("draft", rows, context, kind), step)
        results = self._results[: len(anchors)].tolist()  # waits for the device
        return {
            anchor.slot: Draft(
                tuple(int(token) for token in tokens),
                () if anchor.sampler.params.greedy else self._distributions[row].unbind(),
                self._drafter.calibrations.of(greedy=anchor.sampler.params.greedy).apply(
                    confidence
                ),
            )
            for row, (anchor, (tokens, confidence)) in enumerate(zip(anchors, results, strict=True))
        }

    def _step(self, rows: int, context: int, kind: Kind) -> None:
        drafter, size = self._drafter, self.block_size
        integers, reals = self._integers.table[:rows], self._reals.table[:rows]
        settings, uniforms = reals[:, :SETTINGS], reals[:, SETTINGS:]
        # Every row has a whole block or, as padding, nothing.
        placed = Rows.at(
            integers[:, _SLOT], integers[:, _START], integers[:, _COUNT], size, self._spare
        )
        attention = StaticAttention(
            placed, self.cache, heads=drafter.shape.heads, context=context, causal=False
        )
        block = torch.full_like(placed.positions, drafter.mask_token)
        block[:, 0] = integers[:, _TOKEN]
        hidden = drafter.block(block.view(-1), placed.positions.view(-1), attention)
        hidden = hidden.view(rows, size, -1)
        base = drafter.base_logits(hidden)
        previous = integers[:, _TOKEN]
        state = drafter.head.start(rows)
        tokens, confidences = self._results[:rows].unbind(1)
        for position in range(size):
            logits, confidence, state = drafter.position(
                hidden[:, position], base[:, position], previous, state
            )
            if kind is Kind.GREEDY:
                previous = logits.argmax(-1)
            else:
                # A nucleus cut short makes another draft, not another answer: what was drawn from
                # is what is put into the ratio.
                probabilities, _ = distributions(logits, settings, kind)
                self._distributions[:rows, position] = probabilities
                previous, drawable = draw(probabilities, uniforms[:, position])
                # Nobody looks at the distributions again: without a probability as its confidence
                # a token is not used.
                confidence = confidence.masked_fill(~drawable, torch.nan)
            tokens[:, position] = previous
            confidences[:, position] = confidence.sigmoid()
