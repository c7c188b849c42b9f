"""Variants differ in one choice, are trained alike, and are compared as far as they have come."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from dspark import InvalidRequest, load_drafter, load_target
from dspark.cli import MISUSED, app
from dspark.training.ablation import DIAGRAM, REPORT, Ablation, ablate, variant_name
from dspark.training.ablation_chart import Line, Panel, svg
from dspark.training.pipeline import Pipeline, Plan, Stage
from dspark.training.shape import DrafterShape

CHOICES = {"head": ("none", "vanilla", "rnn"), "block": (2, 4)}
STEPS = 12


@pytest.fixture(scope="module")
def plan(
    speaking_target: Path,
    make_plan: Callable[..., Plan],
    tmp_path_factory: pytest.TempPathFactory,
) -> Ablation:
    """Over dialogues and features that are there."""
    whole = make_plan(tmp_path_factory.mktemp("ablation"), speaking_target, steps=STEPS)
    Pipeline(whole).run((Stage.DIALOGUES, Stage.FEATURES))
    return Ablation(whole.folder, speaking_target, whole.shape, CHOICES, whole.fit)


def elsewhere(plan: Ablation, folder: Path) -> Ablation:
    """The same over the same data, with nothing trained yet."""
    for name in ("dialogues", "features"):
        (folder / name).symlink_to(plan.folder / name)
    return replace(plan, folder=folder)


class Killed(BaseException):
    """Stands for whatever may end a process between two steps."""


def test_variants_are_trained_once_each_and_can_be_drafted_with(
    plan: Ablation, tmp_path: Path
) -> None:
    plan = elsewhere(plan, tmp_path)
    begun: list[str] = []
    results = ablate(plan, lambda name, done, total: begun.append(name) if not done else None)
    assert begun == ["head-none", "base", "head-rnn", "block-2"]
    assert results["head"][1] is results["block"][1], "both are the base"
    for choice, values in CHOICES.items():
        assert tuple(getattr(each.shape, choice) for each in results[choice]) == values
        for each in results[choice]:
            assert len(each.acceptance) == each.shape.block
            assert 1 < each.accepted_length < 1 + each.shape.block
    target = load_target(plan.target)
    for name, block in (("head-none", 4), ("block-2", 2)):
        drafter = load_drafter(tmp_path / "ablation" / name / "drafter", target)
        assert drafter.block_size == block
    without, vanilla, _ = results["head"]
    assert without.megabytes < vanilla.megabytes


def test_a_run_stopped_in_between_ends_the_same_and_shows_what_it_has(
    plan: Ablation, tmp_path: Path
) -> None:
    folders = tmp_path / "whole", tmp_path / "stopped"
    for folder in folders:
        folder.mkdir()
    whole, stopped = (elsewhere(plan, folder) for folder in folders)
    expected = ablate(whole)

    def kill(name: str, done: int, total: int) -> None:
        if name == "head-rnn" and done == STEPS // 2:
            raise Killed

    with pytest.raises(Killed):
        ablate(stopped, kill)
    report = json.loads((stopped.folder / "ablation" / REPORT).read_text())
    assert [each["shape"]["head"] for each in report["variants"]["head"]] == ["none", "vanilla"]
    assert ablate(stopped) == expected
    again = []
    ablate(stopped, lambda name, done, total: again.append(done))
    assert set(again) == {STEPS}, "what is trained is not trained again"
    picture = ET.fromstring((stopped.folder / "ablation" / DIAGRAM).read_text())
    lines = picture.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == sum(map(len, CHOICES.values()))


def test_variants_of_a_drafter_start_from_what_fits_of_it(plan: Ablation, tmp_path: Path) -> None:
    trained = ablate(elsewhere(plan, tmp_path))["head"][1]
    given = tmp_path / "ablation" / "base" / "drafter"
    standing = replace(plan.fit, initial=str(given), steps=1, learning_rate=1e-9)
    (tmp_path / "further").mkdir()
    further = replace(elsewhere(plan, tmp_path / "further"), fit=standing)
    without, same, _ = ablate(further)["head"]
    assert same.accepted_length == pytest.approx(trained.accepted_length, abs=0.02)  # bfloat16
    assert without.accepted_length != same.accepted_length
    offered = load_file(given / "model.safetensors")
    taken = load_file(further.folder / "ablation" / "head-none" / "drafter" / "model.safetensors")
    assert {name for name in offered if name not in taken} == {
        "markov_head.markov_w1.weight",
        "markov_head.markov_w2.weight",
    }
    assert torch.equal(taken["fc.weight"], offered["fc.weight"])
    assert ablate(further)["head"][1] == same, "and it goes on"


@pytest.mark.parametrize(
    ("choices", "complaint"),
    [
        ({"taps": (1,)}, "'taps' is nothing that can be varied"),
        ({"block": ("long",)}, "block is 'long'; it must be a number"),
        ({"head": ("lstm",)}, "known are none, vanilla, gated, rnn"),
        ({"layers": (0,)}, "layers is 0"),
    ],
)
def test_choices_that_make_no_sense_are_refused(
    choices: dict[str, tuple[str | int, ...]], complaint: str, plan: Ablation
) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        ablate(replace(plan, choices=choices))


def test_the_command_compares_and_tells_mistakes_in_a_line(plan: Ablation, tmp_path: Path) -> None:
    elsewhere(plan, tmp_path)
    arguments = f"ablate --target {plan.target} --out {tmp_path} --steps 2 --layers 1 --rank 4"
    result = CliRunner().invoke(app, [*arguments.split(), "--vary", "block=2,3"])
    assert result.exit_code == 0, result.output
    assert "block 3" in result.output and (tmp_path / "ablation" / DIAGRAM).is_file()
    result = CliRunner().invoke(app, [*arguments.split(), "--vary", "block"])
    assert result.exit_code == MISUSED
    assert "write it as block=3,5,7" in result.output


def test_a_variant_is_named_by_what_it_has_that_the_base_has_not() -> None:
    base = DrafterShape()
    assert variant_name(base, base) == "base"
    assert variant_name(replace(base, block=7), base) == "block-7"
    assert variant_name(replace(base, draft_vocabulary=0), base) == "draft-vocabulary-0"


def test_the_picture_has_a_point_for_each_position() -> None:
    panels = [Panel("head", [Line("none", 1.3, (0.3, 0.1)), Line("<rnn>", 1.5, (0.3, 0.2, 0.15))])]
    root = ET.fromstring(svg(panels))
    assert len(root.findall("{http://www.w3.org/2000/svg}circle")) == 5
    assert "<rnn>  ×1.50" in [each.text for each in root.iter()]
