"""Files that a killed writer leaves usable: rows are appended, documents replaced whole."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dspark.checkpoint import read_json
from dspark.errors import RunMismatch


class Rows:
    """A matrix on disk that grows by whole rows, of one type and width.

    A killed writer may leave part of a row behind, or rows whose companions in other files are
    missing: the owner says by `truncate` where it goes on.
    """

    def __init__(self, path: Path, width: int, dtype: DTypeLike) -> None:
        self._path = path
        self._width = width
        self._dtype = np.dtype(dtype)

    def __len__(self) -> int:
        """How many whole rows there are."""
        size = self._path.stat().st_size if self._path.exists() else 0
        return size // (self._width * self._dtype.itemsize)

    def append(self, rows: NDArray[np.generic]) -> None:
        """Add `[rows, width]` at the end."""
        with self._path.open("ab") as file:
            file.write(np.ascontiguousarray(rows, self._dtype).tobytes())

    def truncate(self, rows: int) -> None:
        """Forget everything behind the first `rows`."""
        with self._path.open("ab") as file:
            file.truncate(rows * self._width * self._dtype.itemsize)

    def mapped(self) -> NDArray[np.generic]:
        """All whole rows `[rows, width]`, read from disk where they are looked at."""
        rows = len(self)
        if rows == 0:  # nothing can be mapped of an empty file
            return np.empty((0, self._width), self._dtype)
        return np.memmap(self._path, self._dtype, mode="r", shape=(rows, self._width))


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to; `path` is replaced by what is there at the end, if nothing is raised."""
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=path.parent) as folder:
        unfinished = Path(folder) / path.name
        yield unfinished
        unfinished.replace(path)


def settle(path: Path, settings: Mapping[str, object], what: str) -> None:
    """Write down what a stage's files are made with, or check that it is still the same.

    Raises:
        RunMismatch: they were begun with other settings.
    """
    settings = json.loads(json.dumps(settings))  # as it will be read back: tuples are lists
    if path.exists():
        before = read_json(path)
        changed = sorted(
            key for key in {*before, *settings} if before.get(key) != settings.get(key)
        )
        if changed:
            raise RunMismatch(
                f"the {what} in {path.parent} were begun with other settings "
                f"({', '.join(f'{key}: {before.get(key)!r}' for key in changed)}): repeat them, "
                "or choose another folder"
            )
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as unfinished:
        unfinished.write_text(json.dumps(settings, indent=2), encoding="utf-8")
