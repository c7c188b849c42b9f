"""Every contender answers the same prompts, several times round, in an order that rotates.

What disturbs a machine comes and goes. So each round asks every contender once, a round begins
with another contender than the one before, and what counts is the median over the rounds. Where
memory has room for all of them at once they can also answer each prompt in turn: then what lasts
longer than an answer disturbs all alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from random import Random
from statistics import fmean, median
from typing import TypeVar

from dspark.bench.contenders import Answer, Contender, Loaded, Unavailable
from dspark.bench.prompts import BenchPrompt

WARM_UP_TOKENS = 8

Each = TypeVar("Each")

OnProgress = Callable[[str, float], None]
"""Told which contender is measured and which fraction of everything is done."""

OnTurn = Callable[["Row | Skipped", "Report"], None]
"""Told what a contender's turn came to, a row over its rounds so far, and the report so far."""


@dataclass(frozen=True)
class Machine:
    """Where it was measured."""

    processor: str
    cores: int
    device: str
    torch: str
    bandwidth_gb_s: float


@dataclass(frozen=True)
class Row:
    """What was measured of one contender: medians over the rounds.

    Attributes:
        system: whose code it is.
        drafter: what proposed tokens, if anything did.
        schedule: how much of a draft was verified.
        dtype: what the weights were computed in.
        threads: how many CPU threads.
        prompts: how many prompts were answered in each round.
        tokens_per_s: after the first token of each answer.
        ttft_ms: time to the first token of a prompt that is new from its beginning; median.
        ttft_cached_ms: the same when the prompt before began alike; None where nothing is kept.
        accepted_length: tokens a step, the target's own included; 1 is plain decoding.
        phases_ms: what a step's time went into, where that is known.
        floor_share: how much of the tokens per second that memory bandwidth allows for a token a
            step; speculation can pass 1.
        extra_mb: memory that drafting takes beside the model and its cache, in 10⁶ bytes.
        same_as_plain: for which share of the prompts the tokens are those of plain decoding by
            the same system in the same precision; None if that was not measured.
    """

    system: str
    drafter: str | None
    schedule: str | None
    dtype: str
    threads: int
    prompts: int
    tokens_per_s: float
    ttft_ms: float
    ttft_cached_ms: float | None
    accepted_length: float
    phases_ms: Mapping[str, float]
    floor_share: float | None
    same_as_plain: float | None = None
    extra_mb: float | None = None

    @property
    def name(self) -> str:
        """How it is called in tables."""
        return " ".join(filter(None, (self.system, self.drafter, self.schedule)))


@dataclass(frozen=True)
class Skipped:
    """A contender that could not run, and why."""

    system: str
    reason: str


@dataclass(frozen=True)
class Report:
    """A whole comparison."""

    machine: Machine
    rows: tuple[Row, ...]
    skipped: tuple[Skipped, ...] = ()

    def as_json(self) -> dict[str, object]:
        """The report as JSON's types."""
        return asdict(self)


@dataclass
class _Rounds:
    """What one contender did so far: a list a round."""

    first_token_ms: list[list[float]] = field(default_factory=list)
    answers: list[list[Answer]] = field(default_factory=list)
    extra_bytes: list[int] = field(default_factory=list)


def measure(
    contenders: Sequence[Contender],
    prompts: Sequence[BenchPrompt],
    machine: Machine,
    *,
    repeats: int = 3,
    max_new_tokens: int = 48,
    threads: int = 1,
    side_by_side: bool = False,
    on_progress: OnProgress = lambda _name, _fraction: None,
    on_turn: OnTurn = lambda _latest, _report: None,
) -> Report:
    """Run the comparison; one contender at a time is in memory, or all of them side by side."""
    rounds = {contender: _Rounds() for contender in contenders}
    skipped: dict[Contender, str] = {}

    def row(contender: Contender) -> Row:
        plain = _plain_answers(contender, rounds)
        return _row(contender, rounds[contender], plain, machine, threads)

    def report() -> Report:
        measured = [each for each in contenders if rounds[each].answers and each not in skipped]
        left_out = [Skipped(each.name, reason) for each, reason in skipped.items()]
        return Report(machine, tuple(map(row, measured)), tuple(left_out))

    groups = [tuple(contenders)] if side_by_side else [(each,) for each in contenders]
    total, done = repeats * len(contenders), 0
    for repeat in range(repeats):
        for group in _rotated(groups, repeat):
            with ExitStack() as in_memory:
                turn = _Turn(prompts, max_new_tokens, skipped, in_memory)
                for contender in _rotated(group, repeat):
                    on_progress(contender.name, done / total)
                    done += 1
                    if contender not in skipped:
                        turn.load(contender)
                answered = turn.run(rounds)
            for contender in answered:
                on_turn(row(contender), report())
            for contender in turn.failed:
                on_turn(Skipped(contender.name, skipped[contender]), report())
    on_progress("", 1.0)
    return report()


def _rotated(each: Sequence[Each], by: int) -> Sequence[Each]:
    start = by % max(1, len(each))
    return (*each[start:], *each[:start])


