"""The command line of training: `dspark train`, all stages or some, each from where it stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from dspark.errors import InvalidRequest

if TYPE_CHECKING:
    from dspark.training.evaluation import Evaluation
    from dspark.training.pipeline import Stage

STAGES = ("dialogues", "features", "fit", "calibrate", "evaluate")
_DIALOGUES, _DRAFTER, _FIT = "Dialogues", "Drafter", "Training"


def train(
    stages: Annotated[
        list[str] | None,
        typer.Argument(metavar="STAGE", help=f"Of {', '.join(STAGES)}; all by default."),
    ] = None,
    target: Annotated[
        str, typer.Option(metavar="NAME|PATH", help="What the drafter shall draft for.")
    ] = "smollm2-135m-instruct",
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="For everything; a run goes on in it.")
    ] = Path("drafter-training"),
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    dtype: Annotated[
        str | None,
        typer.Option(help="In which the target answers; bfloat16 where it is fast, else int8."),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 1,
    seed: Annotated[int, typer.Option(help="Everything follows from it.")] = 0,
    dialogues: Annotated[
        int, typer.Option(min=1, help="How many there shall be.", rich_help_panel=_DIALOGUES)
    ] = 2000,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Requests, one a line; built-in ones otherwise.",
            rich_help_panel=_DIALOGUES,
        ),
    ] = None,
    system: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="A system prompt.", rich_help_panel=_DIALOGUES),
    ] = None,
    self_written: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Share the target writes itself.", rich_help_panel=_DIALOGUES
        ),
    ] = 0.25,
    begun: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="Share of those begun for it as people begin to speak, in English.",
            rich_help_panel=_DIALOGUES,
        ),
    ] = 0.7,
    greedy: Annotated[
        float,
        typer.Option(min=0, max=1, help="Share of greedy answers.", rich_help_panel=_DIALOGUES),
    ] = 0.25,
    temperature: Annotated[
        float, typer.Option(help="Of the other answers.", rich_help_panel=_DIALOGUES)
    ] = 0.7,
    top_p: Annotated[float, typer.Option(rich_help_panel=_DIALOGUES)] = 1.0,
    top_k: Annotated[int, typer.Option(rich_help_panel=_DIALOGUES)] = 0,
    repetition_penalty: Annotated[float, typer.Option(rich_help_panel=_DIALOGUES)] = 1.0,
    max_new_tokens: Annotated[int, typer.Option(min=1, rich_help_panel=_DIALOGUES)] = 128,
    slots: Annotated[
        int, typer.Option(min=1, help="Dialogues at a time.", rich_help_panel=_DIALOGUES)
    ] = 64,
    layers: Annotated[int, typer.Option(min=1, rich_help_panel=_DRAFTER)] = 2,
    block: Annotated[
        int, typer.Option(min=1, help="Tokens a draft.", rich_help_panel=_DRAFTER)
    ] = 5,
    taps: Annotated[
        str | None,
        typer.Option(
            metavar="LIST", help="Target layers it reads; spread.", rich_help_panel=_DRAFTER
        ),
    ] = None,
    rank: Annotated[
        int, typer.Option(min=1, help="Of the sequential head.", rich_help_panel=_DRAFTER)
    ] = 64,
    head: Annotated[
        str, typer.Option(help="none, vanilla, gated or rnn.", rich_help_panel=_DRAFTER)
    ] = "vanilla",
    draft_vocabulary: Annotated[
        int, typer.Option(min=0, help="Tokens it knows; 0 is all.", rich_help_panel=_DRAFTER)
    ] = 8192,
    initial: Annotated[
        str,
        typer.Option(
            help="First weights: target, random, or a drafter's folder.", rich_help_panel=_DRAFTER
        ),
    ] = "target",
    steps: Annotated[int, typer.Option(min=1, rich_help_panel=_FIT)] = 2000,
    batch: Annotated[int, typer.Option(min=1, help="Dialogues a step.", rich_help_panel=_FIT)] = 8,
    anchors: Annotated[
        int, typer.Option(min=1, help="Blocks a dialogue, at most.", rich_help_panel=_FIT)
    ] = 64,
    learning_rate: Annotated[float, typer.Option(rich_help_panel=_FIT)] = 6e-4,
    fit_dtype: Annotated[
        str, typer.Option(help="float32 or bfloat16.", rich_help_panel=_FIT)
    ] = "float32",
    checkpoint_every: Annotated[int, typer.Option(min=1, rich_help_panel=_FIT)] = 100,
    judged: Annotated[
        int, typer.Option(min=1, help="Dialogues to calibrate and to evaluate with, at most.")
    ] = 100,
) -> None:
    """Train a DSpark drafter for a target, from what the target itself says.

    Killed at any moment, the same command goes on where it was. More dialogues or steps later
    are taken up by the same folder.
    """
    from dspark.cli import complaints, find_target

    with complaints():
        chosen = _chosen(stages or STAGES)
        source = find_target(target)
        from dspark.training.batch_decoding import fastest_in_batches
        from dspark.training.dialogues import DialogueSettings
        from dspark.training.fit import FitSettings
        from dspark.training.pipeline import Pipeline, Plan
        from dspark.training.shape import DrafterShape

        plan = Plan(
            folder=out,
            target=source,
            device=device,
            dtype=dtype or fastest_in_batches(device),
            threads=threads,
            slots=slots,
            wanted_dialogues=dialogues,
            judged_dialogues=judged,
            dialogues=DialogueSettings(
                seed=seed,
                instructions=system,
                requests=() if prompts is None else _lines(prompts),
                self_written_share=self_written,
                begun_share=begun,
                greedy_share=greedy,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                repetition_penalty=repetition_penalty,
                max_new_tokens=max_new_tokens,
            ),
            shape=DrafterShape(
                layers=layers,
                block=block,
                taps=() if taps is None else _numbers(taps),
                rank=rank,
                head=head,
                draft_vocabulary=draft_vocabulary,
            ),
            fit=FitSettings(
                steps=steps,
                seed=seed,
                dialogues_per_step=batch,
                anchors=anchors,
                learning_rate=learning_rate,
                initial=initial,
                dtype=fit_dtype,
                checkpoint_every=checkpoint_every,
            ),
        )
        with bars() as on_progress:
            pipeline = Pipeline(plan, on_progress)
            evaluation = pipeline.run(chosen)
        if evaluation is not None:
            Console(highlight=False).print(_table(evaluation))
        if pipeline.drafter_folder.exists():
            typer.echo(f"The drafter is in {pipeline.drafter_folder}")


@contextmanager
def bars() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each name, from when it is first told of."""
    from dspark.cli import messages

    with Progress(
        TextColumn("{task.description:10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=messages,
    ) as progress:
        begun: dict[str, TaskID] = {}

        def on_progress(name: str, done: int, total: int) -> None:
            if name not in begun:
                begun[name] = progress.add_task(name, total=total)
                progress.reset(begun[name], completed=done)  # speed counts from here
            progress.update(begun[name], completed=done, total=total)

        yield on_progress


def _table(evaluation: Evaluation) -> Table:
    """What was measured, by position of the block."""
    table = Table(
        title=f"{evaluation.dialogues} held-out requests: {evaluation.sampled_length:.2f} tokens a "
        f"step at temperature 1, {evaluation.greedy_length:.2f} greedy"
    )
    table.add_column("position")
    rows = (
        ("accepted, temperature 1", evaluation.sampled_acceptance),
        ("accepted, greedy", evaluation.greedy_acceptance),
        ("calibration error of survival, temperature 1", evaluation.calibration_error),
        ("calibration error of survival, greedy", evaluation.greedy_calibration_error),
        ("area under curve", evaluation.area_under_curve),
    )
    for position in range(1, len(evaluation.calibration_error) + 1):
        table.add_column(str(position), justify="right")
    for name, values in rows:
        table.add_row(name, *(f"{value:.3f}" for value in values))
    return table


def _chosen(names: list[str] | tuple[str, ...]) -> list[Stage]:
    from dspark.training.pipeline import Stage

    for name in names:
        if name not in STAGES:
            raise InvalidRequest(f"there is no stage {name!r}; there are {', '.join(STAGES)}")
    return [Stage(name) for name in names]


def _lines(path: Path) -> tuple[str, ...]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error}") from error
    requests = tuple(line.strip() for line in lines if line.strip())
    if not requests:
        raise InvalidRequest(f"{path} holds no requests: write one a line")
    return requests


def _numbers(listed: str) -> tuple[int, ...]:
    try:
        return tuple(int(each) for each in listed.split(","))
    except ValueError:
        raise InvalidRequest(f"the taps are {listed!r}; give numbers such as 1,14,27") from None
