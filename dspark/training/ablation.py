"""Drafters of several shapes, trained alike: what each choice brings for the same budget.

Every variant sees the same anchors of the same dialogues, in the same order and for as many steps,
and is judged by the same held-out ones. It differs from the base in one choice.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path

from safetensors.torch import load_file, save_file

from dspark.checkpoint import find_checkpoint, read_json
from dspark.errors import InvalidRequest
from dspark.target import Target
from dspark.training.ablation_chart import Line, Panel, svg
from dspark.training.corpus import Corpus
from dspark.training.features import FeatureStore
from dspark.training.fit import Fit, FitSettings
from dspark.training.frame import load_frame
from dspark.training.initial import random_weights
from dspark.training.shape import DrafterShape, drafter_config
from dspark.training.storage import replacing

INITIAL = ("target", "random")
REPORT, DIAGRAM = "ablation.json", "ablation.svg"
CHOICES = ("head", "block", "layers", "rank", "draft_vocabulary", "intermediate")

VariantProgress = Callable[[str, int, int], None]
"""Told the variant, how many of its steps are done and how many there are."""


@dataclass(frozen=True)
class Ablation:
    """What is compared, from what, and for how long.

    Attributes:
        folder: of a training run that has dialogues and features; the variants go to `ablation/`.
        target: a folder, a `.gguf` file or a hub id.
        base: the shape that every variant shares but for one choice.
        choices: by the name of a choice (one of `CHOICES`) the values to try.
        fit: how each is trained. Where its `initial` is a drafter's folder, a variant starts from
            the tensors of that drafter that fit it, and from new ones for the rest.
        device: what computes.
    """

    folder: Path
    target: str | Path
    base: DrafterShape
    choices: Mapping[str, Sequence[str | int]]
    fit: FitSettings
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name in self.choices:
            if name not in CHOICES:
                raise InvalidRequest(
                    f"{name!r} is nothing that can be varied; choose of {', '.join(CHOICES)}"
                )

    def shapes(self, choice: str) -> tuple[DrafterShape, ...]:
        """The base with each value of a choice.

        Raises:
            InvalidRequest: a value makes no sense.
        """
        return tuple(_with(self.base, choice, value) for value in self.choices[choice])


@dataclass(frozen=True)
class Variant:
    """A shape and how good a drafter became of it.

    Attributes:
        shape: what it looks like.
        accepted_length: on held-out dialogues at temperature 1, the target's own token included,
            every block given its true tokens.
        acceptance: by position of the block, if all before it are accepted.
        megabytes: of its weights on disk.
    """

    shape: DrafterShape
    accepted_length: float
    acceptance: tuple[float, ...]
    megabytes: float


def ablate(
    plan: Ablation, on_progress: VariantProgress = lambda variant, done, total: None
) -> Mapping[str, tuple[Variant, ...]]:
    """Train and judge all variants, those that are not yet; by the name of the choice.

    What is known so far is in `ablation/`, as JSON and as a picture, after every variant.

    Raises:
        DSparkError: something is missing or does not belong together; the message says what.
    """
    shapes = {choice: plan.shapes(choice) for choice in plan.choices}
    frame = load_frame(find_checkpoint(plan.target), plan.device)
    corpus = Corpus(plan.folder / "dialogues")
    store = FeatureStore(
        plan.folder / "features",
        corpus,
        len(plan.base.taps_of(frame)),
        frame.decoder.config.hidden_size,
    )
    folder = plan.folder / "ablation"
    found: dict[DrafterShape, Variant] = {}
    for shape in dict.fromkeys(each for of_choice in shapes.values() for each in of_choice):
        name = variant_name(shape, plan.base)
        settings = plan.fit
        if settings.initial not in INITIAL:
            adapted = folder / name / "initial"
            _adapt(Path(settings.initial), shape, frame, adapted, settings)
            settings = replace(settings, initial=str(adapted))
        fit = Fit(folder / name, frame, corpus, store, shape, settings)
        fit.run(partial(on_progress, name))
        found[shape] = _judged(folder / name, shape)
        results = _by_choice(shapes, found)
        _write(folder, results, plan)
    return results


def variant_name(shape: DrafterShape, base: DrafterShape) -> str:
    """The folder of a variant: what it has that the base has not, or `base`."""
    differences = [
        f"{field.name.replace('_', '-')}-{getattr(shape, field.name)}"
        for field in fields(shape)
        if getattr(shape, field.name) != getattr(base, field.name)
    ]
    return "-".join(differences) or "base"


def _with(base: DrafterShape, choice: str, value: str | int) -> DrafterShape:
    if choice != "head" and not isinstance(value, int):
        raise InvalidRequest(f"{choice} is {value!r}; it must be a number")
    return replace(base, **{choice: value})  # type: ignore[arg-type]  # checked just above


def _adapt(
    given: Path, shape: DrafterShape, frame: Target, folder: Path, settings: FitSettings
) -> None:
    """Write a drafter of this shape: what fits of the one that is given, and new weights."""
    of_given = read_json(given / "config.json")
    drafted, mask_token = of_given.get("draft_vocab_size"), of_given["mask_token_id"]
    assert isinstance(drafted, int | None) and isinstance(mask_token, int)
    config = drafter_config(
        frame, shape, mask_token=mask_token, anchors=settings.anchors, drafted=drafted
    )
    offered = load_file(given / "model.safetensors")
    tensors = random_weights(config, settings.seed)
    for name, new in tensors.items():
        if name in offered and offered[name].shape == new.shape:
            tensors[name] = offered[name]
    if "d2t" in offered:
        tensors["d2t"] = offered["d2t"]
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / "model.safetensors") as unfinished:
        save_file(tensors, unfinished)
    with replacing(folder / "config.json") as unfinished:
        unfinished.write_text(json.dumps(config, indent=2), encoding="utf-8")


def _judged(folder: Path, shape: DrafterShape) -> Variant:
    """What the last line of a run's held-out curve says."""
    with (folder / "training" / "held_out.csv").open(newline="", encoding="utf-8") as file:
        last = list(csv.DictReader(file))[-1]
    return Variant(
        shape,
        float(last["accepted_length"]),
        tuple(float(last[f"acceptance_{place + 1}"]) for place in range(shape.block)),
        (folder / "drafter" / "model.safetensors").stat().st_size / 1e6,
    )


def _by_choice(
    shapes: Mapping[str, Sequence[DrafterShape]], found: Mapping[DrafterShape, Variant]
) -> dict[str, tuple[Variant, ...]]:
    return {
        choice: tuple(found[shape] for shape in of_choice if shape in found)
        for choice, of_choice in shapes.items()
    }


def _write(folder: Path, results: Mapping[str, Sequence[Variant]], plan: Ablation) -> None:
    report = {
        "fit": asdict(plan.fit),
        "variants": {choice: list(map(asdict, found)) for choice, found in results.items()},
    }
    panels = [
        Panel(
            choice.replace("_", " "),
            [
                Line(str(getattr(each.shape, choice)), each.accepted_length, each.acceptance)
                for each in found
            ],
        )
        for choice, found in results.items()
        if found
    ]
    with replacing(folder / REPORT) as unfinished:
        unfinished.write_text(json.dumps(report, indent=2), encoding="utf-8")
    with replacing(folder / DIAGRAM) as unfinished:
        unfinished.write_text(svg(panels), encoding="utf-8")
