"""The command line of the decoder: `dspark generate | bench | profile | train`.

What only one command needs is imported there, so that the others need not wait for it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import platformdirs
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from dspark.errors import CheckpointNotFound, DSparkError, InvalidRequest
from dspark.scheduler import SCHEDULES
from dspark.training.ablation_cli import ablate
from dspark.training.cli import train

if TYPE_CHECKING:
    from dspark.bench import Contender, Report
    from dspark.bench.record import Record
    from dspark.bench.sources import Source
    from dspark.generation import Generation
    from dspark.tokenizer import Detokenizer

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
messages = Console(stderr=True, highlight=False, soft_wrap=True)

DEFAULT_TARGET = "smollm2-135m-instruct"
NO_DRAFTER = "none"
FAILED, MISUSED = 1, 2
DTYPES = {"cpu": "float32,bfloat16,int8,int4", "cuda": "float32,bfloat16"}

TargetOption = Annotated[
    str,
    typer.Option(
        metavar="NAME|PATH", help="A model folder, a .gguf file, a hub id, or an installed model."
    ),
]
DrafterOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|PATH",
        help="What proposes tokens; none if not given. auto is what comes with the package for the "
        "target; or a drafter or a small model by its path, prompt-lookup, or layer-skip:LAYERS.",
    ),
]
TreeOption = Annotated[
    str | None,
    typer.Option(
        metavar="SHAPE",
        help="Let it propose a token tree: a number of nodes, widths as 3x2x1, or a chain with "
        "second candidates for its first places, as 5+2; no deeper than its blocks.",
    ),
]
DeviceOption = Annotated[str, typer.Option(help="cpu or cuda.")]
ThreadsOption = Annotated[int, typer.Option(min=1, help="CPU threads of a step.")]
JsonOption = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Also write it as JSON.")
]


@contextmanager
def complaints() -> Iterator[None]:
    """Show an error that is meant for the user, without a traceback, and leave with its code."""
    try:
        yield
    except DSparkError as error:
        messages.print(f"[red]{escape(str(error))}[/red]")
        raise typer.Exit(MISUSED if isinstance(error, InvalidRequest) else FAILED) from None


def find_target(name: str) -> str:
    """What `load_target` is given for a name: an installed model's path, or the name itself.

    Installed models lie in `$ASSISTANT_MODELS` or the user's data folder, each in its own folder.

    Raises:
        CheckpointNotFound: it is none, and can be no path or hub id.
    """
    if "/" in name or Path(name).exists():
        return name
    models = Path(
        os.environ.get("ASSISTANT_MODELS")
        or platformdirs.user_data_path("dspark-assistant") / "models"
    )
    folder = models.expanduser() / name
    if (folder / "config.json").is_file():
        return str(folder)
    for file in sorted(folder.glob("*.gguf")):
        return str(file)
    raise CheckpointNotFound(
        f"there is no model {name!r} in {models}: run `assistant models pull {name}`, or give the "
        "target as a folder, a .gguf file or a hub id (owner/name)"
    )


@app.callback()
def main() -> None:
    """Lossless speculative decoding on your own machine."""


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="What to ask, or to continue with --raw.")],
    target: TargetOption = DEFAULT_TARGET,
    drafter: DrafterOption = None,
    schedule: Annotated[
        str, typer.Option(help=f"How much of a draft is verified: {', '.join(SCHEDULES)}.")
    ] = "confidence",
    tree: TreeOption = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, int8 or int4.")] = "float32",
    device: DeviceOption = "cpu",
    threads: ThreadsOption = 1,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="A system prompt.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text; no chat.")] = False,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 256,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = None,
    stats: Annotated[bool, typer.Option("--stats", help="Then say how fast it was.")] = False,
) -> None:
    """Write an answer as it comes."""
    with complaints():
        source = find_target(target)
        import dspark

        shape = None if tree is None else dspark.TreeShape.parse(tree)
        if shape is not None and drafter in (None, NO_DRAFTER):
            raise InvalidRequest(
                "a tree is what a drafter proposes: give --drafter too, auto for the one that "
                "comes with the package"
            )
        model = dspark.load_target(source, device, dtype, threads)
        draft = None if drafter in (None, NO_DRAFTER) else dspark.load_drafter(drafter, model)
        tokenizer = model.tokenizer
        if raw:
            prompt_ids = tokenizer.encode(prompt)
        else:
            instructions = [] if system is None else [{"role": "system", "content": system}]
            prompt_ids = tokenizer.chat([*instructions, {"role": "user", "content": prompt}])
        params = dspark.SamplingParams(
            temperature=temperature, max_new_tokens=max_new_tokens, seed=seed
        )
        with dspark.Engine(model, draft, schedule, tree=shape, slots=1) as engine:
            summary = _print_answer(engine.submit(prompt_ids, params), tokenizer.detokenizer())
        if stats:
            messages.print(summary)


@app.command()
def profile(
    target: TargetOption = DEFAULT_TARGET,
    drafter: DrafterOption = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, int8 or int4.")] = "float32",
    device: DeviceOption = "cpu",
    threads: ThreadsOption = 1,
    refresh: Annotated[bool, typer.Option("--refresh", help="Measure anew.")] = False,
    json_file: JsonOption = None,
) -> None:
    """Measure what a step costs here, by the number of tokens in it."""
    with complaints():
        source = find_target(target)
        import dspark
        from dspark.step_cost import machine_name, profiled_cost

        model = dspark.load_target(source, device, dtype, threads)
        draft = None if drafter in (None, NO_DRAFTER) else dspark.load_drafter(drafter, model)
        costs = profiled_cost(model, draft, refresh=refresh)
        typer.echo(f"{machine_name(device, threads)}, {dtype}")
        longest = max(costs.step_ms)
        typer.echo("tokens  ms a step")
        for tokens, ms in enumerate(costs.step_ms, 1):
            typer.echo(f"{tokens:6}  {ms:9.2f}  {'█' * round(40 * ms / longest)}")
        for sequences, ms in enumerate(costs.drafting_ms, 1):
            typer.echo(f"drafting for {sequences}: {ms:.2f} ms")
        if json_file is not None:
            _write(json_file, json.dumps({"step_ms": costs.step_ms, "draft_ms": costs.drafting_ms}))


@app.command()
def bench(
    target: TargetOption = DEFAULT_TARGET,
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A prompt a line, or .jsonl; built-in ones otherwise."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Use only the first so many prompts.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(metavar="LIST", help="float32,bfloat16,int8,int4; all by default.")
    ] = None,
    drafter: Annotated[
        list[str] | None, typer.Option(metavar="NAME|PATH", help="May be given several times.")
    ] = None,
    schedule: Annotated[
        str, typer.Option(metavar="LIST", help=f"Of {', '.join(SCHEDULES)}.")
    ] = "full,confidence",
    tree: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="What each drafter proposes: none (no tree), a number of nodes, widths as 3x2x1, "
            "or a chain with second candidates, as 5+2.",
        ),
    ] = "none",
    temperature: Annotated[
        float, typer.Option(min=0, help="Of the answers; above 0 only dspark is compared.")
    ] = 0.0,
    random_weights: Annotated[
        str | None,
        typer.Option(
            metavar="SHAPE|FOLDER",
            help="Instead of a target: a model of this shape (qwen3-4b, …, or a folder with a "
            "config.json) that has learnt nothing. Takes --drafter random.",
        ),
    ] = None,
    systems: Annotated[
        str, typer.Option(metavar="LIST", help="Which to compare.")
    ] = "transformers,prompt-lookup,llama.cpp,dspark",
    repeats: Annotated[int, typer.Option(min=1, help="Rounds; medians count.")] = 3,
    side_by_side: Annotated[
        bool,
        typer.Option(
            "--side-by-side",
            help="Keep all in memory and let them answer each prompt in turn: exact where a "
            "machine's speed drifts.",
        ),
    ] = False,
    max_new_tokens: Annotated[int, typer.Option(min=2)] = 48,
    device: DeviceOption = "cpu",
    threads: ThreadsOption = 1,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="Also write it as JSON, anew after each contender's turn.",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Also draw it as a picture.")
    ] = None,
    plot_costs: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Draw where a token's time goes.")
    ] = None,
) -> None:
    """Compare drafters, and with transformers and llama.cpp: the same prompts, one by one."""
    with complaints():
        for picture in (plot, plot_costs):
            if picture is not None and picture.suffix != ".svg":
                raise InvalidRequest(f"{picture} is no .svg file: pictures are drawn as SVG")
        from dspark.bench.prompts import read_prompts
        from dspark.bench.record import Record
        from dspark.bench.sources import RandomWeights, Stored

        record = None if json_file is None else Record(json_file)
        source: Source = (
            Stored(find_target(target)) if random_weights is None else RandomWeights(random_weights)
        )
        questions = read_prompts(prompts)[:limit]
        report = _compare(
            source,
            questions,
            systems=_listed(systems),
            dtypes=_listed(dtype or DTYPES.get(device.partition(":")[0], DTYPES["cuda"])),
            drafters=drafter or [],
            schedules=_listed(schedule),
            trees=_listed(tree),
            temperature=temperature,
            repeats=repeats,
            side_by_side=side_by_side,
            max_new_tokens=max_new_tokens,
            device=device,
            threads=threads,
            record=record,
        )
        from dspark.bench.chart import svg
        from dspark.bench.cost_chart import costs_svg
        from dspark.bench.table import table

        Console(highlight=False).print(table(report))
        for each in report.skipped:
            messages.print(f"left out {escape(each.system)}: {escape(each.reason)}")
        if record is not None:
            record.finish(report)
        if plot is not None:
            _write(plot, svg(report))
        if plot_costs is not None:
            _write(plot_costs, costs_svg(report))


app.command()(train)
app.command()(ablate)


def _print_answer(generation: Generation, detokenizer: Detokenizer) -> str:
    """Print the text as it comes; returns how fast that was, in a line."""
    begun = time.perf_counter()
    arrivals: list[tuple[float, int]] = []
    for step in generation:
        arrivals.append((time.perf_counter(), len(step.committed)))
        typer.echo(detokenizer.feed(step.committed), nl=False)
    typer.echo(detokenizer.flush())
    times, counts = zip(*arrivals, strict=True)
    summary = f"first token after {1000 * (times[0] - begun):.0f} ms"
    if len(times) > 1:
        tokens = sum(counts[1:])
        summary += f", then {tokens / (times[-1] - times[0]):.1f} tokens/s"
        summary += f" in steps of {tokens / len(counts[1:]):.2f}"
    return summary


def _compare(
    source: Source,
    questions: Sequence[str],
    *,
    systems: Sequence[str],
    dtypes: Sequence[str],
    drafters: Sequence[str],
    schedules: Sequence[str],
    trees: Sequence[str],
    temperature: float,
    repeats: int,
    side_by_side: bool,
    max_new_tokens: int,
    device: str,
    threads: int,
    record: Record | None,
) -> Report:
    """Line up the contenders and measure them; shows and records what each turn came to."""
    from dspark.bench.bandwidth import this_machine
    from dspark.bench.lineup import Wanted, lineup
    from dspark.bench.measurement import Row, Skipped, measure
    from dspark.bench.table import line

    # Loaded once for its tokenizer and its folder, and let go before anything is measured.
    model = source.target(device, "bfloat16", threads)
    prompts = source.prompts(model, questions)
    contenders: Sequence[Contender] = lineup(
        Wanted(
            source=source,
            folder=model.folder,
            stop_token_ids=model.stop_token_ids,
            context_tokens=max(len(each.new) for each in prompts) + max_new_tokens,
            device=device,
            threads=threads,
            systems=systems,
            dtypes=dtypes,
            drafters=drafters,
            schedules=schedules,
            trees=trees,
            temperature=temperature,
        )
    )
    del model

    def on_turn(latest: Row | Skipped, report: Report) -> None:
        if isinstance(latest, Row):
            messages.print(escape(line(latest)))
        if record is not None:
            record.update(report)

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeRemainingColumn(),
        console=messages,
        transient=True,
    ) as progress:
        task = progress.add_task("measuring memory", total=1.0)
        machine = this_machine(device, threads)
        return measure(
            contenders,
            prompts,
            machine,
            repeats=repeats,
            side_by_side=side_by_side,
            max_new_tokens=max_new_tokens,
            threads=threads,
            on_progress=lambda name, done: progress.update(task, description=name, completed=done),
            on_turn=on_turn,
        )


def _listed(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _write(path: Path, content: str) -> None:
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be written: {error}") from error
