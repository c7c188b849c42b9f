"""Where a step's rows lie in the cache, and what of it each sees: attention as a table.

An `Attention` that says this, by a method `rows`, may be computed by other code than its own, for
all layers at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dspark.kv_cache import KvCache

Whole = npt.NDArray[np.int64]


@dataclass(frozen=True)
class CachedRows:
    """The rows of a step.

    Attributes:
        cache: where keys and values are.
        places: `[rows, 4]`: a row's slot; where in the slot its key and value are put; how many
            keys it sees; and how many of them, the last ones, lie where `tails` says. The others
            are the slot's first.
        tails: `[rows, length]`: places in the slot, in the order in which they are seen.
    """

    cache: KvCache
    places: Whole
    tails: Whole

    @classmethod
    def of_blocks(
        cls, cache: KvCache, slots: Sequence[int], starts: Sequence[int], size: int
    ) -> CachedRows:
        """Blocks of the same size, each in a slot from a place on; every row sees all of its block.

        The same as `of`, for a drafter, which has no time to lose.
        """
        places = np.zeros((len(slots), size, 4), np.int64)
        within = np.arange(size)
        for block, slot, start in zip(places, slots, starts, strict=True):
            block[:, 0] = slot
            block[:, 1] = within + start
            block[:, 2] = start + size
        return cls(cache, places.reshape(-1, 4), np.zeros((len(slots) * size, 0), np.int64))

    @classmethod
    def of(
        cls,
        cache: KvCache,
        rows: Iterable[tuple[int, int, int]],
        tails: Sequence[Sequence[int]] = (),
    ) -> CachedRows:
        """From each row's slot, place and number of keys; and all rows' tails, if any has one."""
        places = np.array([(*row, 0) for row in rows], np.int64)
        lengths = [len(tail) for tail in tails]
        table = np.zeros((len(places), max(lengths, default=0)), np.int64)
        for row, tail in enumerate(tails):
            table[row, : len(tail)] = tail
            places[row, 3] = len(tail)
        return cls(cache, places, table)


def rows_of(attention: object) -> CachedRows | None:
    """Where its rows' keys and values are put and which they see, of attentions that can say it."""
    rows: Callable[[], CachedRows] | None = getattr(attention, "rows", None)
    return None if rows is None else rows()
