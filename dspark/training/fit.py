"""The third stage: the training loop, which may be killed between any two instructions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from dspark.calibration import FILE_NAME
from dspark.errors import InvalidRequest
from dspark.linear import FloatLinear
from dspark.target import Target
from dspark.training.batches import Batches
from dspark.training.corpus import Corpus, Split
from dspark.training.curves import Curve
from dspark.training.dialogues import Progress
from dspark.training.evaluation import DIAGRAM, REPORT
from dspark.training.features import FeatureStore
from dspark.training.fingerprint import fingerprint
from dspark.training.frame import load_frame
from dspark.training.fused_loss import Labels, fused_terms
from dspark.training.initial import DrafterFolder, random_weights, weights_of_target
from dspark.training.loss import (
    CROSS_ENTROPY,
    Terms,
    accepted_length,
    target_probabilities,
    weights_of_places,
)
from dspark.training.network import TrainableDrafter
from dspark.training.optimizer import NAME as OPTIMIZER
from dspark.training.optimizer import Optimizer
from dspark.training.packing import Batch
from dspark.training.shape import DrafterShape, drafter_config
from dspark.training.storage import replacing, settle
from dspark.training.vocabulary import count_tokens, draft_vocabulary, mask_token

_FREE = ("steps", "checkpoint_every", "held_out_dialogues")  # may change between two runs
_FROZEN = ("lm_head.weight", "d2t")
_INITIAL = ("target", "random")
_PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class FitSettings:
    """How a drafter is trained; the defaults are the paper's where it says (arXiv 2607.05147).

    Attributes:
        steps: how many, all runs together. May be raised later.
        seed: of the weights and of the order of the data.
        dialogues_per_step: how many a step sees.
        anchors: how many blocks of each, at most.
        learning_rate: at its highest.
        warm_up: share of the steps in which it rises.
        fall: share of the steps, the last ones, in which it falls to zero. What is trained before
            is as good for a longer run as for this one.
        cross_entropy: its weight in the loss until the rate falls; with the rate it goes to the
            paper's. Far from the target's distribution the distance hardly says where to go.
        gradient_norm: gradients are cut to it.
        decay: how fast a block's later positions count less (see `weights_of_places`).
        initial: `target` starts from its last layers, `random` from noise, and a drafter's folder
            from that drafter.
        dtype: `float32`, or `bfloat16` for the products; parameters are float32 anyway.
        checkpoint_every: steps between two checkpoints.
        held_out_dialogues: how many a checkpoint is judged by.
    """

    steps: int = 2000
    seed: int = 0
    dialogues_per_step: int = 8
    anchors: int = 64
    learning_rate: float = 6e-4
    warm_up: float = 0.04
    fall: float = 0.35
    cross_entropy: float = 1.0
    gradient_norm: float = 1.0
    decay: float = 4.0
    initial: str = "target"
    dtype: str = "float32"
    checkpoint_every: int = 100
    held_out_dialogues: int = 32

    def __post_init__(self) -> None:
        for name in ("steps", "dialogues_per_step", "anchors", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.dtype not in _PRECISIONS:
            raise InvalidRequest(
                f"dtype is {self.dtype!r}; it must be one of {', '.join(_PRECISIONS)}"
            )
        if self.initial not in _INITIAL and not (Path(self.initial) / "config.json").is_file():
            raise InvalidRequest(
                f"initial is {self.initial!r}; it must be {' or '.join(_INITIAL)}, or the folder "
                "of a drafter"
            )

    def learning_rate_at(self, step: int) -> float:
        """Of one step, counted from 0."""
        rising = max(1, round(self.warm_up * self.steps))
        return self.learning_rate * min(1.0, (step + 1) / rising, self._left_at(step))

    def cross_entropy_at(self, step: int) -> float:
        """The weight of the cross-entropy in one step's loss."""
        return CROSS_ENTROPY + (self.cross_entropy - CROSS_ENTROPY) * min(1.0, self._left_at(step))

    def _left_at(self, step: int) -> float:
        """How much of the fall is still to come; more than 1 before it."""
        return (self.steps - step) / max(1.0, self.fall * self.steps)


class _State(NamedTuple):
    """All that a run is, beside its settings and data."""

    step: int
    config: Mapping[str, object]
    tensors: dict[str, Tensor]
    optimizer: Optimizer


