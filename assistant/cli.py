"""The command line: `assistant serve | ask | talk | bench | models`.

Everything heavy is imported where it is used, so that help and mistakes come at once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from assistant import terminal
from assistant.addresses import is_loopback
from assistant.bench.command import bench
from assistant.config import ENVIRONMENT_PREFIX, load_config
from assistant.errors import ModelDamaged, ModelMissing, UsageError
from assistant.models import (
    REGISTRY,
    HubModel,
    Model,
    PackagedModel,
    check_present,
    find,
    models_folder,
    models_of,
)
from assistant.pull import pull as pull_model
from assistant.replies import Turn

if TYPE_CHECKING:
    from assistant.ask import Outcome
    from assistant.client import Dialogue

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
models_app = typer.Typer(no_args_is_help=True)
app.add_typer(models_app, name="models", help="List, fetch and check the models.")

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="A TOML file; without it, the defaults."),
]
UrlOption = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Use a running server instead of loading the models."),
]
KeyOption = Annotated[
    str | None,
    typer.Option(envvar="ASSISTANT_API_KEY", help="The key that the server at --url asks for."),
]
NamesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", help="Without names: those of the configuration."),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("dspark-assistant"))
        raise typer.Exit


@app.callback()
def main(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """A real-time voice assistant that runs on your own machine."""


@app.command()
def serve(
    config: ConfigOption = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65_535, help="0 picks a free one.")] = None,
) -> None:
    """Serve the web page and the realtime protocol until interrupted."""
    with terminal.complaints():
        loaded = load_config(config)
        given = {"host": host, "port": port}
        changes = {key: value for key, value in given.items() if value is not None}
        loaded = loaded.model_copy(update={"server": loaded.server.model_copy(update=changes)})
        check_present(loaded)
        if not loaded.server.api_keys and not is_loopback(loaded.server.host):
            terminal.warn(
                f"Anybody who reaches this machine at {loaded.server.host} can talk to it: set "
                f"[server] api_keys, or {ENVIRONMENT_PREFIX}SERVER__API_KEYS='[\"a key\"]'."
            )
        with terminal.LoadingDisplay(logged=True) as display:
            from assistant.server import serve as serve_until_interrupted

            def announce(line: str) -> None:
                display.stop()
                typer.echo(line)

            serve_until_interrupted(loaded, announce=announce, on_progress=display.show)


@app.command()
def ask(
    words: Annotated[
        list[str], typer.Argument(metavar="TEXT...", help="The question, or with --wav, files.")
    ],
    wav: Annotated[
        bool, typer.Option("--wav", help="TEXT... are recordings; each is a dialogue of its own.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Write the spoken answer to this WAV file, or folder."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object a line for each answer.")
    ] = False,
    realtime: Annotated[
        bool,
        typer.Option("--realtime", help="Send recordings as fast as they would be spoken."),
    ] = False,
    config: ConfigOption = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Ask something, in writing or with recordings, and print the answer."""
    with terminal.complaints():
        _check_together(config, url)
        if realtime and not wav:
            raise UsageError("--realtime is for recordings: give some with --wav.")
        from assistant.ask import outcomes, recorded, without_sound, written

        questions = recorded(words, out) if wav else [written(words, out)]
        all_answered = True

        def show(outcome: Outcome) -> None:
            nonlocal all_answered
            _print_json(outcome) if as_json else _print_outcome(outcome)
            all_answered &= outcome.error is None

        async def answer_all() -> None:
            async with _dialogues(config, url, api_key) as open_dialogue:
                async for outcome in outcomes(questions, open_dialogue, realtime=realtime):
                    show(outcome)

        for outcome in without_sound(questions):  # told before the models load
            show(outcome)
            questions.remove(outcome.question)
        if questions:
            asyncio.run(answer_all())
        if not all_answered:
            raise typer.Exit(terminal.FAILED)


