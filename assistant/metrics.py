"""Every metric of the server, in one place.

Labels are few and closed: no identifier of a session, a user or a turn ever becomes one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from assistant.effects import Notice, StageFailed, TurnFinished, UtteranceDiscarded
from assistant.workers import Urgency

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LATENCY_BUCKETS_S = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
_LAG_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
LAG_PERIOD_S = 0.25


class Metrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self._registry = registry

        def latency(name: str, help_text: str) -> Histogram:
            return Histogram(
                f"assistant_{name}_seconds",
                help_text,
                ["kind"],
                buckets=_LATENCY_BUCKETS_S,
                registry=registry,
            )

        def counter(name: str, help_text: str, *labels: str) -> Counter:
            return Counter(f"assistant_{name}", help_text, labels, registry=registry)

        self._latencies = {
            "endpoint_wait_ms": latency("endpoint_wait", "Speech end to endpoint."),
            "server_ttfa_ms": latency("server_ttfa", "Speech end to first audio sent."),
            "client_ttfa_ms": latency("client_ttfa", "Speech end to first audible sample."),
            "added_latency_ms": latency("added_latency", "Endpoint to first audio sent."),
        }
        self._turns = counter("turns", "Turns that ended.", "kind", "outcome")
        self._cut_ins = counter("cut_ins", "Turns answered before the user's last sample.")
        self._barge_ins = counter("barge_ins", "Answers that the user spoke into.")
        self._discarded = counter("discarded_utterances", "Sounds that held no words.")
        self._drafted = counter("drafted_tokens", "Answer tokens proposed by the drafter.")
        self._accepted = counter("accepted_tokens", "Proposed tokens that the model accepted.")
        self._guesses = counter("speculated_turns", "Answers begun at a pause.", "outcome")
        self._wasted = counter("wasted_tokens", "Tokens of answers begun too early.")
        self._queues = Histogram(
            "assistant_queue_seconds",
            "How long a job waited for the thread that does it.",
            ["worker", "urgency"],
            buckets=_LAG_BUCKETS_S,
            registry=registry,
        )
        self._stage_failures = counter("stage_failures", "Failures that a turn survived.", "stage")
        self._voided = counter("voided_frames", "Audio frames dropped unsent by interruptions.")
        self._sessions = Gauge("assistant_sessions", "Open sessions.", registry=registry)
        self._session_ends = counter("session_ends", "Sessions that ended.", "reason")
        self._refused = counter("refused_sessions", "Connections turned away.", "reason")
        # What must not grow with the number of sessions that have come and gone.
        self._threads = Gauge("assistant_threads", "Threads of Python.", registry=registry)
        self._tasks = Gauge("assistant_tasks", "Tasks of the event loop.", registry=registry)
        self._lag = Histogram(
            "assistant_event_loop_lag_seconds",
            "How much later than asked the event loop woke up.",
            buckets=_LAG_BUCKETS_S,
            registry=registry,
        )

    def observe(self, notice: Notice) -> None:
        """Count what a session announced."""
        match notice:
            case TurnFinished():
                self.observe_turn(notice)
            case UtteranceDiscarded():
                self._discarded.inc()
            case StageFailed():
                self._stage_failures.labels(notice.stage).inc()

    def observe_turn(self, turn: TurnFinished) -> None:
        """Count a turn, its latencies and its speculation."""
        timeline = turn.timeline
        self._turns.labels(timeline.kind, turn.outcome).inc()
        if timeline.cut_in:
            self._cut_ins.inc()
        if turn.outcome == "interrupted" and timeline.first_sent_s is not None:
            self._barge_ins.inc()
        for name, histogram in self._latencies.items():
            milliseconds: float | None = getattr(timeline, name)
            if milliseconds is not None:
                histogram.labels(timeline.kind).observe(milliseconds / 1000)
        self._drafted.inc(turn.drafted)
        self._accepted.inc(turn.accepted)
        if turn.speculation != "none":
            self._guesses.labels(turn.speculation).inc()
        self._wasted.inc(turn.wasted_tokens)

    def session_opened(self) -> None:
        """Count a session in."""
        self._sessions.inc()

    def session_closed(self, reason: str, voided_frames: int) -> None:
        """Count a session out; `reason` is one of the closed set of close reasons."""
        self._sessions.dec()
        self._session_ends.labels(reason).inc()
        self._voided.inc(voided_frames)

    def session_refused(self, reason: str) -> None:
        """Count a connection that got no session."""
        self._refused.labels(reason).inc()

    def observe_wait(self, worker: str, urgency: Urgency, waited_s: float) -> None:
        """Count how long a job waited for its worker. May be called on any thread."""
        self._queues.labels(worker, urgency.name.lower()).observe(waited_s)

    async def watch_event_loop(self, on_lag: Callable[[float], None] = lambda lag_s: None) -> None:
        """Measure, until cancelled, how late the event loop is; tell `on_lag`, too."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + LAG_PERIOD_S
            await asyncio.sleep(LAG_PERIOD_S)
            lag_s = max(0.0, loop.time() - due_s)
            self._lag.observe(lag_s)
            on_lag(lag_s)

    def exposition(self) -> bytes:
        """Return all metrics in the Prometheus text format. To be called on the event loop."""
        self._threads.set(threading.active_count())
        self._tasks.set(len(asyncio.all_tasks()))
        return generate_latest(self._registry)
