"""One thread owns the model and advances every request by steps: schedule, run, postprocess."""

from __future__ import annotations

import itertools
import threading
from collections.abc import AsyncIterator, Sequence

import torch
from torch import Tensor

from dspark.admission import Admission, Share
from dspark.errors import (
    EngineClosed,
    EngineFull,
    GenerationFailed,
    InvalidRequest,
    PromptTooLong,
)
from dspark.generation import Generation, Priority, Result, Step
from dspark.kv_cache import SlotPool
from dspark.sampling import SamplingParams, distribution, draw, processed_logits
from dspark.sequence import Sequence as Request
from dspark.target import Span, Target


class Engine:
    """Generates for many requests at once; every method may be called from any thread.

    Args:
        target: the model whose distribution is decoded.
        slots: how many requests run at once, and how many prefixes are remembered between them.
        context_tokens: longest prompt and answer together; at most the model's own.
        max_queue: how many requests may wait for a slot.
        prefill_tokens: how many prompt tokens a step takes at most. More makes long prompts
            faster and the other requests' tokens later.
    """

    def __init__(
        self,
        target: Target,
        *,
        slots: int = 4,
        context_tokens: int = 2048,
        max_queue: int = 64,
        prefill_tokens: int = 64,
    ) -> None:
        for name, value in (
            ("slots", slots),
            ("context_tokens", context_tokens),
            ("max_queue", max_queue),
            ("prefill_tokens", prefill_tokens),
        ):
            if value < 1:
                raise InvalidRequest(f"{name} is {value}; it must be at least 1")
        self.target = target
        self.context_tokens = min(context_tokens, target.context_tokens)
        self._cache = target.new_cache(slots, self.context_tokens)
        self._pool = SlotPool(slots, [self._cache])
        self._admission = Admission(self._pool, prefill_tokens)
        self._max_queue = max_queue
        self._arrivals = itertools.count()
        self._inbox: list[Request] = []
        self._changed = threading.Condition()
        self._dirty = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="dspark-engine", daemon=True)
        self._thread.start()

    # --- for callers -------------------------------------------------------------------------

    def submit(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams | None = None,
        *,
        priority: Priority = Priority.CONFIRMED,
    ) -> Generation:
        """Queue a request and return at once; iterate the generation for its steps.

        Raises:
            PromptTooLong: prompt and one answer token do not fit the context.
            InvalidRequest: the prompt is empty or has ids outside the vocabulary.
            EngineFull: too many requests wait; speculative ones never use up a confirmed one's
                place.
            EngineClosed: the engine was closed.
        """
        params = params or SamplingParams()
        prompt = tuple(prompt_ids)
        self._check(prompt, params)
        generation = Generation(len(prompt), priority, self._notice)
        stops = params.stop_token_ids | self.target.stop_token_ids
        with self._changed:
            if self._closed:
                raise EngineClosed("the engine is closed: open another one")
            ahead = [
                each
                for each in (*self._inbox, *self._admission.waiting)
                if each.generation.priority <= priority and not each.generation.finished
            ]
            if len(ahead) >= self._max_queue:
                raise EngineFull(
                    f"{len(ahead)} requests wait already, as many as max_queue allows: try again "
                    "when one has finished"
                )
            self._inbox.append(Request(prompt, params, generation, stops, next(self._arrivals)))
        self._notice()
        return generation

    async def stream(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams | None = None,
        *,
        priority: Priority = Priority.CONFIRMED,
    ) -> AsyncIterator[Step]:
        """Submit and yield the steps; leaving the iteration, or closing it, cancels the request."""
        generation = self.submit(prompt_ids, params, priority=priority)
        try:
            async for step in generation:
                yield step
        finally:
            generation.cancel()

    def cancel(self, generation: Generation) -> None:
        """Same as `generation.cancel()`."""
        generation.cancel()

    def generate(self, prompt_ids: Sequence[int], params: SamplingParams | None = None) -> Result:
        """Submit and wait for the whole answer; raises as `submit` and iteration do."""
        generation = self.submit(prompt_ids, params)
        steps = tuple(generation)
        reason = generation.finish_reason
        assert reason is not None, "iteration ends only with a reason"
        return Result(tuple(itertools.chain(*(step.committed for step in steps))), steps, reason)

    def warm_up(self) -> None:
        """Run a few steps, so that the first request does not pay for first-time set-up."""
        prompt = [0] * min(32, self.context_tokens - 1)
        self.generate(prompt, SamplingParams(max_new_tokens=4))

    def close(self) -> None:
        """Stop the thread and wait for it; unfinished requests raise `EngineClosed`."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def running(self) -> int:
        """How many unfinished requests hold a slot."""
        return sum(not each.generation.finished for each in self._admission.running)

    @property
    def waiting(self) -> int:
        """How many requests wait for one."""
        return len(self._inbox) + len(self._admission.waiting)

    def _check(self, prompt: Sequence[int], params: SamplingParams) -> None:
        if not prompt:
            raise InvalidRequest("the prompt is empty: give at least one token")
        if len(prompt) >= self.context_tokens:
            raise PromptTooLong(
                f"the prompt has {len(prompt)} tokens and the engine's context is "
                f"{self.context_tokens}: shorten it, or open the engine with more context_tokens"
            )
        vocab = self.target.vocab_size
        for token in (*prompt, *params.logit_bias):
            if not 0 <= token < vocab:
                raise InvalidRequest(
                    f"token {token} is outside the model's vocabulary of {vocab}: use the "
                    "target's own tokenizer"
                )

    def _notice(self) -> None:
        with self._changed:
            self._dirty = True
            self._changed.notify()

    # --- the engine thread -------------------------------------------------------------------

    def _run(self) -> None:
        torch.set_num_threads(self.target.threads)
        with torch.inference_mode():
            while self._collect():
                plan = self._admission.plan()
                if plan:
                    self._step(plan)
        for sequence in (*self._inbox, *self._admission.waiting, *self._admission.running):
            sequence.generation._fail(EngineClosed("the engine was closed: open another one"))

    def _collect(self) -> bool:
        """Take in what changed, waiting if there is nothing to do; False once closed."""
        with self._changed:
            idle = not self._admission.running
            self._changed.wait_for(lambda: self._closed or self._dirty or not idle)
            self._dirty = False
            self._admission.waiting += self._inbox
            self._inbox.clear()
            self._admission.drop_finished()
            self._admission.admit()
            return not self._closed

    def _step(self, plan: list[Share]) -> None:
        try:
            logits = self._forward(plan)
        except Exception as error:
            if len(plan) == 1:
                self._fail(plan[0].sequence, error)
                return
            # Nothing says whose fault it was: each alone, and only the guilty one fails.
            for share in plan:
                self._step([share])
            return
        for share, rows in zip(plan, logits, strict=True):
            try:
                self._postprocess(share, rows)
            except Exception as error:
                self._fail(share.sequence, error)

    def _forward(self, plan: list[Share]) -> list[Tensor]:
        spans = []
        for share in plan:
            sequence = share.sequence
            assert sequence.slot is not None, "a running sequence owns a slot"
            start = sequence.computed
            tokens = sequence.tokens(start, start + share.tokens)
            spans.append(Span(sequence.slot.index, start, tokens, logits=int(share.reaches_end)))
        logits = self.target.forward(spans, self._cache).logits
        for share, span in zip(plan, spans, strict=True):
            assert share.sequence.slot is not None
            share.sequence.slot.tokens += span.tokens
        return logits

    def _postprocess(self, share: Share, rows: Tensor) -> None:
        if len(rows) == 0:
            return  # a part of a prompt
        sequence = share.sequence
        params = sequence.params
        arguments = (rows[-1], params, sequence.prompt, sequence.answer)
        if params.greedy:
            token = int(processed_logits(*arguments).argmax())
        else:
            token = draw(distribution(*arguments), sequence.rng)
        anchor = sequence.anchor
        generation = sequence.generation
        if token in sequence.stop_token_ids:
            generation._publish(Step(anchor))
            generation._finish("stop")
            return
        sequence.answer.append(token)
        generation._publish(Step(anchor, committed=(token,)))
        full = sequence.length >= self.context_tokens
        if full or len(sequence.answer) >= params.max_new_tokens:
            generation._finish("length")

    def _fail(self, sequence: Request, cause: Exception) -> None:
        error = GenerationFailed(f"computing this request failed ({cause!r}): submit it again")
        error.__cause__ = cause
        if sequence.slot is not None:
            sequence.slot.roll_back(0)  # what a failed step left there is not to be trusted
        sequence.generation._fail(error)
