"""What the target made of tokens, kept for a drafter until it is asked for a draft.

While drafting does not pay nobody asks, and nothing is computed for it. And a first token does not
wait until the drafter has read its prompt.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from dspark.drafters.protocol import Drafter
from dspark.kv_cache import KvCache


class WaitingFeatures:
    """The features that a drafter has not taken in yet, by slot.

    Args:
        drafter: whose they are.
        cache: the drafter's, if it has one.
    """

    def __init__(self, drafter: Drafter, cache: KvCache | None) -> None:
        self._drafter = drafter
        self._cache = cache
        self._pieces: defaultdict[int, list[tuple[int, Tensor]]] = defaultdict(list)

    def add(self, slot: int, start: int, features: Tensor) -> None:
        """Keep `[tokens, taps × hidden]` of positions `start …`; those kept from there on are void.

        They are copied, since the next step may overwrite them.
        """
        pieces = self._pieces[slot]
        # From the end: a long rest leaves many pieces, and all of them are not to be looked at.
        while pieces and pieces[-1][0] >= start:
            pieces.pop()
        if pieces:
            before, kept = pieces[-1]
            pieces[-1] = (before, kept[: start - before])
        pieces.append((start, features.clone()))

    def copy(self, source: int, destination: int, stop: int) -> None:
        """Copy positions `0 … stop-1` from one slot to another, taken in or not."""
        if self._cache is not None:
            self._cache.copy(source, destination, stop)
        self._pieces[destination] = _before(self._pieces[source], stop)

    def take_in(self, slot: int) -> None:
        """Let the drafter take in all that is kept of a slot; what it raises goes on to the caller.

        What it fails at is forgotten.
        """
        for start, features in _joined(self._pieces.pop(slot, [])):
            self._drafter.extend(self._cache, slot, start, features)


def _before(pieces: Sequence[tuple[int, Tensor]], stop: int) -> list[tuple[int, Tensor]]:
    """What of the pieces lies before a position."""
    return [(start, features[: stop - start]) for start, features in pieces if start < stop]


def _joined(pieces: Sequence[tuple[int, Tensor]]) -> list[tuple[int, Tensor]]:
    """The pieces, ascending, with neighbours put together: weights are then read once for all."""
    runs: list[tuple[int, list[Tensor]]] = []
    end = -1
    for start, features in pieces:
        if start != end:
            runs.append((start, []))
        runs[-1][1].append(features)
        end = start + len(features)
    return [(start, torch.cat(run) if len(run) > 1 else run[0]) for start, run in runs]
