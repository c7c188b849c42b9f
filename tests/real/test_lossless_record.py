"""A comparison that was made is not made again, and one that was not good stays so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dspark.errors import RunMismatch
from tests.real.lossless_record import Comparison, Outcome, Record

SETTINGS = {"prompts": 200}


class Comparisons:
    """Three, the second of them bad; one may be interrupted."""

    def __init__(self, interrupted: int | None = None) -> None:
        self.made: list[int] = []
        self._interrupted = interrupted

    def __iter__(self) -> Iterator[Comparison]:
        for number in range(3):
            yield f"comparison {number}", lambda number=number: self._make(number)

    def _make(self, number: int) -> Outcome:
        if number == self._interrupted:
            raise KeyboardInterrupt
        self.made.append(number)
        return Outcome("as it came", good=number != 1)


def test_what_was_compared_before_it_was_stopped_is_not_compared_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "record.json"
    first, second = Comparisons(interrupted=2), Comparisons()
    with pytest.raises(KeyboardInterrupt):
        Record(path, SETTINGS).all_good("heading", first)
    capsys.readouterr()
    assert not Record(path, SETTINGS).all_good("heading", second)
    assert (first.made, second.made) == ([0, 1], [2])
    shown = capsys.readouterr().out.split("\n")
    assert shown[1:-1] == ["heading", *(f"comparison {each}  as it came" for each in range(3))]


def test_when_the_time_is_over_the_rest_is_counted() -> None:
    comparisons = Comparisons()
    record = Record(None, SETTINGS, seconds=0)
    assert record.all_good("heading", comparisons)
    assert (record.left, comparisons.made) == (3, [])


def test_comparisons_of_other_settings_are_not_taken_for_these(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    Record(path, SETTINGS).all_good("heading", Comparisons())
    with pytest.raises(RunMismatch, match="another file"):
        Record(path, {"prompts": 4})
