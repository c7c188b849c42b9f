"""What the target made of tokens, kept for a drafter until it is asked for a draft.

While drafting does not pay nobody asks, and next to nothing is computed for it: weights are read
once for many tokens. And a first token does not wait until the drafter has read its prompt.
"""

from __future__ import annotations

from torch import Tensor

from dspark.drafters.protocol import Drafter
from dspark.kv_cache import KvCache

ROOM_TOKENS = 32
"""How many tokens' features a slot keeps; where more come, the drafter takes them in."""


class WaitingFeatures:
    """The features that a drafter has not taken in yet, by slot, in memory of a fixed size.

    Args:
        drafter: whose they are.
        cache: the drafter's, if it has one.
        slots: how many sequences there may be at once.
        width: of a token's features.
        like: a tensor of their type, on their device.
    """

    def __init__(
        self, drafter: Drafter, cache: KvCache | None, *, slots: int, width: int, like: Tensor
    ) -> None:
        self._drafter = drafter
        self._cache = cache
        self._room = like.new_empty((slots, ROOM_TOKENS, width))
        self._waiting = [range(0)] * slots  # positions; the first one's lie first in the room

    @property
    def bytes(self) -> int:
        """How much memory they take."""
        return self._room.nbytes

    def add(self, slot: int, start: int, features: Tensor) -> None:
        """Keep `[tokens, width]` of positions `start …`; those kept from there on are void.

        They are copied, since the next step may overwrite them. What finds no room is taken in,
        with all before it; what that raises goes on to the caller, and what it fails at is
        forgotten.
        """
        self.void(slot, start)
        kept = self._waiting[slot]
        if not kept or kept.stop < start or len(kept) + len(features) > ROOM_TOKENS:
            self.take_in(slot)
            kept = range(start, start)
        if len(features) > ROOM_TOKENS:
            self._drafter.extend(self._cache, slot, start, features)
            return
        self._room[slot, len(kept) : len(kept) + len(features)] = features
        self._waiting[slot] = range(kept.start, start + len(features))

    def void(self, slot: int, start: int) -> None:
        """Keep nothing of positions `start …`: other tokens came there, taken in otherwise."""
        waiting = self._waiting[slot]
        self._waiting[slot] = range(waiting.start, min(waiting.stop, start))

    def copy(self, source: int, destination: int, stop: int) -> None:
        """Copy positions `0 … stop-1` from one slot to another, taken in or not."""
        if self._cache is not None:
            self._cache.copy(source, destination, stop)
        waiting = self._waiting[source]
        kept = range(waiting.start, max(waiting.start, min(waiting.stop, stop)))
        self._room[destination, : len(kept)] = self._room[source, : len(kept)]
        self._waiting[destination] = kept

    def take_in(self, slot: int) -> None:
        """Let the drafter take in all that is kept of a slot; what it raises goes on to the caller.

        What it fails at is forgotten.
        """
        waiting, self._waiting[slot] = self._waiting[slot], range(0)
        if waiting:
            features = self._room[slot, : len(waiting)]
            self._drafter.extend(self._cache, slot, waiting.start, features)
