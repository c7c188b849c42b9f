"""The engine of this package as a contender, with its steps' time taken apart."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from dspark.bench.contenders import Answer, Unavailable
from dspark.bench.memory import memory_bytes
from dspark.bench.sources import Source
from dspark.engine import Engine
from dspark.errors import CheckpointError, InvalidRequest
from dspark.sampling import SamplingParams
from dspark.tree import TreeShape

SLOTS = 2  # the prompt before stays cached while the next one runs


@dataclass(frozen=True)
class EngineSettings:
    """What is needed to open an engine; see `Source` and `Engine`."""

    source: Source
    device: str
    dtype: str
    threads: int
    context_tokens: int
    drafter: str | None = None
    schedule: str | None = None
    tree: TreeShape | None = None
    temperature: float = 0.0


class OurEngine:
    """`dspark.Engine`, asked as any caller would ask it."""

    def __init__(self, settings: EngineSettings) -> None:
        self._temperature = settings.temperature
        self._asked = 0
        try:
            source, device = settings.source, settings.device
            target = source.target(device, settings.dtype, settings.threads)
            drafter, weights = None, 0
            if settings.drafter is not None:
                before = memory_bytes(device)
                drafter = source.drafter(settings.drafter, target)
                weights = (memory_bytes(device) or 0) - (before or 0)
            self._engine = Engine(
                target,
                drafter,
                settings.schedule or "off",
                tree=settings.tree,
                slots=SLOTS,
                context_tokens=settings.context_tokens,
            )
        except (CheckpointError, InvalidRequest) as error:
            raise Unavailable(str(error)) from error
        self._drafts = drafter is not None
        plain = target.new_cache(SLOTS, self._engine.context_tokens).bytes
        self.extra_bytes = max(0, weights) + max(0, self._engine.cache_bytes - plain)

    def answer(self, prompt_ids: Sequence[int], max_new_tokens: int) -> Answer:
        """See `Loaded`."""
        begun = time.perf_counter()
        params = SamplingParams(
            temperature=self._temperature, seed=self._asked, max_new_tokens=max_new_tokens
        )
        self._asked += 1
        generation = self._engine.submit(prompt_ids, params)
        coming = iter(generation)
        steps = [next(coming)]
        first = time.perf_counter()
        before = self._engine.metrics
        steps += coming
        ended = time.perf_counter()
        after = self._engine.metrics
        phases = {"target": after.target_ms - before.target_ms}
        if self._drafts:
            phases["drafter"] = after.draft_ms - before.draft_ms
        # Beside the rest of the steps that is handing them over, and taking them.
        phases["rest"] = 1000 * (ended - first) - sum(phases.values())
        return Answer(
            token_ids=tuple(chain.from_iterable(step.committed for step in steps)),
            stopped=generation.finish_reason == "stop",
            first_token_ms=1000 * (first - begun),
            total_ms=1000 * (ended - begun),
            steps=len(steps),
            phases_ms=phases,
        )

    def close(self) -> None:
        """See `Loaded`."""
        self._engine.close()
