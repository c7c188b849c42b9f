"""`assistant bench` on the command line; what it needs is imported once it is asked for."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from assistant import terminal
from assistant.config import load_config
from assistant.errors import UsageError
from assistant.models import check_present

if TYPE_CHECKING:
    from assistant.bench.run import Plan
    from assistant.bench.scores import Played

TURNS = 12


def bench(
    clips: Annotated[
        Path | None,
        typer.Option(
            metavar="MANIFEST.jsonl",
            help="Labelled recordings; without it, those that come with the project.",
        ),
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Only recordings with this tag.")] = None,
    sessions: Annotated[
        str, typer.Option(metavar="N,N…", help="How many speak at once, one after the other.")
    ] = "1,2,4",
    turns: Annotated[
        int, typer.Option(min=1, help="Recordings played to each system, at each of these.")
    ] = TURNS,
    systems: Annotated[
        str | None, typer.Option(metavar="NAME,NAME…", help="Which systems; without it, all.")
    ] = None,
    listen_s: Annotated[
        float, typer.Option(min=0.5, max=60, help="How much of each answer is listened to.")
    ] = 4.0,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write it as JSON.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.svg", help="Also draw where the time of a turn goes."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="A TOML file; without it, the defaults."),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Measure a running server instead of one of its own."),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="ASSISTANT_API_KEY", help="The key that the server at --url asks for."),
    ] = None,
) -> None:
    """Measure how long speakers wait, beside a pipeline in which nothing overlaps.

    Recordings are played in real time to the assistant, to the assistant without speculation, and
    to the naive pipeline, in turn. Ctrl-C ends the run and shows what there is.
    """
    with terminal.complaints():
        if plot is not None and plot.suffix != ".svg":
            raise UsageError(f"--plot {plot}: pictures are drawn as SVG: name it ….svg.")
        for file in filter(None, (json_file, plot)):
            _check_writable(file)
        loaded = load_config(config)
        from assistant.bench.clips import fixture_manifest, read_manifest

        chosen = read_manifest(clips or fixture_manifest(), language=loaded.asr.language, tag=tag)
        check_present(loaded)
        from assistant.bench.run import SYSTEMS, WITHOUT_SPECULATION, Plan

        default = [name for name in SYSTEMS if url is None or name != WITHOUT_SPECULATION]
        plan = Plan(
            systems=default if systems is None else _listed(systems),
            clips=chosen,
            sessions=_numbers(sessions),
            turns=turns,
            listen_s=listen_s,
            config=config,
            url=url,
            api_key=api_key,
        )
        played: list[Played] = []
        with suppress(KeyboardInterrupt), stopped_like_ctrl_c():  # what there is by then is shown
            _carry_out(plan, played)
        if not played:
            raise typer.Exit(terminal.FAILED)
        _show(plan, played, json_file, plot)


@contextmanager
def stopped_like_ctrl_c() -> Iterator[None]:
    """Let whatever else ends the bench, as `timeout` does, leave no server behind either."""
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _carry_out(plan: Plan, played: list[Played]) -> None:
    from assistant.bench.run import measure

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeRemainingColumn(),
        console=terminal.messages,
        transient=True,
    ) as progress:
        task = progress.add_task("", total=1.0)

        def on_progress(what: str, done: float) -> None:
            progress.update(task, description=what, completed=done)

        asyncio.run(measure(plan, played.append, on_progress))


def _show(plan: Plan, played: list[Played], json_file: Path | None, plot: Path | None) -> None:
    from assistant.bench.run import NAIVE, machine
    from assistant.bench.scores import as_json, scores
    from assistant.bench.table import comparisons, count_table, latency_table
    from assistant.bench.waterfall import svg

    results = scores(played)
    console = Console(highlight=False)
    console.print(latency_table(results), "", count_table(results), "", sep="\n")
    for line in comparisons(results, NAIVE):
        console.print(line)
    for turn in played:
        if turn.outcome.error is not None:
            terminal.warn(f"{turn.system}, {turn.clip.path.name}: {turn.outcome.error}")
    if json_file is not None:
        json_file.write_text(as_json(played, machine(), plan.settings()), encoding="utf-8")
    if plot is not None:
        fewest = min(score.sessions for score in results)
        plot.write_text(svg([each for each in results if each.sessions == fewest]), "utf-8")


def _check_writable(file: Path) -> None:
    """Refuse a place before minutes are spent on what goes there."""
    try:
        with file.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error}") from None


def _listed(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _numbers(text: str) -> list[int]:
    try:
        return [int(each) for each in _listed(text)]
    except ValueError:
        raise UsageError(f"--sessions {text}: write numbers, such as 1,2,4.") from None
