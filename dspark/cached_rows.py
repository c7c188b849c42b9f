"""Where a step's rows lie in the cache, and what of it each sees: attention as a table.

An `Attention` that can say this may be computed by other code than its own, for all layers at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

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


@runtime_checkable
class OverCache(Protocol):
    """An `Attention` over cached keys and values that can say where they lie."""

    def rows(self) -> CachedRows:
        """Where its rows' keys and values are put and which they see."""
        ...
