"""What the engine asks of a drafter, and what it gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from dspark.kv_cache import KvCache
from dspark.sampling import Sampler


@dataclass(frozen=True)
class Anchor:
    """Where one sequence stands: its last token, known but not yet computed by the target.

    Attributes:
        slot: its place in the caches.
        position: the token's position.
        token: its id.
        sampler: chooses drafted tokens as the request wants its tokens chosen.
    """

    slot: int
    position: int
    token: int
    sampler: Sampler


@dataclass(frozen=True)
class Draft:
    """What may follow an anchor.

    Attributes:
        tokens: the proposed tokens, in order.
        distributions: for each, the `[vocab]` distribution it was drawn from, after all of the
            request's settings; empty for a greedy request.
        confidence: for each, the estimated probability that it is accepted given that all before
            it are. The estimate for a token must not depend on that token or on later ones.
    """

    tokens: tuple[int, ...] = ()
    distributions: tuple[Tensor, ...] = ()
    confidence: tuple[float, ...] = ()


class Drafter(Protocol):
    """Proposes tokens; has no state of its own beside a cache that the engine keeps for it."""

    @property
    def taps(self) -> Sequence[int]:
        """The target layers whose outputs it reads (see `Decoder.hidden_states`)."""
        ...

    @property
    def block_size(self) -> int:
        """How many tokens it proposes at most."""
        ...

    def new_cache(self, slots: int, context_tokens: int) -> KvCache | None:
        """The cache it needs for that many sequences of that length."""
        ...

    def extend(self, cache: KvCache | None, slot: int, start: int, features: Tensor) -> None:
        """Take in the target's outputs `[tokens, taps × hidden]` at positions `start …`.

        Called for every token that stands, in order and before the draft that needs it, unless
        there are no taps. What was taken in at `start` and beyond is void.
        """
        ...

    def draft(self, cache: KvCache | None, anchors: Sequence[Anchor]) -> list[Draft]:
        """Propose what follows each anchor, from everything before it."""
        ...
