"""The last stages: how much of a drafter's blocks stands, and whether its confidences come true.

Both are taken from the engine at work on requests that training never saw, every block verified
whole: shorter verification would hide what became of the rest.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dspark.calibration import FILE_NAME, Calibrations, fit, survival_errors
from dspark.drafters import load_drafter
from dspark.engine import Engine
from dspark.errors import NoTrainingData
from dspark.sampling import SamplingParams
from dspark.target import Target
from dspark.training.corpus import Corpus, Dialogue, Split
from dspark.training.dialogues import Progress
from dspark.training.reliability import svg
from dspark.training.storage import replacing

REPORT, DIAGRAM = "evaluation.json", "reliability.svg"
_TEMPERATURE = 1.0  # what drafters are trained for, and where a confidence is a probability


@dataclass(frozen=True)
class Drafts:
    """What became of whole blocks.

    Attributes:
        confidence: `[drafts, block]`, as the drafter gave it.
        accepted: `[drafts]`, how many tokens stood.
    """

    confidence: NDArray[np.float64]
    accepted: NDArray[np.int64]

    @property
    def accepted_length(self) -> float:
        """Tokens a step, the target's own included."""
        return 1 + float(self.accepted.mean())

    @property
    def acceptance(self) -> tuple[float, ...]:
        """For each position how often it stood if all before it did; NaN where none ever did."""
        return tuple(
            float(reached[:, 0].mean()) if len(reached) else float("nan")
            for reached in (
                (self.accepted[self.accepted >= position] > position)[:, None]
                for position in range(self.confidence.shape[1])
            )
        )


@dataclass(frozen=True)
class Evaluation:
    """How good a drafter is through the engine.

    Attributes:
        dialogues: how many held-out requests were answered.
        sampled_length: tokens a step at temperature 1.
        greedy_length: tokens a step when the likeliest token is taken.
        sampled_acceptance: by position, given that all before it were accepted.
        greedy_acceptance: the same.
        calibration_error: of survival up to each position (see `dspark.calibration`), at
            temperature 1.
        greedy_calibration_error: the same when the likeliest token is taken.
        area_under_curve: by position, how often a token that stood had been given more confidence
            than one that fell; 0.5 is chance, and NaN where all stood or fell.
    """

    dialogues: int
    sampled_length: float
    greedy_length: float
    sampled_acceptance: tuple[float, ...]
    greedy_acceptance: tuple[float, ...]
    calibration_error: tuple[float, ...]
    greedy_calibration_error: tuple[float, ...]
    area_under_curve: tuple[float, ...]


def calibrate(
    drafter_folder: Path,
    corpus: Corpus,
    target: Target,
    *,
    limit: int,
    max_new_tokens: int,
    on_progress: Progress = lambda done, total: None,
) -> Calibrations:
    """Fit the temperatures of a drafter's confidences, and store them beside its weights.

    Once for drawn tokens and once for the likeliest ones: confidences learn how often a drawn one
    stands.

    Raises:
        NoTrainingData: no block was drafted for a request of this split.
    """
    (drafter_folder / FILE_NAME).unlink(missing_ok=True)  # what is fitted are raw confidences
    sampled, greedy = _sampled_and_greedy(
        drafter_folder,
        target,
        _held_out(corpus, Split.CALIBRATE, limit),
        max_new_tokens,
        on_progress,
    )
    calibrations = Calibrations(
        fit(sampled.confidence, sampled.accepted), fit(greedy.confidence, greedy.accepted)
    )
    calibrations.write(drafter_folder)
    return calibrations


