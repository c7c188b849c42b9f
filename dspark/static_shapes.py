"""The few shapes that steps are padded to, and the tables through which their inputs travel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from dspark.kv_cache import TILE, padded

SHORTEST_CONTEXT = 4 * TILE
"""Attention over less is no faster: a step is then all weights."""


def doublings(smallest: int, largest: int) -> tuple[int, ...]:
    """`smallest`, twice that, and so on; the last is `largest`."""
    sizes = []
    while smallest < largest:
        sizes.append(smallest)
        smallest *= 2
    return (*sizes, largest)


def fitting(sizes: Sequence[int], needed: int) -> int:
    """The smallest of the ascending sizes that is not below `needed`."""
    return next(size for size in sizes if size >= needed)


@dataclass(frozen=True)
class StaticShapes:
    """What a step may look like; each ascending.

    Attributes:
        rows: how many sequences share it.
        lengths: how many tokens each of them has.
        contexts: up to which position they look, in whole tiles.
    """

    rows: tuple[int, ...]
    lengths: tuple[int, ...]
    contexts: tuple[int, ...]

    @classmethod
    def of(cls, *, sequences: int, tokens: int, positions: int) -> StaticShapes:
        """Shapes for up to so many sequences, tokens of each, and positions."""
        return cls(
            doublings(1, sequences),
            doublings(1, tokens),
            doublings(SHORTEST_CONTEXT, padded(positions)),
        )

    def fit(self, rows: int, length: int, context: int) -> tuple[int, int, int]:
        """The smallest shape that holds so many rows and tokens, and positions below `context`."""
        return (
            fitting(self.rows, rows),
            fitting(self.lengths, length),
            fitting(self.contexts, context),
        )

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Every shape, the largest first: what they allocate then serves the smaller ones."""
        return product(self.rows[::-1], self.lengths[::-1], self.contexts[::-1])


class InputTable:
    """A table that the host fills and static steps read: one small transfer each time.

    Attributes:
        table: `[rows, columns]`, on the device, always in the same place.
    """

    def __init__(self, rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> None:
        # Pinned, so that nobody waits for the transfer, except to fill the table anew.
        self._sent: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._sent = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has no type
        self._host = torch.zeros((rows, columns), dtype=dtype, pin_memory=self._sent is not None)
        self._cells = self._host.numpy()
        self.table: Tensor = torch.zeros((rows, columns), dtype=dtype, device=device)

    def send(self, rows: Sequence[Sequence[float]], padding: Sequence[float]) -> None:
        """Fill the first rows from their first columns on, and all other rows with `padding`."""
        if self._sent is not None:
            self._sent.synchronize()
        for index, row in enumerate(rows):
            self._cells[index, : len(row)] = row
        self._cells[len(rows) :, : len(padding)] = padding
        self.table.copy_(self._host, non_blocking=True)
        if self._sent is not None:
            self._sent.record(torch.cuda.current_stream(self.table.device))
