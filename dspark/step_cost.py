"""What a step takes on this machine, by the number of tokens in it: measured once, then remembered.

Real curves are staircases (a matrix product computes whole tiles), so they are kept as a table and
not as a formula.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import TYPE_CHECKING

import platformdirs

from dspark.errors import InvalidRequest
from dspark.policies import Drafting

if TYPE_CHECKING:
    from dspark.drafters.protocol import Drafter
    from dspark.target import Target

logger = logging.getLogger(__name__)

Measure = Callable[[int], float]
"""Does the work for that many tokens, or sequences, and returns the milliseconds it took."""

PROFILED_TOKENS = 32
PROFILED_SEQUENCES = 4
PROFILED_CONTEXT_TOKENS = 128
_TAKEN_IN = 2  # tokens that a step gives, where drafting pays
_REPEATS = 5
_FEW_TOKENS = 8
_CLOSER = 4
_FORMAT = 4  # raise it when steps come to be measured differently: all tables are then made anew


@dataclass(frozen=True)
class StepCostTable:
    """Milliseconds of a step; a `StepCost` for the scheduler.

    Attributes:
        step_ms: of a target step with 1, 2, … tokens. Beyond the table costs go on as they rose
            on average within it.
        drafting_ms: of drafting a token for 1, 2, … sequences, likewise. Empty: drafting costs
            nothing.
        drafted_token_ms: of each further token of a sequence.
        sampled_token_ms: what a token takes longer if it is drawn from a distribution.
    """

    step_ms: tuple[float, ...]
    drafting_ms: tuple[float, ...] = ()
    drafted_token_ms: float = 0.0
    sampled_token_ms: float = 0.0

    def __post_init__(self) -> None:
        if not self.step_ms or not all(_is_cost(ms) for ms in self.step_ms + self.drafting_ms):
            raise InvalidRequest(
                "a table of step costs needs at least one entry, and durations above zero"
            )

    def cost_ms(self, tokens_in_step: int) -> float:
        """Milliseconds of a target step that computes so many tokens, at least one."""
        return _at(self.step_ms, tokens_in_step)

    def draft_ms(self, drafting: Drafting) -> float:
        """Milliseconds of drafting that much."""
        if not self.drafting_ms or not drafting.sequences:
            return 0.0
        return (
            _at(self.drafting_ms, drafting.sequences)
            + (drafting.tokens - drafting.sequences) * self.drafted_token_ms
            + drafting.sampled * self.sampled_token_ms
        )


def _at(curve: Sequence[float], count: int) -> float:
    if count <= len(curve):
        return curve[count - 1]
    slope = (curve[-1] - curve[0]) / max(1, len(curve) - 1)
    return curve[-1] + (count - len(curve)) * slope


def profile(
    measure: Measure, counts: int, repeats: int = _REPEATS, *, beside_one: bool = True
) -> tuple[float, ...]:
    """Measure 1 … `counts`: medians of several, made non-decreasing.

    More work never takes less, so where a median is below the one before, both are noise, and
    their mean is taken for both (isotonic regression).

    Args:
        measure: does the work.
        counts: up to which count.
        repeats: how often each is measured; the first ones more often, since most steps are small.
        beside_one: measure a single one before each, and take the median of the ratios. What else
            a machine does comes and goes, and its speed drifts by a third within minutes.
    """
    for count in range(1, counts + 1):
        measure(count)  # the first time allocates and compiles
    singles: list[float] = []
    ratios: list[list[float]] = [[] for _ in range(counts)]
    for round_ in range(repeats * _CLOSER):
        for of_count, count in zip(ratios, range(1, counts + 1), strict=True):
            if count > _FEW_TOKENS and round_ % _CLOSER:
                continue
            single = measure(1) if beside_one else 1.0
            singles.append(single)
            of_count.append(measure(count) / single)
    return _isotonic([median(singles) * median(of_count) for of_count in ratios])


def _isotonic(values: Sequence[float]) -> tuple[float, ...]:
    """The non-decreasing sequence nearest to `values` in squares (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []  # mean and number of pooled values
    for value in values:
        mean, size = value, 1
        while pools and pools[-1][0] > mean:
            before, more = pools.pop()
            mean = (before * more + mean * size) / (more + size)
            size += more
        pools.append((mean, size))
    return tuple(mean for mean, size in pools for _ in range(size))


def cached_profile(
    subject: str, machine: str, measure: Measure, counts: int, *, refresh: bool = False
) -> tuple[float, ...]:
    """The profile of `subject` on `machine`, measured now if it is not in the cache folder.

    Args:
        subject: names what is measured, in all that its durations depend on.
        machine: see `machine_name`.
        measure: called only if there is no usable profile.
        counts: up to which count.
        refresh: measure even if there is one.
    """
    key = {"format": _FORMAT, "subject": subject, "machine": machine, "counts": counts}
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    path = cache_folder() / "step-cost" / f"{digest[:16]}.json"
    curve = None if refresh else _read(path, counts)
    if curve is None:
        logger.info("Measuring what steps cost on this machine, into %s; this is done once", path)
        curve = profile(measure, counts)
        _write(path, {**key, "ms": curve})
    return curve


def cache_folder() -> Path:
    """`$DSPARK_CACHE`, or the user's cache folder."""
    return Path(os.environ.get("DSPARK_CACHE") or platformdirs.user_cache_dir("dspark-assistant"))


def _read(path: Path, counts: int) -> tuple[float, ...] | None:
    try:
        curve = json.loads(path.read_text(encoding="utf-8"))["ms"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("%s is no profile of step costs (%r): measuring anew", path, error)
        return None
    if not isinstance(curve, list) or len(curve) != counts or not all(map(_is_cost, curve)):
        logger.warning("%s holds no profile of %d step costs: measuring anew", path, counts)
        return None
    return tuple(curve)


def _is_cost(value: object) -> bool:
    return isinstance(value, int | float) and 0 < value < float("inf")


def _write(path: Path, content: object) -> None:
    """Write whole or not at all; a profile that cannot be kept is measured again next time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            unfinished = Path(folder) / path.name
            unfinished.write_text(json.dumps(content, indent=2), encoding="utf-8")
            unfinished.replace(path)
    except OSError as error:
        logger.warning("The step costs cannot be kept in %s (%s)", path, error)


def machine_name(device: str, threads: int) -> str:
    """The processor that computes, as its maker calls it, and with how many threads."""
    if device.startswith("cuda"):
        import torch

        return str(torch.cuda.get_device_name(device))
    return f"{processor_name()}, {os.cpu_count()} cores, {threads} threads"


def processor_name() -> str:
    """The CPU's model name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def profiled_cost(
    target: Target, drafter: Drafter | None = None, *, refresh: bool = False
) -> StepCostTable:
    """The costs of a target's steps, and of its drafter, on this machine.

    Takes some seconds the first time, and then as long as a few drafts: those are always
    measured, since nothing names all that a drafter's speed depends on. Not to be called while
    an engine computes with the target.
    """
    taps = tuple(drafter.taps) if drafter is not None else ()
    step_ms = cached_profile(
        f"{_shape(target)}, taps {taps}",
        machine_name(target.decoder.device.type, target.threads),
        target_measure(target, taps),
        min(PROFILED_TOKENS, target.context_tokens // 2),
        refresh=refresh,
    )
    if drafter is None:
        return StepCostTable(step_ms)
    measure = drafter_measure(target, drafter, step_ms[0])
    block = drafter.block_size
    drafting_ms = profile(
        lambda sequences: measure(sequences, 1, False), PROFILED_SEQUENCES, 2, beside_one=False
    )
    kinds = ((1, False), (block, False), (block, True))
    one, whole, drawn = profile(
        lambda kind: measure(1, *kinds[kind - 1]), len(kinds), 2, beside_one=False
    )
    return StepCostTable(
        step_ms,
        drafting_ms,
        drafted_token_ms=(whole - one) / max(1, block - 1),
        sampled_token_ms=(drawn - whole) / block,
    )


def target_measure(target: Target, taps: Sequence[int] = ()) -> Measure:
    """Times steps of a target over a context of usual length, with logits for every token."""
    import torch

    from dspark.target import Span

    start = _context(target)
    cache = target.new_cache(1, start + PROFILED_TOKENS)
    # Rows that are alike would share more work than those of a text do.
    different = Random(0).choices(range(target.vocab_size), k=PROFILED_TOKENS)

    def measure(tokens: int) -> float:
        torch.set_num_threads(target.threads)
        with torch.inference_mode():
            begun = time.perf_counter()
            span = Span(0, start, different[:tokens], logits=tokens)
            logits = target.forward([span], cache, taps).logits[0]
            float(logits[0, 0])  # until it is read, a GPU may not have computed it
            return 1000 * (time.perf_counter() - begun)

    return measure


def drafter_measure(
    target: Target, drafter: Drafter, single_ms: float
) -> Callable[[int, int, bool], float]:
    """Times drafting: for how many sequences, how many tokens of each, and whether they are drawn.

    The context has a usual length. What is returned is for a machine whose steps of one token take
    `single_ms`, since its speed may have changed after those were measured.
    That begins with taking in what the target made of the tokens of the step before.
    Each time a step of the target goes before, as it does at work: that leaves nothing of the
    drafter's weights in the processor's caches, and drafting takes nearly twice as long.
    """
    import torch

    from dspark.drafters.protocol import Anchor
    from dspark.sampling import Sampler, SamplingParams

    start = _context(target)
    step = target_measure(target, tuple(drafter.taps))
    cache = drafter.new_cache(PROFILED_SEQUENCES, start + PROFILED_TOKENS)
    samplers = {
        drawn: Sampler(SamplingParams(temperature=float(drawn)), [0] * start, [0], Random(0))
        for drawn in (False, True)
    }
    width = len(drafter.taps) * target.decoder.config.hidden_size
    features = torch.zeros(
        _TAKEN_IN, width, dtype=target.decoder.dtype, device=target.decoder.device
    )

    def measure(sequences: int, tokens: int, drawn: bool) -> float:
        slowdown = step(1) / single_ms
        with torch.inference_mode():
            begun = time.perf_counter()
            for slot in range(sequences if drafter.taps else 0):
                drafter.extend(cache, slot, start - _TAKEN_IN, features)
            drafter.draft(
                cache,
                [Anchor(slot, start, 0, samplers[drawn], tokens) for slot in range(sequences)],
            )
            return 1000 * (time.perf_counter() - begun) / slowdown

    return measure


def _context(target: Target) -> int:
    return min(PROFILED_CONTEXT_TOKENS, target.context_tokens // 2)


def _shape(target: Target) -> str:
    """What durations depend on: not the weights, but their shapes and precision, and the code."""
    import torch

    from dspark.fast_path import compiled_version

    config = hashlib.sha256((target.folder / "config.json").read_bytes()).hexdigest()
    code = f"torch {torch.__version__}, {compiled_version()}"
    return f"{config[:16]}, {target.decoder.precision}, {code}"
