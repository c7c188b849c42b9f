"""All stages of a drafter's training in one folder, each from where it was stopped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path

import torch

from dspark.checkpoint import find_checkpoint
from dspark.memory import use_large_pages
from dspark.target import Target, load_target
from dspark.training.corpus import Corpus
from dspark.training.dialogues import DialogueSettings, Progress, extend_dialogues
from dspark.training.evaluation import Evaluation, calibrate, evaluate
from dspark.training.features import FeatureStore, extend_features
from dspark.training.fit import Fit, FitSettings
from dspark.training.frame import load_frame
from dspark.training.shape import DrafterShape


class Stage(StrEnum):
    """What is done, in this order."""

    DIALOGUES = "dialogues"
    FEATURES = "features"
    FIT = "fit"
    CALIBRATE = "calibrate"
    EVALUATE = "evaluate"


StageProgress = Callable[[Stage, int, int], None]
"""Told the stage, how much of it is done and how much there is to do."""


@dataclass(frozen=True)
class Plan:
    """What is trained, from what, and how.

    Attributes:
        folder: for everything that is made; the drafter lies in `drafter/` in it.
        target: a folder, a `.gguf` file or a hub id.
        device: what computes.
        dtype: the precision in which the target answers and is read.
        threads: of the CPU.
        slots: how many dialogues are held at a time.
        wanted_dialogues: how many there shall be.
        judged_dialogues: how many at most calibrate, and how many evaluate.
        dialogues: what is asked.
        shape: the drafter's.
        fit: the training's.
    """

    folder: Path
    target: str | Path
    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    slots: int = 64
    wanted_dialogues: int = 2000
    judged_dialogues: int = 100
    dialogues: DialogueSettings = field(default_factory=DialogueSettings)
    shape: DrafterShape = field(default_factory=DrafterShape)
    fit: FitSettings = field(default_factory=FitSettings)


class Pipeline:
    """A plan being carried out.

    Args:
        plan: what to do.
        on_progress: told of every dialogue and step.
    """

    def __init__(
        self, plan: Plan, on_progress: StageProgress = lambda stage, done, total: None
    ) -> None:
        self._plan = plan
        self._on_progress = on_progress
        self.corpus = Corpus(plan.folder / "dialogues")
        self.drafter_folder = plan.folder / "drafter"

    def run(self, stages: Sequence[Stage] = tuple(Stage)) -> Evaluation | None:
        """Carry out some stages, in their order whatever the order asked; the evaluation, if any.

        Raises:
            DSparkError: something is missing or does not belong together; the message says what.
        """
        torch.set_num_threads(self._plan.threads)
        use_large_pages()
        self._plan.folder.mkdir(parents=True, exist_ok=True)
        evaluation = None
        for stage in (each for each in Stage if each in stages):
            match stage:
                case Stage.DIALOGUES:
                    self._dialogues()
                case Stage.FEATURES:
                    self._features()
                case Stage.FIT:
                    self._fit()
                case Stage.CALIBRATE:
                    self._calibrate()
                case Stage.EVALUATE:
                    evaluation = self._evaluate()
        return evaluation

    @cached_property
    def target(self) -> Target:
        """The target, loaded once."""
        plan = self._plan
        return load_target(plan.target, plan.device, plan.dtype, plan.threads)

    def _dialogues(self) -> None:
        extend_dialogues(
            self.corpus,
            self.target,
            self._plan.dialogues,
            self._plan.wanted_dialogues,
            slots=self._plan.slots,
            on_progress=self._progress_of(Stage.DIALOGUES),
        )

    def _features(self) -> None:
        extend_features(
            self._features_folder,
            self.corpus,
            self.target,
            self._plan.shape.taps_of(self.target),
            on_progress=self._progress_of(Stage.FEATURES),
        )

    def _fit(self) -> None:
        plan = self._plan
        frame = load_frame(find_checkpoint(plan.target), plan.device)
        taps = plan.shape.taps_of(frame)
        hidden = frame.decoder.config.hidden_size
        store = FeatureStore(self._features_folder, self.corpus, len(taps), hidden)
        run = Fit(plan.folder, frame, self.corpus, store, plan.shape, plan.fit)
        run.run(self._progress_of(Stage.FIT))

    def _calibrate(self) -> None:
        calibrate(
            self.drafter_folder,
            self.corpus,
            self.target,
            limit=self._plan.judged_dialogues,
            max_new_tokens=self._plan.dialogues.max_new_tokens,
            on_progress=self._progress_of(Stage.CALIBRATE),
        )

    def _evaluate(self) -> Evaluation:
        return evaluate(
            self.drafter_folder,
            self.corpus,
            self.target,
            limit=self._plan.judged_dialogues,
            max_new_tokens=self._plan.dialogues.max_new_tokens,
            on_progress=self._progress_of(Stage.EVALUATE),
        )

    @property
    def _features_folder(self) -> Path:
        return self._plan.folder / "features"

    def _progress_of(self, stage: Stage) -> Progress:
        return lambda done, total: self._on_progress(stage, done, total)
