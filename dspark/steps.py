"""The two ways to compute a step: just the tokens there are, or static shapes that a GPU replays.

On the CPU every token costs, so the first is faster, and it gives the same bits in any company.
On a GPU a step takes as long as its weights take to be read, and launching it from Python would
take longer than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from dspark.device_verification import BatchVerification
from dspark.drafters.dspark import DSparkDrafter
from dspark.drafters.protocol import Draft, Drafter, ReadsTargetCache
from dspark.drafters.static_dspark import StaticDSparkDrafter
from dspark.graphs import Graphs
from dspark.kv_cache import KvCache
from dspark.sampling import Sampler
from dspark.static_shapes import StaticShapes
from dspark.static_step import StaticForward
from dspark.target import Forward, Span, Target
from dspark.verification import Verdict


class Steps(Protocol):
    """What the parts of a cycle are computed with.

    Attributes:
        drafter: whose drafts are verified, if there is one.
        cache: the target's keys and values.
        drafter_cache: the drafter's, if it needs any; it may be the target's own.
        feature_width: of the features that `forward` returns for the drafter to take in, unless it
            took them in within the step; 0 where it takes none in.
        vouches_for_drafts: whether drafts need not be looked at to see if they make sense, beyond
            their tokens and confidences.
    """

    drafter: Drafter | None
    cache: KvCache
    drafter_cache: KvCache | None
    feature_width: int
    vouches_for_drafts: bool

    def prepare(self) -> None:
        """Do now what would delay the first steps (engine thread, before any step)."""
        ...

    def forward(self, spans: Sequence[Span]) -> Forward:
        """The target's forward, with the features that the drafter reads.

        What it returns may be overwritten by the next call.
        """
        ...

    def judge(
        self, logits: Sequence[Tensor], drafts: Sequence[Draft], samplers: Sequence[Sampler]
    ) -> list[Verdict | None]:
        """Verdicts of those sequences that can be judged together; None for the others.

        Args:
            logits: one `[scheduled + 1, vocab]` a sequence, or none at all for a piece of a prompt.
            drafts: at least the scheduled tokens.
            samplers: the requests'.
        """
        ...


class RaggedSteps:
    """Every sequence for itself, except where weights are read; see `Steps`."""

    vouches_for_drafts = False

    def __init__(
        self, target: Target, drafter: Drafter | None, *, slots: int, context_tokens: int
    ) -> None:
        self._target = target
        self._taps = () if drafter is None else drafter.taps
        self.drafter = drafter
        self.feature_width = len(self._taps) * target.decoder.config.hidden_size
        self.cache = target.new_cache(slots, context_tokens)
        self.drafter_cache = _drafter_cache(drafter, self.cache, slots, context_tokens)

    def prepare(self) -> None:
        """Nothing."""

    def forward(self, spans: Sequence[Span]) -> Forward:
        """See `Steps`."""
        return self._target.forward(spans, self.cache, self._taps)

    def judge(
        self, logits: Sequence[Tensor], drafts: Sequence[Draft], samplers: Sequence[Sampler]
    ) -> list[Verdict | None]:
        """Nobody: `verify` stops at the first token that does not stand, and computes no more."""
        return [None] * len(logits)


class StaticSteps:
    """All sequences as rows of tensors in a few shapes; see `Steps`.

    A DSpark drafter drafts in static shapes too, and takes in features as part of the target's
    step. Other drafters work as they are.

    Args:
        target: the model.
        drafter: as the engine was given it.
        slots: how many sequences there may be at once.
        context_tokens: how long they may become.
        graphs: runs the steps.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        *,
        slots: int,
        context_tokens: int,
        graphs: Graphs,
    ) -> None:
        self._static: StaticDSparkDrafter | None = None
        self.drafter = drafter
        self.drafter_cache: KvCache | None = None
        if isinstance(drafter, DSparkDrafter):
            self._static = StaticDSparkDrafter(drafter, slots, context_tokens, graphs)
            self.drafter, self.drafter_cache = self._static, self._static.cache
        self.vouches_for_drafts = self._static is not None
        taps = () if drafter is None else drafter.taps
        self.feature_width = len(taps) * target.decoder.config.hidden_size
        # One slot more, for what pads the shapes.
        self.cache = target.new_cache(slots + 1, context_tokens)
        if self._static is None:
            self.drafter_cache = _drafter_cache(drafter, self.cache, slots, context_tokens)
        longest = 1 if drafter is None else 1 + drafter.block_size
        shapes = StaticShapes.of(sequences=slots, tokens=longest, positions=context_tokens)
        self._forward = StaticForward(
            target,
            self.cache,
            shapes,
            graphs,
            taps=taps,
            take_in=None if self._static is None else self._static.take_in,
        )
        self._verification = BatchVerification(
            shapes, target.vocab_size, target.decoder.device, graphs
        )

    def prepare(self) -> None:
        """Record every shape, if shapes are recorded, so that no request waits for it."""
        self._forward.prepare()
        self._verification.prepare()
        if self._static is not None:
            self._static.prepare()

    def forward(self, spans: Sequence[Span]) -> Forward:
        """See `Steps`."""
        return self._forward(spans)

    def judge(
        self, logits: Sequence[Tensor], drafts: Sequence[Draft], samplers: Sequence[Sampler]
    ) -> list[Verdict | None]:
        """All whose settings the device computes (see `dspark.device_sampling`)."""
        return self._verification(logits, drafts, samplers)


def _drafter_cache(
    drafter: Drafter | None, of_target: KvCache, slots: int, context_tokens: int
) -> KvCache | None:
    if drafter is None:
        return None
    if isinstance(drafter, ReadsTargetCache):
        return of_target
    return drafter.new_cache(slots, context_tokens)


def steps_for(
    target: Target,
    drafter: Drafter | None,
    *,
    slots: int,
    context_tokens: int,
    static: bool | None = None,
) -> Steps:
    """What to compute with: static shapes on a GPU, or wherever they are asked for.

    Args:
        target: the model.
        drafter: what proposes tokens for it.
        slots: how many sequences there may be at once.
        context_tokens: how long they may become.
        static: whether shapes are static; by the target's device if not said.
    """
    device = target.decoder.device
    if device.type == "cuda" if static is None else static:
        return StaticSteps(
            target,
            drafter,
            slots=slots,
            context_tokens=context_tokens,
            graphs=Graphs.on(device),
        )
    return RaggedSteps(target, drafter, slots=slots, context_tokens=context_tokens)
