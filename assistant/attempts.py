"""A session's attempts at words, on their way through the recogniser that all sessions share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from assistant.effects import Hasten, Transcribe
from assistant.events import INPUT_RATE_HZ, Samples, TranscriptFailed, TranscriptReady
from assistant.failures import failure_of
from assistant.stages import Stages
from assistant.workers import Urgency
from audio.streaming import Kind, Segment
from audio.transcriber import Transcript

_URGENCIES: dict[Kind, Urgency] = {
    "partial": Urgency.PARTIAL,
    "pause": Urgency.GUESS,
    "final": Urgency.FINAL,
}


@dataclass(slots=True)
class _Attempt:
    """An attempt at a turn's words; `begun` is set by the worker."""

    work: Transcribe
    samples: Samples
    task: asyncio.Task[None] | None = None
    begun: bool = False

    def cancel_waiting(self) -> None:
        """Give it up before it begins; if it just does, its result is dropped."""
        assert self.task is not None
        self.task.cancel()


class Attempts:
    """Of the attempts at one turn that have not begun only the newest waits.

    Args:
        stages: where they are made.
        session: whose they are.
        feed: takes the results.
        spawn: starts a task that the session owns.
    """

    def __init__(
        self,
        stages: Stages,
        session: object,
        feed: Callable[[TranscriptReady | TranscriptFailed], None],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._stages = stages
        self._session = session
        self._feed = feed
        self._spawn = spawn
        self._newest: _Attempt | None = None

    def begin(self, work: Transcribe, samples: Samples) -> None:
        """Start an attempt at a turn's words; one before it that still waits is overtaken."""
        waiting = self._newest
        if waiting is not None and waiting.work.turn_id == work.turn_id and not waiting.begun:
            waiting.cancel_waiting()
        self._start(work, samples)

    def hasten(self, work: Hasten) -> None:
        """Let an attempt that still waits do so with its new urgency."""
        waiting = self._newest
        if waiting is None or waiting.begun:
            return
        if (waiting.work.turn_id, waiting.work.attempt) == (work.turn_id, work.attempt):
            waiting.cancel_waiting()
            self._start(replace(waiting.work, kind=work.kind), waiting.samples)

    def _start(self, work: Transcribe, samples: Samples) -> None:
        self._newest = attempt = _Attempt(work, samples)
        attempt.task = self._spawn(self._transcribe(attempt))

    async def _transcribe(self, attempt: _Attempt) -> None:
        stages, work, certain = self._stages, attempt.work, self._stages.certain_work

        def transcribe() -> Transcript:
            attempt.begun = True
            return stages.transcriber.transcribe(attempt.samples)

        try:
            with ExitStack() as stack:
                if work.kind == "partial":
                    await certain.until(lambda: not certain.going_on())
                else:
                    stack.enter_context(certain.of(self._session))
                heard = await stages.asr_worker.run(_URGENCIES[work.kind], transcribe)
        except Exception as error:
            failed = failure_of("asr", error)
            self._feed(TranscriptFailed(work.turn_id, work.attempt, failed))
            return
        segments = tuple(
            Segment(each.text, work.start_sample + round(each.end_s * INPUT_RATE_HZ))
            for each in heard.segments
        )
        self._feed(
            TranscriptReady(work.turn_id, work.attempt, heard.text, heard.rejection, segments)
        )