class Fit:
    """One drafter's training run, in a folder of its own.

    Args:
        folder: for its checkpoint, curves, and the drafter.
        frame: the target's, in float32 and on the device to train on (see `load_frame`).
        corpus: dialogues.
        store: their features.
        shape: the drafter's.
        settings: of the training.

    Raises:
        RunMismatch: the folder holds a run with other settings.
        NoTrainingData: no dialogue can be trained on.
    """

    def __init__(
        self,
        folder: Path,
        frame: Target,
        corpus: Corpus,
        store: FeatureStore,
        shape: DrafterShape,
        settings: FitSettings,
    ) -> None:
        self.drafter_folder = folder / "drafter"
        self._checkpoint = folder / "training" / "state.pt"
        self._settings = settings
        self._device = frame.decoder.device
        fixed = {key: value for key, value in asdict(settings).items() if key not in _FREE}
        made_with = {
            "target": fingerprint(frame.folder),
            "shape": asdict(shape),
            "optimizer": OPTIMIZER,
            **fixed,
        }
        settle(folder / "training" / "settings.json", made_with, "training runs")

        said, seen = count_tokens(corpus)
        self._batches = Batches(
            corpus,
            store,
            [dialogue.split for dialogue in corpus],
            block=shape.block,
            dialogues=settings.dialogues_per_step,
            anchors=settings.anchors,
            seed=settings.seed,
        )
        assert isinstance(frame.decoder.head, FloatLinear)
        head = frame.decoder.head.weight
        self._frame = frame
        if settings.dtype != "float32":
            self._frame = load_frame(frame.folder, self._device, settings.dtype)
        if self._checkpoint.exists():
            state = self._read(head)
        else:
            vocabulary = draft_vocabulary(said, shape.draft_vocabulary, frame.vocab_size)
            config = drafter_config(
                frame,
                shape,
                mask_token=mask_token(seen, frame.vocab_size),
                anchors=settings.anchors,
                drafted=None if vocabulary is None else len(vocabulary),
            )
            if settings.initial in _INITIAL:
                state = self._new(config, frame, vocabulary, head)
            else:
                state = self._continued(Path(settings.initial), config, head)
        self.step, self.config, self._tensors, self._optimizer = state

        drafted = self._tensors.get("d2t", torch.arange(len(head), device=self._device))
        self._head = head[drafted]
        self._losses = Curve(
            folder / "training" / "loss.csv",
            ("learning_rate", "loss", "cross_entropy", "distance", "confidence", "acceptance_1"),
        )
        positions = [f"acceptance_{number}" for number in range(1, shape.block + 1)]
        self._held_out = Curve(
            folder / "training" / "held_out.csv", ("accepted_length", *positions)
        )
        for curve in (self._losses, self._held_out):
            curve.resume(self.step)

    def run(self, on_progress: Progress = lambda done, total: None) -> None:
        """Train up to the wanted number of steps and write the drafter."""
        settings = self._settings
        on_progress(self.step, settings.steps)
        while self.step < settings.steps:
            self._advance()
            if self.step % settings.checkpoint_every == 0 or self.step == settings.steps:
                accepted, by_position = self.judge(Split.EVALUATE, settings.held_out_dialogues)
                self._held_out.append(self.step - 1, [accepted, *by_position])
                self._write()
            on_progress(self.step, settings.steps)
        self.export()

    def judge(self, split: Split, limit: int) -> tuple[float, list[float]]:
        """How good it is on dialogues of a split, every block given its true tokens.

        Returns:
            Mean accepted length, at temperature 1, the target's own token included, and the mean
            acceptance of each position; NaN where the split has no dialogues.
        """
        lengths, acceptances, valid = [], [], []
        with torch.no_grad():
            for batch in self._batches.of(split, limit):
                batch = batch.to(self._device)
                _, terms = self._loss_and_terms(batch)
                acceptance = terms.acceptance
                lengths.append(accepted_length(acceptance))
                acceptances.append(acceptance.sum(0))
                valid.append(batch.valid.sum(0))
        if not lengths:
            return math.nan, [math.nan] * self._block
        by_position = torch.stack(acceptances).sum(0) / torch.stack(valid).sum(0)
        return float(torch.cat(lengths).mean()), by_position.tolist()

    def export(self) -> None:
        """Write the drafter, in the layout of the released ones, without what the target has."""
        self.drafter_folder.mkdir(parents=True, exist_ok=True)
        with replacing(self.drafter_folder / "config.json") as unfinished:
            unfinished.write_text(json.dumps(self.config, indent=2), encoding="utf-8")
        tensors = {
            name: _compact(each.detach().cpu()).contiguous()
            for name, each in self._tensors.items()
            if name != "lm_head.weight"
        }
        with replacing(self.drafter_folder / "model.safetensors") as unfinished:
            save_file(tensors, unfinished, metadata={"format": "pt"})

    @property
    def _block(self) -> int:
        block = self.config["block_size"]
        assert isinstance(block, int)
        return block

    def _advance(self) -> None:
        settings = self._settings
        rate = settings.learning_rate_at(self.step)
        batch = self._batches.at(self.step).to(self._device)
        loss, terms = self._loss_and_terms(batch)
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not say
        torch.nn.utils.clip_grad_norm_(
            [each for each in self._tensors.values() if each.requires_grad], settings.gradient_norm
        )
        self._optimizer.step(rate)
        first = terms.acceptance[:, 0].mean()
        values = (loss.detach(), terms.cross_entropy, terms.distance, terms.confidence, first)
        self._losses.append(self.step, [rate, *torch.stack(values).tolist()])
        self.step += 1

    def _loss_and_terms(self, batch: Batch) -> tuple[Tensor, Terms]:
        drafter = TrainableDrafter(self.config, self._tensors, self._frame)
        labels = Labels(
            target_probabilities(batch, self._head),
            batch.predicting.flatten(),
            weights_of_places(batch.valid, self._settings.decay).flatten(),
        )
        weight = self._settings.cross_entropy_at(self.step)
        return fused_terms(drafter.blocks(batch), labels, weight)

    # --- checkpoints -------------------------------------------------------------------------

    def _new(
        self,
        config: Mapping[str, object],
        frame: Target,
        vocabulary: tuple[int, ...] | None,
        head: Tensor,
    ) -> _State:
        tensors = random_weights(config, self._settings.seed)
        if self._settings.initial == "target":
            tensors |= weights_of_target(config, frame)
        if vocabulary is not None:
            tensors["d2t"] = torch.tensor(vocabulary)
            tensors["lm_head.weight"] = head[tensors["d2t"].to(head.device)]
        return self._live(0, config, tensors)

    def _continued(self, folder: Path, config: Mapping[str, object], head: Tensor) -> _State:
        """Start from a trained drafter; what it drafts from and hides behind stays as it is."""
        given = DrafterFolder.read(folder, like=config)
        tensors = dict(given.tensors)
        if "d2t" in tensors:
            tensors["lm_head.weight"] = head[tensors["d2t"].to(head.device)]
        return self._live(0, given.config, tensors)

    def _read(self, head: Tensor) -> _State:
        found = torch.load(self._checkpoint, map_location=self._device, weights_only=True)
        tensors = found["tensors"]
        if "d2t" in tensors:
            tensors["lm_head.weight"] = head[tensors["d2t"]]
        state = self._live(found["step"], found["config"], tensors)
        state.optimizer.load_state_dict(found["optimizer"])
        return state

    def _live(
        self, step: int, config: Mapping[str, object], tensors: Mapping[str, Tensor]
    ) -> _State:
        live = {
            name: tensor.detach().to(self._device, copy=True).requires_grad_(name not in _FROZEN)
            for name, tensor in tensors.items()
        }
        learning = {name: tensor for name, tensor in live.items() if tensor.requires_grad}
        return _State(step, config, live, Optimizer(learning))

    def _write(self) -> None:
        kept = {name: each for name, each in self._tensors.items() if name != "lm_head.weight"}
        content = {
            "step": self.step,
            "config": dict(self.config),
            "tensors": kept,
            "optimizer": self._optimizer.state_dict(),
        }
        with replacing(self._checkpoint) as unfinished:
            torch.save(content, unfinished)
        for name in (FILE_NAME, REPORT, DIAGRAM):  # they were of other weights
            (self.drafter_folder / name).unlink(missing_ok=True)
        self.export()


def _compact(tensor: Tensor) -> Tensor:
    """As released drafters are stored: numbers in bfloat16."""
    return tensor.bfloat16() if tensor.is_floating_point() else tensor