def evaluate(
    drafter_folder: Path,
    corpus: Corpus,
    target: Target,
    *,
    limit: int,
    max_new_tokens: int,
    on_progress: Progress = lambda done, total: None,
) -> Evaluation:
    """Measure a drafter as it is, and write a report and a reliability diagram beside its weights.

    Raises:
        NoTrainingData: no block was drafted for a request of this split.
    """
    dialogues = _held_out(corpus, Split.EVALUATE, limit)
    sampled, greedy = _sampled_and_greedy(
        drafter_folder, target, dialogues, max_new_tokens, on_progress
    )
    evaluation = Evaluation(
        len(dialogues),
        sampled.accepted_length,
        greedy.accepted_length,
        sampled.acceptance,
        greedy.acceptance,
        survival_errors(sampled.confidence, sampled.accepted),
        survival_errors(greedy.confidence, greedy.accepted),
        areas_under_curve(sampled),
    )
    with replacing(drafter_folder / REPORT) as unfinished:
        unfinished.write_text(json.dumps(asdict(evaluation), indent=2), encoding="utf-8")
    survives = sampled.confidence.cumprod(axis=1)
    happened = sampled.accepted[:, None] > np.arange(survives.shape[1])
    with replacing(drafter_folder / DIAGRAM) as unfinished:
        unfinished.write_text(svg(survives.ravel(), happened.ravel()), encoding="utf-8")
    return evaluation


def _sampled_and_greedy(
    drafter_folder: Path,
    target: Target,
    dialogues: Sequence[Dialogue],
    max_new_tokens: int,
    on_progress: Progress,
) -> tuple[Drafts, Drafts]:
    total = 2 * len(dialogues)
    sampled, greedy = (
        run_drafts(
            drafter_folder,
            target,
            dialogues,
            SamplingParams(temperature=temperature, max_new_tokens=max_new_tokens),
            lambda done, _, before=before: on_progress(before + done, total),  # type: ignore[misc]
        )
        for temperature, before in ((_TEMPERATURE, 0), (0.0, len(dialogues)))
    )
    return sampled, greedy


def run_drafts(
    drafter_folder: Path,
    target: Target,
    dialogues: Sequence[Dialogue],
    params: SamplingParams,
    on_progress: Progress = lambda done, total: None,
) -> Drafts:
    """Answer the dialogues' requests anew with the drafter, and collect its whole blocks."""
    drafter = load_drafter(drafter_folder, target)
    confidence, accepted = [], []
    context = max((len(each.prompt) for each in dialogues), default=0) + params.max_new_tokens
    # One after the other, each with its own random numbers: who shares a step decides how sums
    # are rounded, and a report is to be repeatable.
    with Engine(target, drafter, "full", slots=1, context_tokens=context) as engine:
        for number, dialogue in enumerate(dialogues):
            for step in engine.submit(dialogue.prompt, replace(params, seed=number)):
                if step.draft and step.scheduled == drafter.block_size:
                    confidence.append(step.confidence)
                    accepted.append(step.accepted)
            on_progress(number + 1, len(dialogues))
    if not accepted:
        raise NoTrainingData(
            f"no whole block was drafted in {len(dialogues)} held-out dialogues: make more or "
            "longer ones first"
        )
    return Drafts(np.array(confidence, np.float64), np.array(accepted, np.int64))


def areas_under_curve(drafts: Drafts) -> tuple[float, ...]:
    """See `Evaluation.area_under_curve`; among the drafts that reach each position."""
    areas = []
    for position in range(drafts.confidence.shape[1]):
        reaches = drafts.accepted >= position
        confidence = drafts.confidence[reaches, position]
        stood = drafts.accepted[reaches] > position
        areas.append(area_under_curve(confidence, stood))
    return tuple(areas)


def area_under_curve(scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> float:
    """How often a positive one has the higher score than a negative one, ties counting half."""
    positives, negatives = int(positive.sum()), int((~positive).sum())
    if not positives or not negatives:
        return float("nan")
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum() - (counts - 1) / 2)[place]  # equal scores share their mean rank
    above = ranks[positive].sum() - positives * (positives + 1) / 2
    return float(above / (positives * negatives))


def _held_out(corpus: Corpus, split: Split, limit: int) -> list[Dialogue]:
    return list(islice((each for each in corpus if each.split is split), limit))
