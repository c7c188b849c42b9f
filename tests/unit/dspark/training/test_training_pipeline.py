"""The whole pipeline teaches a drafter something, for any target, however often it is killed."""

from __future__ import annotations

import csv
import math
import random
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from dspark import Engine, InvalidRequest, SamplingParams, load_drafter, load_target
from dspark.calibration import FILE_NAME, Calibration, Calibrations
from dspark.errors import NoTrainingData, RunMismatch
from dspark.training.corpus import Split
from dspark.training.curves import Curve
from dspark.training.evaluation import area_under_curve, run_drafts
from dspark.training.features import FeatureStore
from dspark.training.fit import Fit, FitSettings
from dspark.training.frame import load_frame
from dspark.training.pipeline import Pipeline, Plan, Stage
from dspark.training.reliability import svg
from dspark.training.shape import spread_taps
from tests.conftest import REPOSITORY

MakePlan = Callable[..., Plan]
FAMILIES = ("llama", "qwen3")
FEWEST_TOKENS_GAINED = 1.0  # a step, by training


@pytest.fixture(scope="module")
def trained(
    speaking_targets: dict[str, Path],
    make_plan: MakePlan,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Pipeline]:
    """By family, a pipeline that has run through."""
    found = {}
    for family in FAMILIES:
        folder = tmp_path_factory.mktemp(f"trained-{family}")
        plan = make_plan(folder, speaking_targets[family], steps=200, checkpoint_every=50)
        found[family] = Pipeline(replace(plan, wanted_dialogues=150, judged_dialogues=12))
        assert found[family].run() is not None
    return found


def fit_of(plan: Plan, pipeline: Pipeline) -> Fit:
    """The training of a plan over the data of a pipeline."""
    frame = load_frame(Path(plan.target), "cpu")
    taps = plan.shape.taps_of(frame)
    hidden = frame.decoder.config.hidden_size
    features = pipeline.drafter_folder.parent / "features"
    store = FeatureStore(features, pipeline.corpus, len(taps), hidden)
    return Fit(plan.folder, frame, pipeline.corpus, store, plan.shape, plan.fit)


@pytest.mark.parametrize("initial", ["target", "random"])
@pytest.mark.parametrize("family", FAMILIES)
def test_training_makes_drafts_that_stand(
    family: str,
    initial: str,
    trained: dict[str, Pipeline],
    speaking_targets: dict[str, Path],
    make_plan: MakePlan,
    tmp_path: Path,
) -> None:
    untrained = fit_of(
        make_plan(tmp_path, speaking_targets[family], initial=initial), trained[family]
    )
    untrained.export()
    target = load_target(speaking_targets[family])
    dialogues = [each for each in trained[family].corpus if each.split is Split.EVALUATE]
    params = SamplingParams(temperature=1.0, max_new_tokens=24)
    before, after = (
        run_drafts(folder, target, dialogues, params).accepted_length
        for folder in (untrained.drafter_folder, trained[family].drafter_folder)
    )
    assert after - before >= FEWEST_TOKENS_GAINED


@pytest.mark.parametrize("family", FAMILIES)
def test_a_trained_drafter_is_lossless_like_any_other(
    family: str, trained: dict[str, Pipeline], speaking_targets: dict[str, Path]
) -> None:
    target = load_target(speaking_targets[family])
    drafter = load_drafter(trained[family].drafter_folder, target)
    assert drafter.calibrations.sampled.temperatures
    prompt = target.tokenizer.chat([{"role": "user", "content": "a b c"}])
    params = SamplingParams(max_new_tokens=20)
    with Engine(target) as plain, Engine(target, drafter) as drafting:
        results = [engine.generate(prompt, params) for engine in (plain, drafting)]
    assert results[0].token_ids == results[1].token_ids
    assert len(results[1].steps) < len(results[0].steps)


def test_the_checkpoint_leaves_out_what_the_target_has(trained: dict[str, Pipeline]) -> None:
    folder = trained["llama"].drafter_folder
    names = set(load_file(folder / "model.safetensors"))
    assert "embed_tokens.weight" not in names
    assert "d2t" in names and "lm_head.weight" not in names  # those rows are the target's
    assert {each.name for each in folder.iterdir()} == {
        "config.json",
        "model.safetensors",
        FILE_NAME,
        "evaluation.json",
        "reliability.svg",
    }


def test_judging_by_true_tokens_agrees_with_the_engine(
    trained: dict[str, Pipeline], speaking_targets: dict[str, Path], make_plan: MakePlan
) -> None:
    pipeline, target = trained["qwen3"], load_target(speaking_targets["qwen3"])
    folder = pipeline.drafter_folder.parent
    with (folder / "training" / "held_out.csv").open() as file:
        judged = float(list(csv.DictReader(file))[-1]["accepted_length"])
    dialogues = list(pipeline.corpus)[:40]
    params = SamplingParams(temperature=1.0, max_new_tokens=24)
    found = run_drafts(pipeline.drafter_folder, target, dialogues, params)
    # Blocks that reach beyond the end of an answer count as short when judged.
    assert judged == pytest.approx(found.accepted_length, abs=0.8)