@app.command()
def talk(
    config: ConfigOption = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Talk through this machine's microphone and loudspeaker (headphones are better)."""
    with terminal.complaints():
        _check_together(config, url)
        from assistant.talk import LEAD_MS, converse, open_devices

        async def hold_conversation() -> None:
            with open_devices() as devices:
                async with (
                    _dialogues(config, url, api_key, playback_lead_ms=LEAD_MS) as open_dialogue,
                    open_dialogue() as dialogue,
                ):
                    typer.echo("Listening. Ctrl-C ends the conversation.")
                    await converse(dialogue, devices, show=typer.echo)

        asyncio.run(hold_conversation())


app.command()(bench)


@models_app.command("list")
def list_models() -> None:
    """List the models known by name, and where they are."""
    with terminal.complaints():
        typer.echo(f"Packaged models are kept in {models_folder()}")
        table = Table(box=None, pad_edge=False)
        for heading in ("name", "for", "size", "licence", "where"):
            table.add_column(heading, no_wrap=True)
        for model in REGISTRY:
            size = terminal.megabytes(model.size_bytes)
            table.add_row(model.name, model.kind, size, model.licence, _place(model))
        Console(highlight=False).print(table)


@models_app.command("pull")
def pull_models(
    names: NamesArgument = None,
    again: Annotated[bool, typer.Option(help="Replace models that are here already.")] = False,
    config: ConfigOption = None,
) -> None:
    """Fetch models: those named, or those that a configuration uses."""
    with terminal.complaints():
        chosen = _chosen(names, config)
        with terminal.pulling() as on_progress:
            for model in chosen:
                pull_model(model, on_progress, again=again)


@models_app.command("verify")
def verify_models(names: NamesArgument = None, config: ConfigOption = None) -> None:
    """Check the contents of installed models against what was published."""
    with terminal.complaints():
        faulty = False
        for model in _chosen(names, config):
            try:
                typer.echo(f"{model.name}: {_verified(model)}")
            except (ModelMissing, ModelDamaged) as error:
                terminal.complain(str(error))
                faulty = True
        if faulty:
            raise typer.Exit(terminal.FAILED)


def _check_together(config: Path | None, url: str | None) -> None:
    if config is not None and url is not None:
        raise UsageError(
            "--config is for models loaded here, and --url for a server, which has its own: give "
            "one of them."
        )


def _chosen(names: list[str] | None, config: Path | None) -> list[Model]:
    return [find(name) for name in names] if names else models_of(load_config(config))


def _verified(model: Model) -> str:
    """Say what is known of an installed model. Raises `ModelMissing` or `ModelDamaged`."""
    if isinstance(model, PackagedModel):
        model.verify(models_folder())
        return "as published"
    if model.cached_folder() is None:
        raise ModelMissing(
            f"{model.name} is not in the hub's cache: run `assistant models pull {model.name}`."
        )
    return "in the hub's cache, whose contents are not checked here"


def _place(model: Model) -> str:
    if isinstance(model, HubModel):
        return "hub cache" if model.cached_folder() else "not here"
    return "here" if model.is_present(models_folder()) else "not here"


@asynccontextmanager
async def _dialogues(
    config: Path | None, url: str | None, api_key: str | None, playback_lead_ms: int | None = None
) -> AsyncIterator[Callable[[], AbstractAsyncContextManager[Dialogue]]]:
    """Yield what opens a dialogue: with the server at `url`, or on models loaded here."""
    from assistant.client import Assistant, connect

    if url is not None:
        yield lambda: connect(url, api_key, playback_lead_ms=playback_lead_ms)
        return
    loaded = load_config(config)
    check_present(loaded)
    with terminal.LoadingDisplay() as display:
        async with Assistant.open(loaded, display.show) as assistant:
            display.stop()
            yield lambda: assistant.dialogue(playback_lead_ms=playback_lead_ms)


def _print_json(outcome: Outcome) -> None:
    typer.echo(json.dumps(outcome.as_json(), ensure_ascii=False))


def _print_outcome(outcome: Outcome) -> None:
    """Print an answer for people, with its recording's name where there is one."""
    question, reply = outcome.question, outcome.reply
    cut = " … (cut at the length limit)" if reply and reply.status == "incomplete" else ""
    if question.wav is not None:
        typer.echo(question.wav)
    if outcome.error is not None:
        terminal.complain(outcome.error)
    elif isinstance(reply, Turn) and reply.rejection is not None:
        typer.echo(f"  (no words were recognised: {reply.rejection})")
    elif isinstance(reply, Turn):
        typer.echo(f"  you        {reply.transcript}\n  assistant  {reply.text}{cut}")
    elif reply is not None:
        typer.echo(f"{reply.text}{cut}")
    if reply is not None and reply.audio and question.out is not None:
        typer.echo(f"  written to {question.out}")
