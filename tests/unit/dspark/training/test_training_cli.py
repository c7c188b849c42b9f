"""`dspark train` trains with one command, and tells mistakes in a line."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dspark import load_drafter, load_target
from dspark.cli import FAILED, MISUSED, app


def test_the_command_trains_a_drafter_and_shows_it(speaking_target: Path, tmp_path: Path) -> None:
    arguments = f"train --target {speaking_target} --out {tmp_path} --dialogues 40 --steps 8 "
    arguments += "--max-new-tokens 16 --layers 1 --block 3 --rank 4 --dtype float32 --taps 0,1"
    result = CliRunner().invoke(app, arguments.split())
    assert result.exit_code == 0, result.output
    assert "tokens a step at temperature 1" in " ".join(result.output.split())
    target = load_target(speaking_target)
    drafter = load_drafter(tmp_path / "drafter", target)
    assert (drafter.block_size, tuple(drafter.taps)) == (3, (0, 1))


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        ("train deploy", MISUSED, "there is no stage 'deploy'"),
        ("train --taps one --target {target}", MISUSED, "give numbers such as 1,14,27"),
        ("train --head lstm --target {target}", MISUSED, "known are none, vanilla, gated, rnn"),
        ("train --prompts {out}/none.txt --target {target}", MISUSED, "cannot be read"),
        ("train fit --target {target} --out {out}", FAILED, "make more dialogues first"),
    ],
)
def test_mistakes_are_told_in_a_line(
    arguments: str, code: int, complaint: str, speaking_target: Path, tmp_path: Path
) -> None:
    filled = arguments.format(target=speaking_target, out=tmp_path)
    result = CliRunner().invoke(app, filled.split())
    assert result.exit_code == code
    assert complaint in result.output
    assert "Traceback" not in result.output
