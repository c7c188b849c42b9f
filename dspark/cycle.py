"""One decoding cycle for the sequences that share a step: draft, schedule, run, postprocess.

Plain decoding is the cycle in which nothing was drafted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from torch import Tensor

from dspark.acceptance import RunningAcceptance
from dspark.admission import Share
from dspark.drafters.protocol import Anchor, Draft, Drafter
from dspark.errors import GenerationFailed
from dspark.generation import FinishReason, Step
from dspark.kv_cache import InSlots, KvCache, Slot
from dspark.metrics import Counters
from dspark.policies import Drafting
from dspark.scheduler import Scheduler
from dspark.sequence import Sequence as Request
from dspark.soundness import sound_part
from dspark.steps import Steps
from dspark.target import Span, Target
from dspark.verification import TreeVerdict, verify_tree
from dspark.waiting_features import WaitingFeatures

logger = logging.getLogger(__name__)


@dataclass
class _Part:
    """One sequence's part in the cycle.

    Attributes:
        share: which of its tokens are computed.
        slot: where.
        draft: what may follow them.
        verified: how much of the draft is verified; of a tree, those nodes depth first.
        outcome: what came of it, if the sequence was decoded.
        ending: why its answer has ended, if it has.
    """

    share: Share
    slot: Slot
    draft: Draft = field(default_factory=Draft)
    verified: Draft = field(default_factory=Draft)
    outcome: Step | None = None
    ending: FinishReason | None = None

    @property
    def sequence(self) -> Request:
        return self.share.sequence

    def span(self) -> Span:
        start, count = self.sequence.computed, self.share.tokens
        tokens = [*self.sequence.tokens(start, start + count), *self.verified.tokens]
        # A part of a prompt needs no logits; otherwise the anchor's and each drafted token's.
        logits = len(self.verified.tokens) + 1 if self.share.reaches_end else 0
        if self.sequence.scoring is not None:
            logits = self.sequence.scoring.rows(self.sequence.length, start, start + count)
        return Span(self.slot.index, start, tokens, logits, self.verified.tree)

    def schedule(self, length: int) -> None:
        """Verify the first tokens of the draft."""
        first = self.draft.taking(range(length)) if length else Draft()
        if first.tree is not None:
            # A tree that is none costs the step less without being called so.
            chain = first.tree.is_chain
            first = replace(first, tree=None) if chain else first.taking(first.tree.depth_first())
        self.verified = first


class Cycle:
    """Advances requests by one step.

    Attributes:
        caches: the target's and, if it has one, the drafter's; a slot is the same in both.
        in_slots: what has to be copied where a slot's prefix is.
    """

    def __init__(
        self,
        target: Target,
        steps: Steps,
        scheduler: Scheduler,
        *,
        context_tokens: int,
        counters: Counters,
    ) -> None:
        self._target = target
        self._steps = steps
        self._counters = counters
        self._drafter_ms = 0.0  # in the present step
        self._drafter = steps.drafter
        self._scheduler = scheduler
        self._context_tokens = context_tokens
        self._drafter_cache = steps.drafter_cache
        self.caches: list[KvCache] = [steps.cache]
        if self._drafter_cache is not None and self._drafter_cache is not steps.cache:
            self.caches.append(self._drafter_cache)
        self.in_slots: list[InSlots] = [steps.cache]
        self._waiting: WaitingFeatures | None = None
        if steps.drafter is not None and steps.feature_width:
            self._waiting = WaitingFeatures(
                steps.drafter,
                steps.drafter_cache,
                slots=steps.cache.slots,
                width=steps.feature_width,
                like=steps.cache.keys,
            )
            self.in_slots.append(self._waiting)
        else:
            self.in_slots += self.caches[1:]
        self._acceptance = RunningAcceptance()

    @property
    def bytes(self) -> int:
        """How much memory it keeps for its sequences."""
        kept = sum(cache.bytes for cache in self.caches)
        return kept + (0 if self._waiting is None else self._waiting.bytes)

    def run(self, plan: Sequence[Share]) -> None:
        """Advance every sequence of the plan; one that fails fails alone."""
        begun = time.perf_counter()
        self._drafter_ms = 0.0
        parts = [_Part(share, share.sequence.owned_slot) for share in plan]
        self._draft(parts)
        spans = [part.span() for part in parts]
        computing = time.perf_counter()
        try:
            forward = self._steps.forward(spans)
            verdicts = self._steps.judge(
                [
                    logits[:0] if part.sequence.scoring is not None else logits
                    for part, logits in zip(parts, forward.logits, strict=True)
                ],
                [part.verified for part in parts],
                [part.sequence.sampler for part in parts],
            )
        except Exception as error:
            if len(parts) == 1:
                self._fail(parts[0], error)
                return
            # Nothing says whose fault it was: each alone, and only the guilty one fails.
            for share in plan:
                self.run([share])
            return
        computed = time.perf_counter()
        for index, (part, span) in enumerate(zip(parts, spans, strict=True)):
            features = None if forward.features is None else forward.features[index]
            try:
                judged = verdicts[index]
                verdict = (
                    None if judged is None else TreeVerdict(range(judged.accepted), judged.token)
                )
                scoring = part.sequence.scoring
                if scoring is not None:
                    scoring.take(forward.logits[index], span.stop)
                    part.ending = "stop" if part.share.reaches_end else None
                elif verdict is None and span.logits > 0:
                    logits, sampler = forward.logits[index], part.sequence.sampler
                    verdict = verify_tree(logits, part.verified, sampler)
                self._postprocess(part, span, verdict, features)
            except Exception as error:
                self._fail(part, error)
        self._record(parts)
        self._counters.step(
            [part.outcome for part in parts if part.outcome is not None],
            prompt_tokens=sum(
                min(span.stop, len(part.sequence.prompt)) - span.start
                for part, span in zip(parts, spans, strict=True)
                if span.start < len(part.sequence.prompt)
            ),
            draft_ms=self._drafter_ms,
            target_ms=1000 * (computed - computing),
            whole_ms=1000 * (time.perf_counter() - begun),
        )
        for part in parts:
            self._deliver(part)

    def _draft(self, parts: Sequence[_Part]) -> None:
        """Give a draft to each part that decodes, and decide how much of it is verified."""
        if self._drafter is None or not self._scheduler.drafting:
            return
        drafting = [part for part in parts if self._room(part) > 0]
        if not drafting:
            return
        # The same for all, and not what each has room for: a draft must not depend on the others'.
        most = self._scheduler.most_drafted
        anchors = [
            Anchor(
                part.slot.index,
                part.sequence.computed,
                part.sequence.anchor,
                part.sequence.sampler,
                most,
            )
            for part in drafting
        ]
        if self._waiting is not None:
            for part in drafting:
                with self._taking_in():
                    self._waiting.take_in(part.slot.index)
        try:
            drafts = self._drafted(self._drafter, anchors)
        except Exception:
            self._drafter_failed("drafting failed", exc_info=True)
            return
        for part, draft in zip(drafting, drafts, strict=True):
            part.draft = self._fitting(part, self._acceptance.applied(draft))
        decoding = [part for part in parts if part.share.reaches_end]
        lengths = self._scheduler.schedule(
            _certain_tokens(parts),
            [part.draft for part in decoding],
            [part.sequence.generation.priority for part in decoding],
        )
        for part, length in zip(decoding, lengths, strict=True):
            room = self._room(part) if part.draft.tree is None else length
            part.schedule(min(length, room, len(part.draft.tokens)))

    def _drafted(self, drafter: Drafter, anchors: Sequence[Anchor]) -> list[Draft]:
        """The drafter's drafts, as far as they make sense; raises if there is not one an anchor."""
        with self._timed():
            drafts = drafter.draft(self._drafter_cache, anchors)
        if len(drafts) != len(anchors):
            raise ValueError(f"{len(drafts)} drafts for {len(anchors)} anchors")
        sound = [
            sound_part(
                draft,
                self._target.vocab_size,
                sampled=not (self._steps.vouches_for_drafts or anchor.sampler.params.greedy),
            )
            for draft, anchor in zip(drafts, anchors, strict=True)
        ]
        if any(part is not draft for part, draft in zip(sound, drafts, strict=True)):
            self._drafter_failed("a draft has tokens, confidences or distributions that are none")
        return sound

    def _drafter_failed(self, how: str, exc_info: bool = False) -> None:
        """Say so; nobody's answer depends on it."""
        failures = self._counters.drafter_failed()
        # One that fails at every step would fill the log: it tells of the 1st, 2nd, 4th, 8th …
        if failures & (failures - 1) == 0:
            logger.warning(
                "The drafter failed (%s; failure %d so far); decoding goes on without",
                how,
                failures,
                exc_info=exc_info,
            )

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Counts what is done within as the drafter's time."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self._drafter_ms += 1000 * (time.perf_counter() - begun)

    def _record(self, parts: Sequence[_Part]) -> None:
        decoding = [part.outcome for part in parts if part.outcome is not None]
        self._scheduler.record(
            _certain_tokens(parts),
            sequences=len(decoding),
            drafting=Drafting.of([part.draft for part in parts if part.outcome is not None]),
            verified=sum(step.scheduled for step in decoding),
            # Whatever ends an answer early, or holds tokens back, is not the drafter's doing.
            committed=sum(step.accepted + 1 for step in decoding),
        )

    def _room(self, part: _Part) -> int:
        """How many drafted tokens could still be committed, the target's own token after them."""
        sequence = part.sequence
        if sequence.uncomputed != 1:
            return 0
        left_in_context = self._context_tokens - sequence.length
        left_in_answer = sequence.params.max_new_tokens - len(sequence.answer)
        return min(left_in_context, left_in_answer) - 1

    def _fitting(self, part: _Part, draft: Draft) -> Draft:
        """Of a tree, what can still be committed and finds a place in the slot."""
        if draft.tree is None:
            return draft
        places = self._context_tokens - part.sequence.length
        fitting = draft.tree.within(self._room(part), places)
        return draft if len(fitting) == len(draft.tree) else draft.taking(fitting)

    def _postprocess(
        self, part: _Part, span: Span, verdict: TreeVerdict | None, features: Tensor | None
    ) -> None:
        certain = part.share.tokens
        path = verdict.path if verdict else ()
        standing = [*range(certain), *(certain + node for node in path)]
        if span.tree is not None:
            self._steps.cache.keep(span.slot, span.start, standing)
        if self._waiting is not None and features is None:
            self._waiting.void(span.slot, span.start)
        elif self._waiting is not None and features is not None:
            whole = len(standing) == standing[-1] + 1
            stand = features[: len(standing)] if whole else features[standing]
            with self._taking_in():
                self._waiting.add(span.slot, span.start, stand)
        # From here on what was rejected is forgotten: the next step overwrites it.
        part.slot.tokens += [span.tokens[row] for row in standing]
        if verdict is not None:
            self._acceptance.learn(part.verified, path)
            self._commit(part, path, verdict.token)

    @contextmanager
    def _taking_in(self) -> Iterator[None]:
        """The drafter takes in what the target made of the tokens that stand."""
        try:
            with self._timed():
                yield
        except Exception:
            self._drafter_failed("taking in features failed", exc_info=True)

    def _commit(self, part: _Part, path: Sequence[int], token: int) -> None:
        sequence, draft, verified = part.sequence, part.draft, part.verified
        anchor = sequence.anchor
        committed, stopped = sequence.extend((*(verified.tokens[node] for node in path), token))
        full = sequence.length >= self._context_tokens
        if stopped:
            part.ending = "stop"
        elif full or len(sequence.answer) >= sequence.params.max_new_tokens:
            part.ending = "length"
            committed += sequence.rest()
        part.outcome = Step(
            anchor,
            draft.tokens,
            draft.confidence,
            scheduled=len(verified.tokens),
            accepted=len(path),
            committed=tuple(committed),
            tree=draft.tree,
        )

    @staticmethod
    def _deliver(part: _Part) -> None:
        generation = part.sequence.generation
        if part.outcome is not None:
            generation._publish(part.outcome)
        if part.ending is not None:
            generation._finish(part.ending)

    @staticmethod
    def _fail(part: _Part, cause: Exception) -> None:
        error = GenerationFailed(f"computing this request failed ({cause!r}): submit it again")
        error.__cause__ = cause
        part.sequence.generation._fail(error)


def _certain_tokens(parts: Sequence[_Part]) -> int:
    """What the step computes in any case: anchors and parts of prompts."""
    return sum(part.share.tokens for part in parts)
