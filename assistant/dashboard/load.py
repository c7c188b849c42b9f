"""How late the event loop is and how long jobs wait, summed up once in a while."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue

from assistant.dashboard.records import LoadRecord, QueueRecord
from assistant.workers import Urgency
from dspark import EngineMetrics


class LoadMeter:
    """Collects what is measured, on whatever thread, until it is taken.

    `engine_metrics` returns what the language model's engine has done so far, or `None`.
    """

    def __init__(self, engine_metrics: Callable[[], EngineMetrics | None]) -> None:
        self._engine_metrics = engine_metrics
        self._before: EngineMetrics | None = None
        self._longest_lag_s: float | None = None
        self._waits: SimpleQueue[tuple[str, Urgency, float]] = SimpleQueue()

    def note_lag(self, lag_s: float) -> None:
        """The event loop woke up this much later than it was to."""
        self._longest_lag_s = max(lag_s, self._longest_lag_s or 0.0)

    def note_wait(self, worker: str, urgency: Urgency, waited_s: float) -> None:
        """A job waited for its worker. May be called on any thread."""
        self._waits.put((worker, urgency, waited_s))

    def take(self, *, at_s: float, sessions: int) -> LoadRecord:
        """Sum up what was noted since the last time."""
        lag_s, self._longest_lag_s = self._longest_lag_s, None
        return LoadRecord(
            at_s=round(at_s, 3),
            sessions=sessions,
            lag_ms=None if lag_s is None else _milliseconds(lag_s),
            queues=[*self._worker_queues(), *self._engine_queue()],
        )

    def _worker_queues(self) -> list[QueueRecord]:
        waits: dict[tuple[str, Urgency], list[float]] = {}
        while True:
            try:
                worker, urgency, waited_s = self._waits.get_nowait()
            except Empty:
                break
            waits.setdefault((worker, urgency), []).append(waited_s)
        return [
            QueueRecord(
                worker=worker,
                urgency=urgency.name.lower(),
                jobs=len(seconds),
                mean_ms=_milliseconds(sum(seconds) / len(seconds)),
                longest_ms=_milliseconds(max(seconds)),
            )
            for (worker, urgency), seconds in sorted(waits.items())
        ]

    def _engine_queue(self) -> list[QueueRecord]:
        now, before = self._engine_metrics(), self._before
        self._before = now
        if now is None or before is None or now.queued <= before.queued:
            return []
        jobs = now.queued - before.queued
        mean_ms = (now.queue_ms - before.queue_ms) / jobs
        return [QueueRecord(worker="llm", jobs=jobs, mean_ms=round(mean_ms, 2))]


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 2)
