"""Comparisons one after the other, each kept as soon as it is made: a stopped run can go on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from dspark.errors import RunMismatch
from dspark.training.storage import replacing


@dataclass(frozen=True)
class Outcome:
    """How a comparison came out: in figures, and whether that is as it should be."""

    text: str
    good: bool


Comparison = tuple[str, Callable[[], Outcome]]
"""A name that no other comparison has, and what makes it."""


class Record:
    """Makes comparisons and prints them; those that it has it prints only.

    Args:
        path: where they are kept; None keeps them nowhere.
        settings: what they were made with.
        seconds: no comparison is begun after so many.

    Attributes:
        left: how many comparisons were not made for want of time.

    Raises:
        RunMismatch: the file's were made with other settings.
    """

    def __init__(
        self, path: Path | None, settings: Mapping[str, object], seconds: float | None = None
    ) -> None:
        self._path = path
        self._settings = dict(settings)
        self._ends_s = None if seconds is None else time.monotonic() + seconds
        self._outcomes: dict[str, Outcome] = {}
        self.left = 0
        if path is not None and path.exists():
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["settings"] != self._settings:
                raise RunMismatch(
                    f"{path} was begun with {kept['settings']}, not {self._settings}: "
                    "give the same, or another file"
                )
            self._outcomes = {name: Outcome(**each) for name, each in kept["outcomes"].items()}

    def all_good(self, heading: str, comparisons: Iterable[Comparison]) -> bool:
        """Make what is not made yet; whether all that was made is as it should be."""
        print(f"\n{heading}")
        good = True
        for name, compare in comparisons:
            if name not in self._outcomes:
                if self._ends_s is not None and time.monotonic() >= self._ends_s:
                    self.left += 1
                    continue
                self._outcomes[name] = compare()
                self._write()
            outcome = self._outcomes[name]
            print(f"{name}  {outcome.text}", flush=True)
            good = good and outcome.good
        return good

    def _write(self) -> None:
        if self._path is None:
            return
        outcomes = {name: asdict(each) for name, each in self._outcomes.items()}
        with replacing(self._path) as unfinished:
            content = {"settings": self._settings, "outcomes": outcomes}
            unfinished.write_text(json.dumps(content, indent=1, ensure_ascii=False), "utf-8")
