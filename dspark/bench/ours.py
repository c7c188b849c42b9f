"""The engine of this package as a contender, with its steps' time taken apart."""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from dspark.bench.contenders import Answer, Unavailable
from dspark.drafters import load_drafter
from dspark.engine import Engine
from dspark.errors import CheckpointError, InvalidRequest
from dspark.sampling import SamplingParams
from dspark.target import load_target

SLOTS = 2  # the prompt before stays cached while the next one runs


class Stopwatch:
    """Adds up the milliseconds that methods take, by phase."""

    def __init__(self) -> None:
        self.phases_ms: defaultdict[str, float] = defaultdict(float)

    def watch(self, thing: object, method: str, phase: str) -> None:
        """Time a method of one object from now on.

        On a GPU that is the time until the work was handed over, not until it was done.
        """
        original = getattr(thing, method)

        @functools.wraps(original)
        def timed(*arguments: object, **settings: object) -> object:
            begun = time.perf_counter()
            try:
                return original(*arguments, **settings)
            finally:
                self.phases_ms[phase] += 1000 * (time.perf_counter() - begun)

        setattr(thing, method, timed)


@dataclass(frozen=True)
class EngineSettings:
    """What is needed to open an engine; see `load_target`, `load_drafter` and `Engine`."""

    target: str | Path
    device: str
    dtype: str
    threads: int
    context_tokens: int
    drafter: str | None = None
    schedule: str | None = None


class OurEngine:
    """`dspark.Engine`, asked as any caller would ask it."""

    def __init__(self, settings: EngineSettings) -> None:
        self._stopwatch = Stopwatch()
        try:
            target = load_target(settings.target, settings.device, settings.dtype, settings.threads)
            drafter = None if settings.drafter is None else load_drafter(settings.drafter, target)
            self._engine = Engine(
                target,
                drafter,
                settings.schedule or "off",
                slots=SLOTS,
                context_tokens=settings.context_tokens,
            )
        except (CheckpointError, InvalidRequest) as error:
            raise Unavailable(str(error)) from error
        self._stopwatch.watch(target, "forward", "target")
        if drafter is not None:
            self._stopwatch.watch(drafter, "draft", "drafter")
            self._stopwatch.watch(drafter, "extend", "drafter")

    def answer(self, prompt_ids: Sequence[int], max_new_tokens: int) -> Answer:
        """See `Loaded`."""
        begun = time.perf_counter()
        generation = self._engine.submit(prompt_ids, SamplingParams(max_new_tokens=max_new_tokens))
        coming = iter(generation)
        steps = [next(coming)]
        first = time.perf_counter()
        before = dict(self._stopwatch.phases_ms)
        steps += coming
        ended = time.perf_counter()
        phases = {
            phase: ms - before.get(phase, 0.0) for phase, ms in self._stopwatch.phases_ms.items()
        }
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
