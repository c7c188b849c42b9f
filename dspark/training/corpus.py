"""Dialogues on disk: a line of JSON each, and an index that says which lines count."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dspark.training.storage import Rows, settle

_HASH_SHARES = 16


class Split(StrEnum):
    """What a dialogue is used for; decided by its request, so equal requests stay together."""

    TRAIN = "train"
    CALIBRATE = "calibrate"
    EVALUATE = "evaluate"

    @classmethod
    def of(cls, request: str) -> Split:
        """A sixteenth each calibrates and evaluates; the rest trains."""
        share = hashlib.sha256(request.encode()).digest()[0] % _HASH_SHARES
        return {0: cls.EVALUATE, 1: cls.CALIBRATE}.get(share, cls.TRAIN)


@dataclass(frozen=True)
class Dialogue:
    """One request and the target's answer.

    Attributes:
        request: what the user says.
        prompt: token ids up to where the answer begins.
        answer: token ids, the stop token included if the model ended the answer itself.
        greedy: whether the likeliest tokens were taken; otherwise they were drawn.
    """

    request: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    greedy: bool

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and answer."""
        return self.prompt + self.answer

    @property
    def split(self) -> Split:
        """What it is used for."""
        return Split.of(self.request)


class Corpus:
    """A folder of dialogues, which grows at its end.

    A dialogue counts once its row in the index is whole. The row says where its line ends, so
    whatever a killed writer left behind is cut off before the next line is written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines = folder / "dialogues.jsonl"
        self._index = Rows(folder / "dialogues.index", 3, np.int64)

    def begin(self, settings: Mapping[str, object]) -> None:
        """Get ready to append; raises `RunMismatch` if it was begun with other settings."""
        settle(self._folder / "dialogues.json", settings, "dialogues")
        self._index.truncate(len(self))
        with self._lines.open("ab") as file:
            file.truncate(self._end(len(self)))

    def append(self, dialogue: Dialogue) -> None:
        """Add one at the end."""
        line = json.dumps(asdict(dialogue), ensure_ascii=False) + "\n"
        with self._lines.open("ab") as file:
            file.write(line.encode())
            end = file.tell()
        self._index.append(np.array([[end, len(dialogue.prompt), len(dialogue.tokens)]]))

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, number: int) -> Dialogue:
        if not 0 <= number < len(self):
            raise IndexError(number)
        start, end = self._end(number), self._end(number + 1)
        with self._lines.open("rb") as file:
            file.seek(start)
            return _parsed(file.read(end - start))

    def __iter__(self) -> Iterator[Dialogue]:
        count = len(self)
        if count:
            with self._lines.open("rb") as file:
                yield from map(_parsed, islice(file, count))

    @property
    def prompt_tokens(self) -> NDArray[np.int64]:
        """How long each prompt is: `[dialogues]`."""
        return self._index.mapped()[:, 1].astype(np.int64)

    @property
    def tokens(self) -> NDArray[np.int64]:
        """How long each prompt and answer together are: `[dialogues]`."""
        return self._index.mapped()[:, 2].astype(np.int64)

    def _end(self, number: int) -> int:
        """Where the first so many lines end, in bytes."""
        return int(self._index.mapped()[number - 1, 0]) if number else 0


def _parsed(line: bytes) -> Dialogue:
    found = json.loads(line)
    return Dialogue(
        found["request"], tuple(found["prompt"]), tuple(found["answer"]), found["greedy"]
    )