def contents(folder: Path) -> dict[str, object]:
    """All that a run leaves behind; of a checkpoint what matters."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".pt":
            state = torch.load(path, weights_only=True)
            moments = [
                moment
                for kind in ("muon", "adam")
                for each in state["optimizer"][kind]["state"].values()
                for moment in each.values()
            ]
            found[name] = (
                state["step"],
                {key: tensor.tolist() for key, tensor in state["tensors"].items()},
                [moment.tolist() for moment in moments],
            )
        elif path.is_file():
            found[name] = path.read_bytes()
    return found


def different(one: dict[str, object], other: dict[str, object]) -> set[str]:
    """The names of the files that are not the same in both, or not in both at all."""
    return {name for name in {*one, *other} if one.get(name) != other.get(name)}


@pytest.fixture(scope="module")
def undisturbed(
    speaking_target: Path, make_plan: MakePlan, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("undisturbed")
    Pipeline(make_plan(folder, speaking_target)).run()
    return contents(folder)


class Killed(BaseException):
    """Stands for whatever may end a process between two steps."""


@pytest.mark.parametrize("seed", range(3))
def test_a_run_stopped_at_random_moments_ends_the_same(
    seed: int,
    undisturbed: dict[str, object],
    speaking_target: Path,
    make_plan: MakePlan,
    tmp_path: Path,
) -> None:
    rng = random.Random(seed)
    plan = make_plan(tmp_path, speaking_target)
    times_killed = 0

    def maybe_kill(stage: Stage, done: int, total: int) -> None:
        nonlocal times_killed
        if rng.random() < 0.1 and times_killed < 12:
            times_killed += 1
            raise Killed

    while True:
        try:
            Pipeline(plan, maybe_kill).run()
            break
        except Killed:
            continue
    assert times_killed > 3
    assert different(contents(tmp_path), undisturbed) == set()


KILLED_PROCESS = """
import os, signal, sys
from tests.unit.dspark.training.speaking import small_plan
from dspark.training.pipeline import Pipeline
from pathlib import Path

folder, target, stage, count = sys.argv[1:]

def kill(at, done, total):
    if at == stage and done >= int(count):
        os.kill(os.getpid(), signal.SIGKILL)

