"""Keys and values in a fixed number of slots, kept between requests so that prefixes are reused.

Memory is decided when the engine is made: `slots × context` positions, whatever is asked of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Protocol

import torch
from torch import Tensor

from dspark.memory import large_zeros

TILE = 64
"""Attention reads keys and values in whole tiles of this many positions."""


def padded(positions: int) -> int:
    """`positions`, rounded up to whole tiles."""
    return -(-positions // TILE) * TILE


class KvCache:
    """The key and value tensors of every layer, slot and position.

    Attributes:
        keys: `[layers, slots, kv_heads, context in whole tiles, head_dim]`.
        values: the same.
    """

    def __init__(
        self,
        *,
        layers: int,
        slots: int,
        kv_heads: int,
        context_tokens: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        # Whole tiles of positions, because attention reads whole tiles; and zeros, not whatever
        # memory held, because what is masked out is still multiplied, by 0.
        shape = (layers, slots, kv_heads, padded(context_tokens), head_dim)
        if device.type == "cpu":
            self.keys, self.values = large_zeros(shape, dtype), large_zeros(shape, dtype)
        else:
            self.keys = torch.zeros(shape, dtype=dtype, device=device)
            self.values = torch.zeros(shape, dtype=dtype, device=device)

    @property
    def slots(self) -> int:
        """How many sequences it holds."""
        return self.keys.shape[1]

    @property
    def bytes(self) -> int:
        """How much memory the cache may come to use."""
        return 2 * self.keys.numel() * self.keys.element_size()

    def append(self, layer: int, slot: int, start: int, keys: Tensor, values: Tensor) -> None:
        """Store `[tokens, kv_heads, head_dim]` at positions `start …` of a slot."""
        stop = start + keys.shape[0]
        self.keys[layer, slot, :, start:stop] = keys.transpose(0, 1)
        self.values[layer, slot, :, start:stop] = values.transpose(0, 1)

    def by_layer(self, slot: int, start: int, stop: int) -> Sequence[tuple[Tensor, Tensor]]:
        """Every layer's keys and values `[kv_heads, stop - start, head_dim]`, not copied.

        What lies beyond the slot's tokens is finite, and otherwise arbitrary.
        """
        keys, values = self.keys[:, slot, :, start:stop], self.values[:, slot, :, start:stop]
        return list(zip(keys.unbind(), values.unbind(), strict=True))

    def keep(self, slot: int, start: int, places: Sequence[int]) -> None:
        """Of the positions from `start` on keep these, in order, and move them up to `start`.

        Args:
            slot: whose.
            start: the first position that may be moved.
            places: ascending, counted from `start`.
        """
        moved = next((index for index, place in enumerate(places) if index != place), len(places))
        if moved == len(places):
            return
        stop = start + len(places)
        source = torch.tensor(places[moved:], device=self.keys.device) + start
        for cached in (self.keys, self.values):
            cached[:, slot, :, start + moved : stop] = cached[:, slot].index_select(2, source)

    def copy(self, source: int, destination: int, stop: int) -> None:
        """Copy positions `0 … stop-1` of every layer from one slot to another."""
        self.keys[:, destination, :, :stop] = self.keys[:, source, :, :stop]
        self.values[:, destination, :, :stop] = self.values[:, source, :, :stop]


@dataclass(eq=False)
class Slot:
    """One place in the cache.

    Attributes:
        index: its place in the cache's slot dimension.
        tokens: the tokens whose keys and values are stored, from position 0.
        in_use: whether a running sequence owns it.
        used_at: when it was last taken, as a count of takings.
    """

    index: int
    tokens: list[int] = field(default_factory=list)
    in_use: bool = False
    used_at: int = 0

    def roll_back(self, length: int) -> None:
        """Forget everything from position `length` on; what is stored there is overwritten."""
        del self.tokens[length:]


class InSlots(Protocol):
    """Something that is kept for every slot's tokens, as a cache is."""

    def copy(self, source: int, destination: int, stop: int) -> None:
        """Copy what is kept of positions `0 … stop-1` from one slot to another."""
        ...


class SlotPool:
    """Which slot a prompt gets: the one where most of it already lies.

    Args:
        slots: how many there are.
        kept: what is copied when a prefix is.
    """

    def __init__(self, slots: int, kept: Sequence[InSlots]) -> None:
        self.slots = [Slot(index) for index in range(slots)]
        self._kept = kept
        self._takings = 0

    @property
    def free(self) -> int:
        """How many slots no running sequence owns."""
        return sum(not slot.in_use for slot in self.slots)

    def take(self, tokens: Sequence[int], fresh: int = 1) -> Slot | None:
        """Take a slot for a sequence, with as much of it already computed as can be; None if full.

        The last `fresh` tokens are never reused: their logits are needed. Where continuing in the
        slot that holds the longest common prefix would throw away more than it saves (another
        dialogue behind the same system prompt), or that slot is in use, the prefix is copied into
        the slot that has been idle longest.
        """
        idle = [slot for slot in self.slots if not slot.in_use]
        if not idle:
            return None
        reusable = tokens[: len(tokens) - fresh]
        common = {slot.index: _common_prefix(slot.tokens, reusable) for slot in self.slots}
        donor = max(self.slots, key=lambda slot: (common[slot.index], not slot.in_use))
        length = common[donor.index]
        slot = donor
        if donor.in_use or len(donor.tokens) - length > length or length == 0:
            slot = min(idle, key=lambda slot: (len(slot.tokens) > 0, slot.used_at))
        if slot is not donor and length > 0:
            for each in self._kept:
                each.copy(donor.index, slot.index, length)
        self._takings += 1
        slot.tokens = list(tokens[:length])
        slot.in_use = True
        slot.used_at = self._takings
        return slot

    def release(self, slot: Slot) -> None:
        """Give a slot back; what it holds stays for the next prompt that begins alike."""
        slot.in_use = False


def _common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    return sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False))
    )
