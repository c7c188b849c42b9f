"""One thread owns the model and advances every request by steps: schedule, run, postprocess."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence

import torch

from dspark.admission import Admission
from dspark.cycle import Cycle
from dspark.drafters.branched import branched
from dspark.drafters.protocol import Drafter
from dspark.errors import (
    EngineClosed,
    EngineFull,
    InvalidRequest,
    PromptTooLong,
)
from dspark.generation import Generation, Priority, Result, Step
from dspark.kv_cache import SlotPool
from dspark.metrics import Counters, EngineMetrics
from dspark.policies import LEAST_SURVIVAL
from dspark.sampling import SamplingParams
from dspark.scheduler import WEIGHING_COSTS, Scheduler
from dspark.scoring import Scoring
from dspark.sequence import Sequence as Request
from dspark.static_cost import static_cost
from dspark.step_cost import StepCostTable, profiled_cost
from dspark.steps import StaticSteps, steps_for
from dspark.stop_strings import StopStrings
from dspark.target import Target
from dspark.tree import TreeShape

logger = logging.getLogger(__name__)


class Engine:
    """Generates for many requests at once; every method may be called from any thread.

    Args:
        target: the model whose distribution is decoded.
        drafter: proposes tokens that the target verifies; without one, decoding is plain. The
            output's distribution is the same.
        schedule: how much of a draft is verified: `full`, all of it, which is the default, or of
            `full:2` the first two tokens;
            `confidence`, as much as pays, by the drafter's confidences and what steps cost here;
            `confidence_delayed`, the same with a budget from the confidences of two steps ago;
            `threshold`, every token that survives with at least `confidence_threshold`; `off`,
            nothing; or a scheduler of your own. The two that weigh costs measure them now, which
            takes some seconds the first time on a machine.
        tree: what the drafter proposes, if not one token after the other: several candidates for a
            place, and continuations of each (see `TreeShape`).
        confidence_threshold: of the schedule `threshold`, from 0 to 1.
        slots: how many requests run at once, and how many prefixes are remembered between them.
        context_tokens: longest prompt and answer together; at most the model's own.
        max_queue: how many requests may wait for a slot.
        prefill_tokens: how many prompt tokens a step takes at most. More makes long prompts
            faster and the other requests' tokens later.
        static_steps: whether steps are padded to a few shapes, which a GPU then replays (see
            `dspark.steps`); if not said, on a GPU only. Opening the engine on one then takes some
            seconds more, and requests that come meanwhile wait.

    Raises:
        InvalidRequest: there is no such schedule, the drafter proposes no trees, or a number is out
            of its range.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None = None,
        schedule: Scheduler | str | None = None,
        *,
        tree: TreeShape | None = None,
        confidence_threshold: float = LEAST_SURVIVAL,
        slots: int = 4,
        context_tokens: int = 2048,
        max_queue: int = 64,
        prefill_tokens: int = 64,
        static_steps: bool | None = None,
    ) -> None:
        for name, value in (
            ("slots", slots),
            ("context_tokens", context_tokens),
            ("max_queue", max_queue),
            ("prefill_tokens", prefill_tokens),
        ):
            if value < 1:
                raise InvalidRequest(f"{name} is {value}; it must be at least 1")
        if drafter is not None and tree is not None:
            drafter = branched(drafter, tree)
        self.target = target
        self.context_tokens = min(context_tokens, target.context_tokens)
        self._counters = Counters()
        self._steps = steps_for(
            target,
            None if schedule == "off" else drafter,
            slots=slots,
            context_tokens=self.context_tokens,
            static=static_steps,
        )
        cost = static_cost if isinstance(self._steps, StaticSteps) else profiled_cost
        self._cycle = Cycle(
            target,
            self._steps,
            _scheduler(schedule, confidence_threshold, target, drafter, cost),
            context_tokens=self.context_tokens,
            counters=self._counters,
        )
        self._admission = Admission(
            SlotPool(slots, self._cycle.in_slots), prefill_tokens, self._counters
        )
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
            TokenizerError: there are stop strings, and the target has no tokenizer.
            EngineFull: too many requests wait; speculative ones never use up a confirmed one's
                place.
            EngineClosed: the engine was closed.
        """
        return self._submit(prompt_ids, params or SamplingParams(), priority)

    async def score(
        self,
        prompt_ids: Sequence[int],
        groups: Sequence[Collection[int]],
        *,
        last: int = 1,
        priority: Priority = Priority.CONFIRMED,
    ) -> tuple[tuple[float, ...], ...]:
        """How likely tokens of each group are to come right after each of the prompt's last tokens.

        Nothing is generated.  What was computed stays for the next prompt that begins alike, so a
        question about the beginning of a prompt costs little beside its answer.

        Args:
            prompt_ids: the prompt.
            groups: sets of token ids; a set's probability is that of any of its tokens.
            last: after how many of the prompt's last tokens.
            priority: whether it may wait for others.

        Returns:
            Natural logarithms, `[last][groups]`.

        Raises:
            InvalidRequest: a group is empty or has ids outside the vocabulary, `last` is not
                within the prompt, or as `submit` does.
            PromptTooLong, EngineFull, EngineClosed, GenerationFailed: as `submit` and iteration do.
        """
        if not 1 <= last <= len(prompt_ids):
            raise InvalidRequest(f"last is {last}; it must be from 1 to the prompt's length")
        if not groups or not all(groups):
            raise InvalidRequest("there must be groups, and each must have a token")
        self._check_tokens(itertools.chain(*groups))
        scoring = Scoring(groups, last)
        generation = self._submit(prompt_ids, SamplingParams(max_new_tokens=1), priority, scoring)
        try:
            async for _ in generation:
                pass
        finally:
            generation.cancel()
        return tuple(found for _, found in sorted(scoring.found.items()))

    def _submit(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        priority: Priority,
        scoring: Scoring | None = None,
    ) -> Generation:
        prompt = tuple(prompt_ids)
        self._check(prompt, params)
        generation = Generation(len(prompt), priority, self._notice)
        request = Request(
            prompt,
            params,
            generation,
            scoring=scoring,
            stop_token_ids=params.stop_token_ids | self.target.stop_token_ids,
            submitted_at=time.perf_counter(),
            stop_strings=(
                StopStrings(params.stop, self.target.tokenizer.detokenizer())
                if params.stop
                else None
            ),
        )
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
            request.arrival = next(self._arrivals)
            self._inbox.append(request)
        self._notice()
        return generation

    async def stream(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams | None = None,
        *,
        priority: Priority = Priority.CONFIRMED,
    ) -> AsyncGenerator[Step, None]:
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
    def metrics(self) -> EngineMetrics:
        """What the engine has done so far; a request's steps count before they are delivered."""
        return self._counters.metrics

    @property
    def cache_bytes(self) -> int:
        """How much memory the engine keeps for its sequences, decided when it is opened.

        That is keys and values, and features that a drafter has not taken in yet.
        """
        return self._cycle.bytes

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
        self._check_tokens((*prompt, *params.logit_bias))

    def _check_tokens(self, tokens: Iterable[int]) -> None:
        vocab = self.target.vocab_size
        for token in tokens:
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
        error = EngineClosed("the engine was closed: open another one")
        try:
            self._serve()
        except Exception as cause:  # nothing of a request's own, which fails alone
            logger.exception("The engine broke down")
            error = EngineClosed(f"the engine broke down ({cause!r}): open another one")
            error.__cause__ = cause
        with self._changed:
            self._closed = True
        for sequence in (*self._inbox, *self._admission.waiting, *self._admission.running):
            sequence.generation._fail(error)

    def _serve(self) -> None:
        torch.set_num_threads(self.target.threads)
        with torch.inference_mode():
            self._steps.prepare()
            while self._collect():
                plan = self._admission.plan()
                if plan:
                    self._cycle.run(plan)

    def _collect(self) -> bool:
        """Take in what changed, waiting if there is nothing to do; False once closed."""
        with self._changed:
            idle = self._admission.idle
            self._changed.wait_for(lambda: self._closed or self._dirty or not idle)
            self._dirty = False
            self._admission.waiting += self._inbox
            self._inbox.clear()
            self._admission.drop_finished()
            self._admission.admit()
            return not self._closed


def _scheduler(
    schedule: Scheduler | str | None,
    confidence_threshold: float,
    target: Target,
    drafter: Drafter | None,
    measured_cost: Callable[[Target, Drafter], StepCostTable],
) -> Scheduler:
    if isinstance(schedule, Scheduler):
        return schedule
    name = schedule or "full"
    cost = StepCostTable((1.0,))
    # Without a drafter there is nothing to weigh; the name is checked all the same.
    if name in WEIGHING_COSTS and drafter is not None:
        cost = measured_cost(target, drafter)
    return Scheduler.named(name, cost, confidence_threshold)
