"""Blocks of greedy requests, chosen in one compiled call behind a drafter's layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from dspark.calibration import Calibration
from dspark.drafters.part_vocabulary import PartVocabulary
from dspark.drafters.protocol import Anchor, Draft
from dspark.sampling import Sampler
from dspark.tree import TreeShape

if TYPE_CHECKING:
    from dspark.compiled.drafting import CompiledDrafting


def takes_likeliest(sampler: Sampler) -> bool:
    """Whether a request takes the likeliest token, with no other penalty than for repetitions."""
    params = sampler.params
    return params.greedy and not (
        params.presence_penalty or params.frequency_penalty or params.logit_bias
    )


@dataclass(frozen=True)
class GreedyBlocks:
    """Chooses the tokens of blocks whose requests all `takes_likeliest`.

    Attributes:
        compiled: does it.
        vocabulary: what is drafted from; None for all of the target's.
        calibration: of the confidences.
    """

    compiled: CompiledDrafting
    vocabulary: PartVocabulary | None
    calibration: Calibration

    def chains(self, hidden: Tensor, anchors: Sequence[Anchor]) -> list[Draft]:
        """A block after each anchor.

        Args:
            hidden: `[anchors × tokens, hidden]`, before the drafter's final norm.
            anchors: one for as many rows.
        """
        tokens, _, confidences = self._proposed(hidden, anchors, seconds=0)
        return [
            Draft(tuple(each), (), confidence)
            for each, confidence in zip(tokens, confidences, strict=True)
        ]

    def with_seconds(
        self, hidden: Tensor, anchors: Sequence[Anchor], shape: TreeShape
    ) -> list[Draft]:
        """The same with second candidates: `shape` is `TreeShape.with_seconds`."""
        rows = zip(*self._proposed(hidden, anchors, shape.seconds or 0), strict=True)
        places = [depth - 1 for depth in shape.depths]
        return [
            Draft(
                tuple(
                    second[place] if rank else first[place]
                    for place, rank in zip(places, shape.ranks, strict=True)
                ),
                (),
                tuple(confidence[place] for place in places),
                shape,
            )
            for first, second, confidence in rows
        ]

    def _proposed(
        self, hidden: Tensor, anchors: Sequence[Anchor], seconds: int
    ) -> tuple[list[list[int]], list[list[int]], list[tuple[float, ...]]]:
        """For each anchor its likeliest tokens, the second ones, and the calibrated confidences."""
        tokens, runners_up, confidences = self.compiled.propose(
            hidden,
            [anchor.token for anchor in anchors],
            [self._penalised(anchor.sampler) for anchor in anchors],
            [anchor.sampler.params.repetition_penalty for anchor in anchors],
            seconds,
        )
        rows = confidences.sigmoid().tolist()
        return tokens, runners_up, [self.calibration.apply(row) for row in rows]

    def _penalised(self, sampler: Sampler) -> list[int]:
        """What the repetition penalty counts, as places in the drafter's vocabulary."""
        if sampler.params.repetition_penalty == 1:
            return []
        said = [*sampler.prompt, *sampler.answer]
        return said if self.vocabulary is None else self.vocabulary.places(said)
