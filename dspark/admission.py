"""Who holds a slot and who shares the next step: confirmed requests first, in order of arrival."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from dspark.generation import Priority
from dspark.kv_cache import Slot, SlotPool
from dspark.metrics import Counters
from dspark.sequence import Sequence


@dataclass(frozen=True)
class Share:
    """A sequence's part in one step: how many of its uncomputed tokens are computed."""

    sequence: Sequence
    tokens: int

    @property
    def reaches_end(self) -> bool:
        """Whether the sequence's last token is among them, so that the next can be chosen."""
        return self.tokens == self.sequence.uncomputed


class Admission:
    """Waiting and running sequences.

    Four rules: a confirmed sequence that finds no free slot takes a speculative one's, which
    waits and later begins anew; a step with confirmed work holds nothing speculative; a step
    takes at most `prefill_tokens` of prompts that are not yet computed, so a long prompt delays
    the tokens of others by no more than that; a held sequence waits in its slot.
    """

    def __init__(self, pool: SlotPool, prefill_tokens: int, counters: Counters) -> None:
        self._pool = pool
        self._counters = counters
        self._prefill_tokens = prefill_tokens
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []

    def drop_finished(self) -> None:
        """Take out sequences whose generation has ended, and free their slots."""
        for sequence in self.running:
            if sequence.generation.finished:
                self._release(sequence)
        for sequence in (*self.waiting, *self.running):
            if sequence.generation.finish_reason == "cancelled":
                self._counters.cancelled()
        self.waiting = [each for each in self.waiting if not each.generation.finished]
        self.running = [each for each in self.running if not each.generation.finished]

    def admit(self) -> None:
        """Give waiting sequences the free slots, and confirmed ones the speculative ones' slots."""
        for sequence in sorted(self.waiting, key=lambda sequence: sequence.urgency):
            if self._pool.free == 0 and not self._preempt_for(sequence):
                break
            fresh = 1 if sequence.scoring is None else sequence.scoring.last
            slot = self._pool.take(sequence.tokens(0, sequence.length), fresh)
            assert slot is not None, "a slot was free a moment ago"
            sequence.slot = slot
            if not sequence.answer:
                sequence.generation.cached_tokens = len(slot.tokens)
            self._count(sequence, slot)
            self.waiting.remove(sequence)
            self.running.append(sequence)

    @property
    def idle(self) -> bool:
        """Whether no sequence can go on."""
        return all(each.generation.held for each in self.running)

    def plan(self) -> list[Share]:
        """Share out the next step among the running sequences; empty if none can go on."""
        able = (each for each in self.running if not each.generation.held)
        running = sorted(able, key=lambda sequence: sequence.urgency)
        if not running:
            return []
        highest = running[0].generation.priority
        return list(self._shares(each for each in running if each.generation.priority == highest))

    def _preempt_for(self, sequence: Sequence) -> bool:
        """Send the last of the speculative sequences back to waiting, for a confirmed one."""
        latest = max(self.running, key=lambda each: each.urgency)
        if (
            sequence.generation.priority is not Priority.CONFIRMED
            or latest.generation.priority is not Priority.SPECULATIVE
        ):
            return False
        self._release(latest)
        self.running.remove(latest)
        self.waiting.append(latest)
        return True

    def _count(self, sequence: Sequence, slot: Slot) -> None:
        if sequence.submitted_at is not None:
            self._counters.left_queue(1000 * (time.perf_counter() - sequence.submitted_at))
            sequence.submitted_at = None
        self._counters.reused(min(len(slot.tokens), len(sequence.prompt)))

    def _release(self, sequence: Sequence) -> None:
        if sequence.slot is not None:
            self._pool.release(sequence.slot)
            sequence.slot = None

    def _shares(self, sequences: Iterable[Sequence]) -> Iterable[Share]:
        budget = self._prefill_tokens
        for sequence in sequences:
            if sequence.uncomputed == 1:
                yield Share(sequence, 1)
            elif budget > 0:
                tokens = min(sequence.uncomputed, budget)
                budget -= tokens
                yield Share(sequence, tokens)
