"""Which dialogues and anchors a training step sees: decided by the seed and the step alone.

With no state of its own, a run that was stopped goes on exactly where it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from random import Random

from dspark.errors import NoTrainingData
from dspark.training.corpus import Corpus, Split
from dspark.training.features import FeatureStore
from dspark.training.packing import Batch, pack, possible_anchors


class Batches:
    """The dialogues that have features, as batches of blocks.

    Args:
        corpus: all dialogues.
        store: their features; those that have none yet are left out.
        splits: what each dialogue is used for.
        block: tokens of a block.
        dialogues: how many a batch holds.
        anchors: how many of a dialogue's anchors, at most.
        seed: see above.

    Raises:
        NoTrainingData: no dialogue to train on has anything to predict.
    """

    def __init__(
        self,
        corpus: Corpus,
        store: FeatureStore,
        splits: Sequence[Split],
        *,
        block: int,
        dialogues: int,
        anchors: int,
        seed: int,
    ) -> None:
        self._corpus = corpus
        self._store = store
        self._block = block
        self._dialogues = dialogues
        self._anchors = anchors
        self._seed = seed
        answers = corpus.tokens - corpus.prompt_tokens
        self._numbers: dict[Split, list[int]] = {split: [] for split in Split}
        for number in range(len(store)):
            if answers[number] > 1:  # one token is an anchor for nothing
                self._numbers[splits[number]].append(number)
        if not self._numbers[Split.TRAIN]:
            raise NoTrainingData(
                f"of {len(corpus)} dialogues {len(store)} have features, and none of them can be "
                "trained on: make more dialogues first"
            )
        self._order = lru_cache(maxsize=1)(self._shuffled)

    def at(self, step: int) -> Batch:
        """The batch of a training step."""
        rng = Random(f"{self._seed}:step:{step}")
        train = len(self._numbers[Split.TRAIN])
        first = step * self._dialogues
        numbers = [
            self._order(place // train)[place % train]
            for place in range(first, first + self._dialogues)
        ]
        return self._packed(numbers, rng)

    def of(self, split: Split, limit: int) -> Iterator[Batch]:
        """The first dialogues of a split, with the same anchors each time."""
        numbers = self._numbers[split][:limit]
        for start in range(0, len(numbers), self._dialogues):
            chosen = numbers[start : start + self._dialogues]
            yield self._packed(chosen, Random(f"{self._seed}:{split}:{start}"))

    def _packed(self, numbers: Sequence[int], rng: Random) -> Batch:
        parts = []
        for number in numbers:
            dialogue = self._corpus[number]
            anchors: Sequence[int] = possible_anchors(dialogue)
            if len(anchors) > self._anchors:
                anchors = sorted(rng.sample(anchors, self._anchors))
            parts.append((dialogue, self._store[number], anchors))
        return pack(parts, self._block)

    def _shuffled(self, epoch: int) -> list[int]:
        order = list(self._numbers[Split.TRAIN])
        Random(f"{self._seed}:epoch:{epoch}").shuffle(order)
        return order
