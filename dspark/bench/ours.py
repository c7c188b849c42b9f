"""The engine of this package as a contender, with its steps' time taken apart."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from dspark.bench.contenders import Answer, Unavailable
from dspark.bench.memory import memory_bytes
from dspark.bench.sources import Source
from dspark.engine import Engine
from dspark.errors import CheckpointError, InvalidRequest
from dspark.sampling import SamplingParams
from dspark.tree import TreeShape

Model = TypeVar("Model")

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


@dataclass(eq=False)
class _InMemory(Generic[Model]):
    """A model, and how much memory loading it took."""

    model: Model
    bytes: int


_in_memory: WeakValueDictionary[Hashable, _InMemory[Any]] = WeakValueDictionary()


def _shared(key: Hashable, device: str, load: Callable[[], Model]) -> _InMemory[Model]:
    """What others have in memory already, or loaded now.

    Engines that are compared read the same weights: of two copies one lies in larger pages than
    the other, by chance, and that makes a quarter of a step's time.
    """
    found = _in_memory.get(key)
    if found is None:
        before = memory_bytes(device) or 0
        model = load()
        found = _in_memory[key] = _InMemory(model, max(0, (memory_bytes(device) or 0) - before))
    return found


class OurEngine:
    """`dspark.Engine`, asked as any caller would ask it."""

    def __init__(self, settings: EngineSettings) -> None:
        self._temperature = settings.temperature
        self._asked = 0
        try:
            source, device = settings.source, settings.device
            which = (source, device, settings.dtype, settings.threads)
            self._target = _shared(
                which, device, lambda: source.target(device, settings.dtype, settings.threads)
            )
            target, name = self._target.model, settings.drafter
            self._drafter = (
                None
                if name is None
                else _shared((*which, name), device, lambda: source.drafter(name, target))
            )
            drafter = None if self._drafter is None else self._drafter.model
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
        plain = target.new_cache(SLOTS, self._engine.context_tokens).bytes
        weights = 0 if self._drafter is None else self._drafter.bytes
        self.extra_bytes = weights + max(0, self._engine.cache_bytes - plain)

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
        if self._drafter is not None:
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
