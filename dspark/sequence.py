"""One request inside the engine: its tokens, its slot, and what it still has to compute."""

from __future__ import annotations

import random
from collections.abc import Iterable
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

from dspark.generation import Generation
from dspark.kv_cache import Slot
from dspark.sampling import Sampler, SamplingParams
from dspark.scoring import Scoring
from dspark.stop_strings import StopStrings


@dataclass(eq=False)
class Sequence:
    """The engine thread's state of one request.

    Whatever is in `tokens` beyond the slot's length is still to be computed: a whole prompt at
    first, a single anchor while decoding, prompt and answer again after a preemption.

    Attributes:
        submitted_at: when it was, by `time.perf_counter`; None once it has had a slot.
        stop_strings: what ends its answer by its text, if anything does.
        scoring: what is asked of its prompt; then nothing is generated.
    """

    prompt: tuple[int, ...]
    params: SamplingParams
    generation: Generation
    stop_token_ids: frozenset[int]
    arrival: int = 0
    submitted_at: float | None = None
    stop_strings: StopStrings | None = None
    scoring: Scoring | None = None
    slot: Slot | None = None
    answer: list[int] = field(default_factory=list)
    sampler: Sampler = field(init=False)

    def __post_init__(self) -> None:
        rng = random.Random(self.params.seed)
        self.sampler = Sampler(self.params, self.prompt, self.answer, rng)

    @property
    def urgency(self) -> tuple[int, int]:
        """Sorts confirmed before speculative and then by arrival."""
        return (self.generation.priority, self.arrival)

    @property
    def owned_slot(self) -> Slot:
        """The slot of a running sequence."""
        assert self.slot is not None, "a running sequence owns a slot"
        return self.slot

    @property
    def length(self) -> int:
        """How many tokens the sequence has, computed or not."""
        return len(self.prompt) + len(self.answer)

    @property
    def computed(self) -> int:
        """How many of its tokens have keys and values in the cache."""
        return 0 if self.slot is None else len(self.slot.tokens)

    @property
    def uncomputed(self) -> int:
        """How many of its tokens still need a place in a step."""
        return self.length - self.computed

    @property
    def anchor(self) -> int:
        """The last token, whose successor is to be found."""
        return self.answer[-1] if self.answer else self.prompt[-1]

    def extend(self, tokens: Iterable[int]) -> tuple[list[int], bool]:
        """Add tokens to the answer until one ends it.

        Returns:
            The answer's tokens that are now certain to belong to it, and whether it has ended.
        """
        certain: list[int] = []
        for token in tokens:
            if token in self.stop_token_ids:
                return [*certain, *self.rest()], True
            self.answer.append(token)
            if self.stop_strings is None:
                certain.append(token)
                continue
            certain += self.stop_strings.feed(token)
            if self.stop_strings.found:
                return certain, True
        return certain, False

    def rest(self) -> list[int]:
        """Tokens that were held back in case a stop string came of them."""
        return [] if self.stop_strings is None else self.stop_strings.flush()

    def tokens(self, start: int, stop: int) -> Tokens[int]:
        """The tokens at positions `start … stop-1`."""
        prompt = len(self.prompt)
        if start >= prompt:
            return self.answer[start - prompt : stop - prompt]
        return (*self.prompt[start:stop], *self.answer[: max(0, stop - prompt)])
