"""What is compared: each contender can be loaded, asked one prompt after the other, and let go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


class Unavailable(Exception):
    """This contender cannot run here; the message says why, and what would make it run."""


@dataclass(frozen=True)
class Answer:
    """One timed answer.

    Attributes:
        token_ids: what was generated, without a stop token.
        stopped: whether a stop token ended it.
        first_token_ms: from the question to the first token.
        total_ms: from the question to the end.
        steps: how many times the model gave tokens, the first included.
        phases_ms: what the time after the first token went into, if that is known.
    """

    token_ids: tuple[int, ...]
    stopped: bool
    first_token_ms: float
    total_ms: float
    steps: int
    phases_ms: Mapping[str, float] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """How many tokens the model gave, a stop token included."""
        return len(self.token_ids) + self.stopped


class Loaded(Protocol):
    """A contender in memory."""

    @property
    def extra_bytes(self) -> int | None:
        """What drafting takes beside the model and its cache; None if that is not known."""
        ...

    def answer(self, prompt_ids: Sequence[int], max_new_tokens: int) -> Answer:
        """Generate greedily until a stop token or `max_new_tokens`."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


@dataclass(frozen=True)
class Contender:
    """One line of the comparison.

    Attributes:
        system: whose code generates.
        dtype: what the weights are computed in.
        load: raises `Unavailable`.
        drafter: what proposes tokens, in trees or not; None generates plainly.
        schedule: how much of a draft is verified.
        sampled: whether its tokens are drawn, so that it need not say what plain decoding says.
        keeps_prompts: whether it reuses the beginning of the prompt before.
        weight_bytes: what a plain step reads from memory.
    """

    system: str
    dtype: str
    load: Callable[[], Loaded]
    drafter: str | None = None
    schedule: str | None = None
    sampled: bool = False
    keeps_prompts: bool = True
    weight_bytes: int = 0

    @property
    def name(self) -> str:
        """How it is called in tables."""
        return " ".join(filter(None, (self.system, self.dtype, self.drafter, self.schedule)))