class _Turn:
    """Contenders that are in memory together and answer every prompt one after the other."""

    def __init__(
        self,
        prompts: Sequence[BenchPrompt],
        max_new_tokens: int,
        skipped: dict[Contender, str],
        in_memory: ExitStack,
    ) -> None:
        self._prompts = prompts
        self._max_new_tokens = max_new_tokens
        self._skipped = skipped
        self._in_memory = in_memory
        self._loaded: dict[Contender, Loaded] = {}
        self.failed: list[Contender] = []

    def load(self, contender: Contender) -> None:
        """Have it take part, if it can run here."""
        try:
            loaded = self._loaded[contender] = contender.load()
        except Unavailable as reason:
            self._leave_out(contender, reason)
        else:
            self._in_memory.callback(loaded.close)

    def run(self, rounds: Mapping[Contender, _Rounds]) -> Sequence[Contender]:
        """Let all answer, and add what came of it to their rounds; returns those that answered."""
        last = self._prompts[-1]
        self._ask([last.new], WARM_UP_TOKENS)
        firsts = self._ask([each.new for each in self._prompts], 1)
        self._ask([last.known], WARM_UP_TOKENS)  # from here on the system prompt is known
        answers = self._ask([each.known for each in self._prompts], self._max_new_tokens)
        for contender, loaded in self._loaded.items():
            own = rounds[contender]
            own.first_token_ms.append([each.first_token_ms for each in firsts[contender]])
            own.answers.append(answers[contender])
            if loaded.extra_bytes is not None:
                own.extra_bytes.append(loaded.extra_bytes)
        return tuple(self._loaded)

    def _ask(
        self, prompts: Sequence[Sequence[int]], tokens: int
    ) -> Mapping[Contender, list[Answer]]:
        answers: dict[Contender, list[Answer]] = {each: [] for each in self._loaded}
        for number, prompt in enumerate(prompts):
            # In rotation each would always come after the same one, and how fast a processor is
            # depends on what it did before.
            for contender in Random(number).sample(tuple(self._loaded), len(self._loaded)):
                try:
                    answers[contender].append(self._loaded[contender].answer(prompt, tokens))
                except Unavailable as reason:
                    del self._loaded[contender]
                    self._leave_out(contender, reason)
        return answers

    def _leave_out(self, contender: Contender, reason: Unavailable) -> None:
        self._skipped[contender] = str(reason)
        self.failed.append(contender)


def _plain_answers(
    contender: Contender, rounds: Mapping[Contender, _Rounds]
) -> Sequence[Answer] | None:
    """What the same system gave in the same precision without drafts, if that was measured."""
    if contender.drafter is None or contender.sampled:
        return None
    for other, own in rounds.items():
        same_kind = (other.system, other.dtype) == (contender.system, contender.dtype)
        if same_kind and other.drafter is None and own.answers:
            return own.answers[0]
    return None


def _row(
    contender: Contender,
    rounds: _Rounds,
    plain: Sequence[Answer] | None,
    machine: Machine,
    threads: int,
) -> Row:
    speed = median(map(_tokens_per_s, rounds.answers))
    floor_tokens_per_s = (
        machine.bandwidth_gb_s * 1e9 / contender.weight_bytes if contender.weight_bytes else None
    )
    return Row(
        system=contender.system,
        drafter=contender.drafter,
        schedule=contender.schedule,
        dtype=contender.dtype,
        threads=threads,
        prompts=len(rounds.answers[0]),
        tokens_per_s=speed,
        ttft_ms=median(map(median, rounds.first_token_ms)),
        ttft_cached_ms=(
            median(median(each.first_token_ms for each in answers) for answers in rounds.answers)
            if contender.keeps_prompts
            else None
        ),
        accepted_length=fmean(map(_accepted_length, rounds.answers)),
        phases_ms=_phases_ms(rounds.answers),
        floor_share=speed / floor_tokens_per_s if floor_tokens_per_s else None,
        same_as_plain=None if plain is None else _share_same(rounds.answers[0], plain),
        extra_mb=median(rounds.extra_bytes) / 1e6 if rounds.extra_bytes else None,
    )


def _tokens_per_s(answers: Sequence[Answer]) -> float:
    """Over a round, without the first token of each answer and the time until it came."""
    seconds = sum(each.total_ms - each.first_token_ms for each in answers) / 1000
    return sum(each.tokens - 1 for each in answers) / seconds if seconds > 0 else 0.0


def _accepted_length(answers: Sequence[Answer]) -> float:
    steps = sum(each.steps - 1 for each in answers)
    return sum(each.tokens - 1 for each in answers) / steps if steps else 1.0


def _phases_ms(rounds: Sequence[Sequence[Answer]]) -> dict[str, float]:
    """Milliseconds a step of each phase."""
    phases = sorted({phase for answers in rounds for each in answers for phase in each.phases_ms})
    return {
        phase: median(
            sum(each.phases_ms.get(phase, 0.0) for each in answers)
            / max(1, sum(each.steps - 1 for each in answers))
            for answers in rounds
        )
        for phase in phases
    }


def _share_same(answers: Sequence[Answer], plain: Sequence[Answer]) -> float:
    pairs = zip(answers, plain, strict=True)
    return fmean(mine.token_ids == theirs.token_ids for mine, theirs in pairs)
