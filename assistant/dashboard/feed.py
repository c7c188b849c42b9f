"""A stream of records to every page that watches, with a short memory for those that come later."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from assistant.config import Config
from assistant.dashboard.records import Greeting, LoadRecord, TurnRecord
from assistant.effects import TurnFinished
from assistant.realtime.outbox import Outbox, Outgoing

KEPT_TURNS = 100
KEPT_LOADS = 120
MOST_UNREAD = 1024
"""Records that may wait for a page; one that is further behind is disconnected."""


class Feed:
    """What every page is shown; turns and loads go in on the event loop.

    Words are shown if the log may have them: who may read one may read the other.
    `clock` returns seconds since the epoch.
    """

    def __init__(self, config: Config, clock: Callable[[], float] = time.time) -> None:
        self._transcripts = config.log.transcripts
        self._clock = clock
        self._greeting = Greeting(
            models={
                "asr": config.asr.model,
                "llm": config.llm.model,
                "tts": config.voice.model,
            },
            transcripts=self._transcripts,
            kept_turns=KEPT_TURNS,
        )
        # As text, a tenth of what the objects take.
        self._turns: deque[str] = deque(maxlen=KEPT_TURNS)
        self._loads: deque[str] = deque(maxlen=KEPT_LOADS)
        self._watching: set[Outbox] = set()

    @property
    def watching(self) -> int:
        """How many pages are open."""
        return len(self._watching)

    def tell_turn(self, session_id: str, turn: TurnFinished) -> None:
        """Tell of a turn that is over."""
        record = TurnRecord.of(
            session_id, turn, ended_at_s=self._clock(), transcripts=self._transcripts
        )
        self._tell(record, self._turns)

    def tell_load(self, load: LoadRecord) -> None:
        """Tell how busy the server is."""
        self._tell(load, self._loads)

    @contextmanager
    def watch(self) -> Iterator[Outbox]:
        """Yield the way to one more page: a greeting, what is remembered, then all that comes."""
        outbox = Outbox(MOST_UNREAD)
        outbox.put(Outgoing(self._greeting.model_dump(mode="json")))
        for text in (*self._loads, *self._turns):
            outbox.put(Outgoing(json.loads(text)))
        self._watching.add(outbox)
        try:
            yield outbox
        finally:
            self._watching.discard(outbox)

    def _tell(self, record: TurnRecord | LoadRecord, memory: deque[str]) -> None:
        text = record.model_dump_json(exclude_none=True)
        memory.append(text)
        for outbox in self._watching:
            outbox.put(Outgoing(json.loads(text)))
