"""Curves of a training run as CSV, which a resumed run goes on with as if it had never stopped."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from dspark.training.storage import replacing


class Curve:
    """A row of numbers for some of the steps, the step first."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self._path = path
        self._columns = ("step", *columns)

    def resume(self, step: int) -> None:
        """Drop what belongs to `step` and beyond, and what was not written whole."""
        kept = []
        if self._path.exists():
            with self._path.open(newline="", encoding="utf-8") as file:
                for line in file:
                    whole = line.endswith("\n")
                    if (
                        whole
                        and line.partition(",")[0].isdigit()
                        and int(line.partition(",")[0]) < step
                    ):
                        kept.append(line)
        with replacing(self._path) as unfinished:
            header = ",".join(self._columns) + "\n"
            unfinished.write_text(header + "".join(kept), encoding="utf-8")

    def append(self, step: int, values: Sequence[float]) -> None:
        """Add a row."""
        with self._path.open("a", newline="", encoding="utf-8") as file:
            row = [step, *(f"{value:.6g}" for value in values)]
            csv.writer(file, lineterminator="\n").writerow(row)
