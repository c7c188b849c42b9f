"""What static steps take on this machine: the table of `dspark.step_cost`, measured as they run.

A padded step costs what its shape costs, which is more than the number of its tokens tells. The
table gives the cost of that many tokens when the sequences have as many each, as near as can be.
"""

from __future__ import annotations

import time
from random import Random

import torch

from dspark.drafters.protocol import Anchor, Drafter
from dspark.sampling import Sampler, SamplingParams
from dspark.step_cost import (
    PROFILED_CONTEXT_TOKENS,
    PROFILED_SEQUENCES,
    Measure,
    StepCostTable,
    profile,
)
from dspark.steps import Steps, steps_for
from dspark.target import Span, Target


def static_cost(target: Target, drafter: Drafter) -> StepCostTable:
    """The costs of static steps of a target and its drafter, measured now.

    They are not kept between runs: they take a second or two, and nothing names all that they
    depend on. Not to be called while an engine computes with the target.
    """
    longest = 1 + drafter.block_size
    start = min(PROFILED_CONTEXT_TOKENS, target.context_tokens - longest)
    steps = steps_for(
        target,
        drafter,
        slots=PROFILED_SEQUENCES,
        context_tokens=start + longest,
        static=True,
    )
    with torch.inference_mode():
        return StepCostTable(
            profile(_step_measure(steps, start, longest), PROFILED_SEQUENCES * longest),
            profile(_draft_measure(steps, start), PROFILED_SEQUENCES),
        )


def shared_out(tokens: int, longest: int) -> list[int]:
    """How many tokens each sequence has: as few sequences as can be, and none more than one off."""
    sequences = -(-tokens // longest)
    return [tokens // sequences + (index < tokens % sequences) for index in range(sequences)]


def _step_measure(steps: Steps, start: int, longest: int) -> Measure:
    def measure(tokens: int) -> float:
        begun = time.perf_counter()
        spans = [
            Span(slot, start, [0] * count, logits=count)
            for slot, count in enumerate(shared_out(tokens, longest))
        ]
        logits = steps.forward(spans).logits[0]
        float(logits[0, 0])  # until it is read, a GPU may not have computed it
        return 1000 * (time.perf_counter() - begun)

    return measure


def _draft_measure(steps: Steps, start: int) -> Measure:
    drafter = steps.drafter
    assert drafter is not None
    sampler = Sampler(SamplingParams(), (0,), (0,), Random(0))

    def measure(sequences: int) -> float:
        begun = time.perf_counter()
        anchors = [Anchor(slot, start, 0, sampler) for slot in range(sequences)]
        drafter.draft(steps.drafter_cache, anchors)
        return 1000 * (time.perf_counter() - begun)

    return measure
