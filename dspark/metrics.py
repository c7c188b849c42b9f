"""What an engine has done since it was opened, counted as it goes and read as a snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dspark.generation import Step


@dataclass(frozen=True)
class EngineMetrics:
    """An engine's counts at one moment; two of them subtract to what happened in between.

    Attributes:
        steps: target steps.
        tokens_committed: tokens given to requests.
        tokens_drafted: tokens the drafter proposed.
        tokens_scheduled: those of them that the target verified.
        tokens_accepted: those of them that stood.
        scheduled_at: how often the first, second … token of a draft was verified; of a tree, how
            often it reached so far.
        accepted_at: how often it stood.
        draft_ms: milliseconds in the drafter, features included.
        target_ms: in the target. On a GPU, with static steps, drafts are judged there too: it is
            where the device is waited for.
        rest_ms: in the rest of the steps: scheduling, verification, sampling, bookkeeping.
        prompt_tokens_reused: prompt tokens whose keys and values lay in a slot already.
        prompt_tokens_computed: prompt tokens that steps computed.
        queued: requests that have come to a slot, for the first time.
        queue_ms: how long they waited for it, together.
        longest_queue_ms: how long the one that waited longest did.
        drafter_failures: how often the drafter raised or gave something unusable.
        cancellations: requests cancelled before their end.
    """

    steps: int = 0
    tokens_committed: int = 0
    tokens_drafted: int = 0
    tokens_scheduled: int = 0
    tokens_accepted: int = 0
    scheduled_at: tuple[int, ...] = ()
    accepted_at: tuple[int, ...] = ()
    draft_ms: float = 0.0
    target_ms: float = 0.0
    rest_ms: float = 0.0
    prompt_tokens_reused: int = 0
    prompt_tokens_computed: int = 0
    queued: int = 0
    queue_ms: float = 0.0
    longest_queue_ms: float = 0.0
    drafter_failures: int = 0
    cancellations: int = 0

    @property
    def acceptance(self) -> tuple[float, ...]:
        """For each place in a draft, the share that stood of the tokens verified there.

        A token stands only if all before it do: these are the survivals that were measured.
        """
        return tuple(
            accepted / scheduled
            for accepted, scheduled in zip(self.accepted_at, self.scheduled_at, strict=True)
        )


class Counters:
    """Counts for one engine: its thread adds, any thread reads.

    A snapshot is replaced as a whole, once a step, so whoever reads one sees counts that belong
    together, without a lock.

    Attributes:
        metrics: the counts so far.
    """

    def __init__(self) -> None:
        self.metrics = EngineMetrics()

    def step(
        self,
        steps: Sequence[Step],
        *,
        prompt_tokens: int,
        draft_ms: float,
        target_ms: float,
        whole_ms: float,
    ) -> None:
        """Count a step of the engine.

        Args:
            steps: what it was for each sequence that it decoded.
            prompt_tokens: how many prompt tokens it computed.
            draft_ms: what it spent in the drafter,
            target_ms: in the target,
            whole_ms: and altogether.
        """
        now = self.metrics
        block = max([len(now.scheduled_at), *(step.reach for step in steps)])
        self.metrics = replace(
            now,
            steps=now.steps + 1,
            tokens_committed=now.tokens_committed + sum(len(step.committed) for step in steps),
            tokens_drafted=now.tokens_drafted + sum(len(step.draft) for step in steps),
            tokens_scheduled=now.tokens_scheduled + sum(step.scheduled for step in steps),
            tokens_accepted=now.tokens_accepted + sum(step.accepted for step in steps),
            scheduled_at=_added(now.scheduled_at, [step.reach for step in steps], block),
            accepted_at=_added(now.accepted_at, [step.accepted for step in steps], block),
            draft_ms=now.draft_ms + draft_ms,
            target_ms=now.target_ms + target_ms,
            rest_ms=now.rest_ms + whole_ms - draft_ms - target_ms,
            prompt_tokens_computed=now.prompt_tokens_computed + prompt_tokens,
        )

    def left_queue(self, waited_ms: float) -> None:
        """Count a request that has come to a slot for the first time."""
        now = self.metrics
        self.metrics = replace(
            now,
            queued=now.queued + 1,
            queue_ms=now.queue_ms + waited_ms,
            longest_queue_ms=max(now.longest_queue_ms, waited_ms),
        )

    def reused(self, prompt_tokens: int) -> None:
        """Count prompt tokens that need no computing."""
        now = self.metrics
        reused = now.prompt_tokens_reused + prompt_tokens
        self.metrics = replace(now, prompt_tokens_reused=reused)

    def drafter_failed(self) -> int:
        """Count a failure of the drafter; returns how many there were."""
        failures = self.metrics.drafter_failures + 1
        self.metrics = replace(self.metrics, drafter_failures=failures)
        return failures

    def cancelled(self) -> None:
        """Count a request that was cancelled."""
        self.metrics = replace(self.metrics, cancellations=self.metrics.cancellations + 1)


def _added(counts: Sequence[int], lengths: Sequence[int], block: int) -> tuple[int, ...]:
    """Each place's count, with one more for every length that reaches it."""
    before = (*counts, *(0 for _ in range(block - len(counts))))
    return tuple(
        count + sum(length > place for length in lengths) for place, count in enumerate(before)
    )
