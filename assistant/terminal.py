"""What the command line shows while it works: progress, and mistakes in a line each.

All of it goes to standard error; standard output belongs to the answers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

from assistant.errors import AssistantError, UsageError
from assistant.pull import PullProgress

if TYPE_CHECKING:
    from assistant.stages import StageProgress

messages = Console(stderr=True, highlight=False, soft_wrap=True)

FAILED = 1
MISUSED = 2

_STAGE_WORDS = {
    "vad": "speech detector",
    "asr": "speech recogniser",
    "llm": "language model",
    "tts": "voice",
}


def complain(message: str) -> None:
    """Show what went wrong."""
    messages.print(f"[red]{escape(message)}[/red]")


def warn(message: str) -> None:
    """Show what may not be meant."""
    messages.print(f"[yellow]{escape(message)}[/yellow]")


@contextmanager
def complaints() -> Iterator[None]:
    """Show an error that is meant for the user, without a traceback, and leave with its code."""
    try:
        yield
    except typer.Exit:
        raise
    except AssistantError as error:
        complain(str(error))
        raise typer.Exit(MISUSED if isinstance(error, UsageError) else FAILED) from None
    except Exception as error:
        if not isinstance(error, _other_errors_for_users()):
            raise
        complain(str(error))
        raise typer.Exit(FAILED) from None


def _other_errors_for_users() -> tuple[type[Exception], ...]:
    """Return the errors of the other packages that can have been raised.

    What was not imported raised nothing, and importing it now would bring torch for a message.
    """
    families = (("audio.errors", "AudioError"), ("dspark.errors", "DSparkError"))
    return tuple(getattr(sys.modules[home], name) for home, name in families if home in sys.modules)


class LoadingDisplay:
    """Shows which stage is being loaded, until `stop`.

    `logged` says that the log tells which stage is ready, so that it is not said twice.
    """

    def __init__(self, *, logged: bool = False) -> None:
        self._logged = logged
        self._status = messages.status("Starting …")

    def __enter__(self) -> LoadingDisplay:
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Make room for what follows the loading."""
        self._status.stop()

    def show(self, progress: StageProgress) -> None:
        """Note that a stage began to load, or is ready."""
        name = _STAGE_WORDS[progress.stage]
        if progress.state == "loading":
            self._status.update(f"Loading the {name} …")
        elif not self._logged:
            messages.print(f"[dim]{name} ready after {progress.seconds:.1f} s[/dim]")


@contextmanager
def pulling() -> Iterator[Callable[[PullProgress], None]]:
    """Show how far each model is: bars on a terminal, a line for each step elsewhere."""
    if not messages.is_terminal:
        shown: set[tuple[str, str]] = set()

        def show_line(progress: PullProgress) -> None:
            if (progress.name, progress.step) not in shown:
                shown.add((progress.name, progress.step))
                size = f", {megabytes(progress.total_bytes)}" if progress.total_bytes else ""
                messages.print(f"{progress.name}: {progress.step}{size}")

        yield show_line
        return
    columns = (
        TextColumn("{task.fields[model]:<24}"),
        BarColumn(),
        DownloadColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=messages) as bars:
        tasks: dict[str, TaskID] = {}

        def show_bar(progress: PullProgress) -> None:
            if progress.name not in tasks:
                tasks[progress.name] = bars.add_task("", model=progress.name)
            total = progress.total_bytes
            done = progress.done_bytes
            if progress.step in ("present", "installed"):
                done = total = total or 1
            bars.update(
                tasks[progress.name], description=progress.step, completed=done, total=total
            )

        yield show_bar


def megabytes(size_bytes: int | None) -> str:
    """Write a size for people."""
    return "?" if size_bytes is None else f"{size_bytes / 1e6:,.0f} MB"
