"""One decoding cycle for the sequences that share a step: draft, schedule, run, postprocess.

Plain decoding is the cycle in which nothing was drafted.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from dspark.admission import Share
from dspark.drafters.protocol import Anchor, Draft, Drafter
from dspark.errors import GenerationFailed
from dspark.generation import Step
from dspark.kv_cache import KvCache, Slot
from dspark.scheduler import Scheduler
from dspark.sequence import Sequence as Request
from dspark.target import Span, Target
from dspark.verification import verify

logger = logging.getLogger(__name__)


@dataclass
class _Part:
    """One sequence's part in the cycle.

    Attributes:
        share: which of its tokens are computed.
        slot: where.
        draft: what may follow them.
        scheduled: how much of the draft is verified.
        committed: how many tokens came of it.
    """

    share: Share
    slot: Slot
    draft: Draft = field(default_factory=Draft)
    scheduled: int = 0
    committed: int = 0

    @property
    def sequence(self) -> Request:
        return self.share.sequence

    def span(self) -> Span:
        start, count = self.sequence.computed, self.share.tokens
        tokens = [
            *self.sequence.tokens(start, start + count),
            *self.draft.tokens[: self.scheduled],
        ]
        # A part of a prompt needs no logits; otherwise the anchor's and each drafted token's.
        logits = self.scheduled + 1 if self.share.reaches_end else 0
        return Span(self.slot.index, start, tokens, logits)


class Cycle:
    """Advances requests by one step.

    Attributes:
        caches: the target's and, if it has one, the drafter's; a slot is the same in both.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        scheduler: Scheduler,
        *,
        slots: int,
        context_tokens: int,
    ) -> None:
        self._target = target
        self._drafter = drafter
        self._scheduler = scheduler
        self._context_tokens = context_tokens
        self._cache = target.new_cache(slots, context_tokens)
        self._drafter_cache = drafter.new_cache(slots, context_tokens) if drafter else None
        self.caches: list[KvCache] = [self._cache]
        if self._drafter_cache is not None:
            self.caches.append(self._drafter_cache)

    def run(self, plan: Sequence[Share]) -> None:
        """Advance every sequence of the plan; one that fails fails alone."""
        parts = [_Part(share, share.sequence.owned_slot) for share in plan]
        self._draft(parts)
        spans = [part.span() for part in parts]
        try:
            taps = self._drafter.taps if self._drafter is not None else ()
            forward = self._target.forward(spans, self._cache, taps)
        except Exception as error:
            if len(parts) == 1:
                self._fail(parts[0], error)
                return
            # Nothing says whose fault it was: each alone, and only the guilty one fails.
            for share in plan:
                self.run([share])
            return
        for index, (part, span) in enumerate(zip(parts, spans, strict=True)):
            features = None if forward.features is None else forward.features[index]
            try:
                self._postprocess(part, span, forward.logits[index], features)
            except Exception as error:
                self._fail(part, error)
        self._record(parts)

    def _draft(self, parts: Sequence[_Part]) -> None:
        """Give a draft to each part that decodes, and decide how much of it is verified."""
        if self._drafter is None or not self._scheduler.drafting:
            return
        drafting = [part for part in parts if self._room(part) > 0]
        if not drafting:
            return
        anchors = [
            Anchor(
                part.slot.index, part.sequence.computed, part.sequence.anchor, part.sequence.sampler
            )
            for part in drafting
        ]
        try:
            drafts = self._drafter.draft(self._drafter_cache, anchors)
        except Exception:
            # Nobody's answer depends on it: this step goes without.
            logger.warning("Drafting failed; decoding goes on without", exc_info=True)
            return
        for part, draft in zip(drafting, drafts, strict=True):
            part.draft = draft
        decoding = [part for part in parts if part.share.reaches_end]
        lengths = self._scheduler.schedule(
            _certain_tokens(parts),
            [part.draft for part in decoding],
            [part.sequence.generation.priority for part in decoding],
        )
        for part, length in zip(decoding, lengths, strict=True):
            part.scheduled = min(length, self._room(part)) if part.draft.tokens else 0

    def _record(self, parts: Sequence[_Part]) -> None:
        decoding = [part for part in parts if part.committed > 0]
        self._scheduler.record(
            _certain_tokens(parts),
            sequences=len(decoding),
            drafted=sum(1 for part in decoding if part.draft.tokens),
            verified=sum(part.scheduled for part in decoding),
            committed=sum(part.committed for part in decoding),
        )

    def _room(self, part: _Part) -> int:
        """How many drafted tokens could still be committed, the target's own token after them."""
        sequence = part.sequence
        if sequence.uncomputed != 1:
            return 0
        left_in_context = self._context_tokens - sequence.length
        left_in_answer = sequence.params.max_new_tokens - len(sequence.answer)
        return min(left_in_context, left_in_answer) - 1

    def _postprocess(
        self, part: _Part, span: Span, logits: Tensor, features: Tensor | None
    ) -> None:
        verdict = verify(logits, part.draft, part.sequence.sampler) if len(logits) else None
        standing = part.share.tokens + (verdict.accepted if verdict else 0)
        if self._drafter is not None and features is not None:
            self._drafter.extend(self._drafter_cache, span.slot, span.start, features[:standing])
        # From here on what was rejected is forgotten: the next step overwrites it.
        part.slot.tokens += span.tokens[:standing]
        if verdict is not None:
            self._commit(part, verdict.accepted, verdict.token)

    def _commit(self, part: _Part, accepted: int, token: int) -> None:
        sequence = part.sequence
        anchor = sequence.anchor
        committed: list[int] = []
        reason = None
        for each in (*part.draft.tokens[:accepted], token):
            if each in sequence.stop_token_ids:
                reason = "stop"
                break
            committed.append(each)
        sequence.answer += committed
        part.committed = accepted + 1
        generation = sequence.generation
        generation._publish(
            Step(
                anchor,
                part.draft.tokens,
                part.draft.confidence,
                part.scheduled,
                accepted,
                tuple(committed),
            )
        )
        full = sequence.length >= self._context_tokens
        if reason == "stop":
            generation._finish("stop")
        elif full or len(sequence.answer) >= sequence.params.max_new_tokens:
            generation._finish("length")

    @staticmethod
    def _fail(part: _Part, cause: Exception) -> None:
        error = GenerationFailed(f"computing this request failed ({cause!r}): submit it again")
        error.__cause__ = cause
        part.sequence.generation._fail(error)


def _certain_tokens(parts: Sequence[_Part]) -> int:
    """What the step computes in any case: anchors and parts of prompts."""
    return sum(part.share.tokens for part in parts)