Pipeline(small_plan(Path(folder), Path(target)), kill).run()
"""


@pytest.mark.parametrize(("stage", "count"), [("dialogues", 17), ("fit", 13)])
def test_a_killed_process_is_taken_up_by_the_next(
    stage: str,
    count: int,
    undisturbed: dict[str, object],
    speaking_target: Path,
    make_plan: MakePlan,
    tmp_path: Path,
) -> None:
    arguments = [str(tmp_path), str(speaking_target), stage, str(count)]
    command = [sys.executable, "-c", KILLED_PROCESS, *arguments]
    ended = subprocess.run(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert different(contents(tmp_path), undisturbed)
    Pipeline(make_plan(tmp_path, speaking_target)).run()
    assert different(contents(tmp_path), undisturbed) == set()


def test_more_steps_and_dialogues_later_are_taken_up(
    speaking_target: Path, make_plan: MakePlan, tmp_path: Path
) -> None:
    plan = make_plan(tmp_path, speaking_target)
    Pipeline(plan).run((Stage.DIALOGUES, Stage.FEATURES, Stage.FIT))
    first = load_file(tmp_path / "drafter" / "model.safetensors")
    Calibrations(Calibration((2.0,))).write(tmp_path / "drafter")
    longer = replace(plan, wanted_dialogues=48, fit=replace(plan.fit, steps=28))
    Pipeline(longer).run((Stage.FIT, Stage.FEATURES, Stage.DIALOGUES))  # done in their own order
    second = load_file(tmp_path / "drafter" / "model.safetensors")
    assert torch.equal(first["d2t"], second["d2t"])
    assert not torch.equal(first["fc.weight"], second["fc.weight"])
    assert not (tmp_path / "drafter" / FILE_NAME).exists(), "it was fitted to other weights"
    with (tmp_path / "training" / "loss.csv").open() as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == list(range(28))


def test_another_drafter_does_not_mix_with_the_one_begun(
    trained: dict[str, Pipeline], speaking_targets: dict[str, Path], make_plan: MakePlan
) -> None:
    pipeline = trained["llama"]
    folder = pipeline.drafter_folder.parent
    plan = make_plan(folder, speaking_targets["llama"], initial="random")
    with pytest.raises(RunMismatch, match="initial: 'target'"):
        fit_of(plan, pipeline)


def test_training_goes_on_from_a_drafter(
    trained: dict[str, Pipeline],
    speaking_targets: dict[str, Path],
    make_plan: MakePlan,
    tmp_path: Path,
) -> None:
    pipeline = trained["llama"]
    initial = str(pipeline.drafter_folder)
    plan = make_plan(tmp_path, speaking_targets["llama"], initial=initial, steps=3)
    fit = fit_of(plan, pipeline)
    fit.export()
    before = load_file(pipeline.drafter_folder / "model.safetensors")
    after = load_file(fit.drafter_folder / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    fit.run()
    other = make_plan(tmp_path / "other", speaking_targets["llama"], initial=initial)
    other = replace(other, shape=replace(other.shape, layers=other.shape.layers + 1))
    with pytest.raises(RunMismatch, match="num_hidden_layers"):
        fit_of(other, pipeline)


def test_a_drafter_is_trained_on_in_blocks_of_another_size(
    trained: dict[str, Pipeline],
    speaking_targets: dict[str, Path],
    make_plan: MakePlan,
    tmp_path: Path,
) -> None:
    pipeline = trained["llama"]
    plan = make_plan(
        tmp_path, speaking_targets["llama"], initial=str(pipeline.drafter_folder), steps=2
    )
    longer = plan.shape.block + 2
    plan = replace(plan, shape=replace(plan.shape, block=longer))
    fit = fit_of(plan, pipeline)
    fit.run()
    _, acceptance = fit.judge(Split.EVALUATE, 8)
    assert len(acceptance) == longer
    drafter = load_drafter(fit.drafter_folder, load_target(speaking_targets["llama"]))
    assert drafter.block_size == longer


def test_training_before_there_is_data_says_what_to_do(
    speaking_target: Path, make_plan: MakePlan, tmp_path: Path
) -> None:
    with pytest.raises(NoTrainingData, match="make more dialogues first"):
        Pipeline(make_plan(tmp_path, speaking_target)).run((Stage.FIT,))


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"initial": "zero"}, "initial is 'zero'"),
        ({"dtype": "int8"}, "dtype is 'int8'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    changed: dict[str, object], complaint: str
) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        FitSettings(**changed)  # type: ignore[arg-type]


def test_bfloat16_learns_too(
    trained: dict[str, Pipeline],
    speaking_targets: dict[str, Path],
    make_plan: MakePlan,
    tmp_path: Path,
) -> None:
    plan = make_plan(tmp_path, speaking_targets["qwen3"], steps=40, dtype="bfloat16")
    fit = fit_of(plan, trained["qwen3"])
    before, _ = fit.judge(Split.EVALUATE, 8)
    fit.run()
    after, _ = fit.judge(Split.EVALUATE, 8)
    assert after > before


def test_the_learning_rate_rises_stays_and_falls_to_nothing() -> None:
    settings = FitSettings(steps=1000, learning_rate=2.0, warm_up=0.04, fall=0.3)
    rates = [settings.learning_rate_at(step) for step in range(1000)]
    assert rates[:40] == pytest.approx([0.05 * (step + 1) for step in range(40)])
    assert set(rates[40:701]) == {2.0}
    assert rates[850] == pytest.approx(1.0)
    assert rates[700:] == sorted(rates[700:], reverse=True)
    assert settings.learning_rate_at(1000) == 0


def test_the_cross_entropy_falls_with_the_rate_to_its_weight_in_the_paper() -> None:
    settings = FitSettings(steps=1000, cross_entropy=0.9, fall=0.3)
    weights = [settings.cross_entropy_at(step) for step in (0, 20, 700, 850, 1000)]
    assert weights == pytest.approx([0.9, 0.9, 0.9, 0.5, 0.1])


@pytest.mark.parametrize(
    ("layers", "taps"),
    [(36, (1, 17, 33)), (30, (1, 14, 27)), (3, (-1, 0, 1)), (2, (-1, 0)), (1, (-1,))],
)
def test_taps_are_spread_and_never_the_last_layer(layers: int, taps: tuple[int, ...]) -> None:
    assert spread_taps(layers) == taps


def test_five_taps_are_those_of_the_released_drafters() -> None:
    assert spread_taps(36, 5) == (1, 9, 17, 25, 33)


def test_a_curve_goes_on_where_its_run_does(tmp_path: Path) -> None:
    path = tmp_path / "curve.csv"
    curve = Curve(path, ("loss",))
    curve.resume(0)
    for step in range(12):
        curve.append(step, [step / 3])
    with path.open("a") as file:
        file.write("1")  # torn off
    Curve(path, ("loss",)).resume(9)
    curve.append(9, [math.pi])
    lines = path.read_text().splitlines()
    assert lines[0] == "step,loss"
    assert lines[-2:] == ["8,2.66667", "9,3.14159"]
    assert len(lines) == 11


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=12))
def test_the_area_under_the_curve_counts_pairs(drawn: list[tuple[int, bool]]) -> None:
    scores = np.array([score for score, _ in drawn], np.float64)
    positive = np.array([flag for _, flag in drawn])
    pairs = [
        (high > low) + (high == low) / 2 for high in scores[positive] for low in scores[~positive]
    ]
    expected = float(np.mean(pairs)) if pairs else math.nan
    assert area_under_curve(scores, positive) == pytest.approx(expected, nan_ok=True)


def test_the_reliability_diagram_is_a_picture() -> None:
    promised = np.array([0.1, 0.1, 0.9, 0.5])
    root = ET.fromstring(svg(promised, np.array([False, True, True, False])))
    circles = root.findall("{http://www.w3.org/2000/svg}circle")
    assert len(circles) == len(set(promised))
