"""The command line of ablations: `dspark ablate`, drafters of several shapes for one budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from dspark.errors import InvalidRequest
from dspark.training.cli import bars

if TYPE_CHECKING:
    from dspark.training.ablation import Variant

_DEFAULT = ("head=none,vanilla,gated,rnn", "block=3,5,7,9", "layers=1,2,3")


def ablate(
    target: Annotated[
        str, typer.Option(metavar="NAME|PATH", help="What the drafters draft for.")
    ] = "smollm2-135m-instruct",
    out: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="Of a training run; `dspark train dialogues features` makes what is needed.",
        ),
    ] = Path("drafter-training"),
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CHOICE=LIST",
            help=f"What to try; may be given several times. By default {' '.join(_DEFAULT)}.",
        ),
    ] = None,
    layers: Annotated[int, typer.Option(min=1, help="Of the base.")] = 2,
    block: Annotated[int, typer.Option(min=1, help="Of the base.")] = 5,
    rank: Annotated[int, typer.Option(min=1, help="Of the base.")] = 64,
    head: Annotated[str, typer.Option(help="Of the base.")] = "vanilla",
    draft_vocabulary: Annotated[int, typer.Option(min=0, help="Of the base; 0 is all.")] = 8192,
    initial: Annotated[
        str,
        typer.Option(
            help="First weights: target, random, or a drafter's folder, of which each takes what "
            "fits."
        ),
    ] = "target",
    steps: Annotated[int, typer.Option(min=1, help="Of every variant.")] = 300,
    batch: Annotated[int, typer.Option(min=1, help="Dialogues a step.")] = 4,
    anchors: Annotated[int, typer.Option(min=1, help="Blocks a dialogue, at most.")] = 48,
    learning_rate: Annotated[float, typer.Option()] = 6e-4,
    fit_dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    checkpoint_every: Annotated[int, typer.Option(min=1)] = 100,
    judged: Annotated[int, typer.Option(min=1, help="Held-out dialogues to judge by.")] = 64,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 1,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Train small drafters that differ in one choice each, and compare them.

    Killed at any moment, the same command goes on where it was. The drafters lie in the folder's
    `ablation/`, each as `dspark bench --drafter` takes it.
    """
    from dspark.cli import complaints, find_target

    with complaints():
        source = find_target(target)
        import torch

        from dspark.training.ablation import DIAGRAM, Ablation
        from dspark.training.ablation import ablate as run
        from dspark.training.fit import FitSettings
        from dspark.training.shape import DrafterShape

        torch.set_num_threads(threads)
        plan = Ablation(
            folder=out,
            target=source,
            base=DrafterShape(
                layers=layers,
                block=block,
                rank=rank,
                head=head,
                draft_vocabulary=draft_vocabulary,
            ),
            choices=dict(map(_choice, vary or _DEFAULT)),
            fit=FitSettings(
                steps=steps,
                seed=seed,
                dialogues_per_step=batch,
                anchors=anchors,
                learning_rate=learning_rate,
                initial=initial,
                dtype=fit_dtype,
                checkpoint_every=checkpoint_every,
                held_out_dialogues=judged,
            ),
            device=device,
        )
        with bars() as on_progress:
            results = run(plan, on_progress)
        Console(highlight=False).print(_table(results, steps))
        typer.echo(f"The picture is {out / 'ablation' / DIAGRAM}")


def _choice(text: str) -> tuple[str, Sequence[str | int]]:
    name, equals, values = text.partition("=")
    listed = [each.strip() for each in values.split(",") if each.strip()]
    if not equals or not listed:
        raise InvalidRequest(f"--vary is {text!r}; write it as block=3,5,7")
    return name.strip().replace("-", "_"), [
        int(each) if each.isdecimal() else each for each in listed
    ]


def _table(results: Mapping[str, Sequence[Variant]], steps: int) -> Table:
    """A line for each variant, by choice, with the acceptance of every position."""
    table = Table(title=f"Held-out tokens a step and acceptance by position, after {steps} steps")
    table.add_column("choice")
    table.add_column("tokens a step", justify="right")
    table.add_column("MB", justify="right")
    longest = max((len(each.acceptance) for found in results.values() for each in found), default=0)
    for position in range(1, longest + 1):
        table.add_column(str(position), justify="right")
    for choice, found in results.items():
        for each in found:
            table.add_row(
                f"{choice} {getattr(each.shape, choice)}",
                f"{each.accepted_length:.3f}",
                f"{each.megabytes:.1f}",
                *(f"{value:.3f}" for value in each.acceptance),
            )
        table.add_section()
    return table
