"""How often each way of ending turns cuts speakers off, and how long it lets them wait.

    python -m assistant.evaluate_endpoint recordings/manifest.jsonl --chart endpoint.svg

Each line of the manifest is a JSON object with `file` (relative to the manifest), `kind` ("noise"
for sounds without speech), `lang`, and `vad_auto`, the voiced spans in seconds.  Every recording is
spoken to the dialogue core in virtual time.  It is a *cut-in* if a turn ends before the last voiced
span does; the *wait* is from there to the end of the turn.  Recordings of several people talking
(`--several NAME…`), in which turns change, are counted apart.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from assistant.config import load_config
from assistant.endpoint_chart import Curve, Point, svg
from assistant.endpoint_replay import Recording, Stages, replay
from assistant.language import EngineLanguageModel
from assistant.models import resolve
from assistant.settings import CAUTION, Settings, TurnDetection
from assistant.stages import load_engine, sampling
from audio.endpoint import SemanticEndpointer
from audio.transcriber import load_whisper
from audio.vad import load_vad

FIXED_MS = (200, 500, 800)
SWEPT_MS = (200, 256, 320, 400, 500, 600, 700, 800, 900, 1000, 1200, 1500)
SWEPT_CAUTION = (-3.0, -1.2, -0.8, -0.6, -0.4, -0.2, 0.0, 0.2, 0.4, 0.6, 0.8, 1.2, 3.0)
WORDS = "by the words"
T = TypeVar("T")


@dataclass(frozen=True)
class Clip:
    """A recording, and where somebody speaks in it."""

    path: Path
    voiced: tuple[tuple[float, float], ...]
    several_people: bool

    @property
    def speech_end_s(self) -> float:
        """The end of the last voiced span."""
        return self.voiced[-1][1]

    @property
    def half(self) -> int:
        """One of two halves, by the file's name: a rule found on one is tested on the other."""
        return hashlib.sha256(self.path.name.encode()).digest()[0] % 2

    @property
    def groups(self) -> Iterator[str]:
        """The lines of the table that count this recording."""
        if self.several_people:
            yield "several people"
            return
        yield "inner pauses" if len(self.voiced) > 1 else "no inner pauses"
        yield "one speaker"
        yield f"one speaker, half {'AB'[self.half]}"


GROUPS = (
    "one speaker",
    "one speaker, half A",
    "one speaker, half B",
    "inner pauses",
    "no inner pauses",
    "several people",
)


@dataclass(frozen=True)
class Score:
    """One way of ending turns on one group of recordings."""

    kind: str
    group: str
    clips: int
    unheard: int
    """Recordings in which no turn was noticed."""
    cut_ins: int
    median_wait_ms: float
    mean_wait_ms: float
    p90_wait_ms: float

    @property
    def cut_in_rate(self) -> float:
        """The share of recordings that were cut."""
        return self.cut_ins / self.clips


def read_manifest(manifest: Path, several: Sequence[str] = ()) -> list[Clip]:
    """The English speech of a manifest; `several` names recordings in which several people talk."""
    clips = []
    for line in manifest.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["kind"] == "noise" or row.get("lang") != "en" or not row.get("vad_auto"):
            continue
        path = manifest.parent / row["file"]
        voiced = tuple((begin, end) for begin, end in row["vad_auto"])
        clips.append(Clip(path, voiced, path.stem in several))
    return clips


def kinds(semantic: SemanticEndpointer) -> dict[str, TurnDetection]:
    """The ways of ending turns that the table compares."""
    fixed = {f"fixed {ms} ms": TurnDetection(silence_ms=ms) for ms in FIXED_MS}
    by_words = {
        f"{WORDS}, {eagerness}": TurnDetection(semantic=replace(semantic, caution=caution))
        for eagerness, caution in CAUTION.items()
        if eagerness != "auto"
    }
    return fixed | by_words


class Evaluation:
    """Plays the recordings under one way of ending turns after another."""

    def __init__(self, clips: Sequence[Clip], recordings: Sequence[Recording], stages: Stages):
        self._played = list(zip(clips, recordings, strict=True))
        self._stages = stages

    def scores(self, kind: str, detection: TurnDetection) -> list[Score]:
        """Return a score for each group of recordings."""
        settings = Settings(turn_detection=replace(detection, create_response=False))
        waits: dict[str, list[float | None]] = {group: [] for group in GROUPS}
        for clip, recording in self._played:
            wait_ms = wait_of(replay(recording, self._stages, settings), clip.speech_end_s)
            for group in clip.groups:
                waits[group].append(wait_ms)
        return [score(kind, group, each) for group, each in waits.items() if each]

    def cut(self, detection: TurnDetection) -> list[str]:
        """Return the names of the recordings of one speaker that are cut."""
        settings = Settings(turn_detection=replace(detection, create_response=False))
        return [
            clip.path.stem
            for clip, recording in self._played
            if not clip.several_people
            and is_cut(wait_of(replay(recording, self._stages, settings), clip.speech_end_s))
        ]


def wait_of(ends_s: Sequence[float], speech_end_s: float) -> float | None:
    """Return how long the speaker waited, in milliseconds.

    It is negative for a cut-in, and None if no turn was noticed.
    """
    return (ends_s[0] - speech_end_s) * 1000 if ends_s else None


def is_cut(wait_ms: float | None) -> bool:
    """Whether the turn ended before the speaker did."""
    return wait_ms is not None and wait_ms < 0


def score(kind: str, group: str, waits: Sequence[float | None]) -> Score:
    """Sum up; who was cut did not wait."""
    waited = [wait for wait in waits if wait is not None and wait >= 0] or [float("nan")]
    return Score(
        kind=kind,
        group=group,
        clips=len(waits),
        unheard=sum(wait is None for wait in waits),
        cut_ins=sum(map(is_cut, waits)),
        median_wait_ms=float(np.median(waited)),
        mean_wait_ms=float(np.mean(waited)),
        p90_wait_ms=float(np.percentile(waited, 90)),
    )


def curves(evaluation: Evaluation, semantic: SemanticEndpointer) -> list[Curve]:
    """Cut-ins against the mean wait, over silences and over how complete words must sound."""

    def point(label: str, detection: TurnDetection) -> Point:
        total = evaluation.scores(label, detection)[0]
        return Point(label, total.mean_wait_ms, total.median_wait_ms, 100 * total.cut_in_rate)

    fixed = [point(f"{ms} ms", TurnDetection(silence_ms=ms)) for ms in SWEPT_MS]
    by_words = [
        point(f"{caution:+.1f}", TurnDetection(semantic=replace(semantic, caution=caution)))
        for caution in SWEPT_CAUTION
    ]
    return [Curve("the same silence always", tuple(fixed)), Curve(WORDS, tuple(by_words))]


def progress(items: Sequence[T], what: str) -> Iterable[T]:
    """Show on the terminal how far it has come."""
    return track(items, what, console=Console(stderr=True))


def print_scores(scores: Sequence[Score]) -> None:
    """The scores as a table on the terminal."""
    table = Table("turns end", "recordings", "", "cut-ins", "", "median", "mean", "p90 wait, ms")
    for each in scores:
        table.add_row(
            each.kind,
            each.group,
            str(each.clips),
            str(each.cut_ins),
            f"{100 * each.cut_in_rate:.1f} %",
            f"{each.median_wait_ms:.0f}",
            f"{each.mean_wait_ms:.0f}",
            f"{each.p90_wait_ms:.0f}",
        )
    Console().print(table)


def main() -> None:
    """Read the command line and print the table."""
    parser = argparse.ArgumentParser(prog="python -m assistant.evaluate_endpoint")
    parser.description = __doc__
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("manifest", type=Path, help="the labelled recordings, one JSON per line")
    parser.add_argument("--config", type=Path, help="the models to ask")
    parser.add_argument("--several", nargs="*", default=[], help="recordings of several people")
    parser.add_argument("--chart", type=Path, help="write cut-ins against waits as SVG")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    config = load_config(arguments.config)
    semantic = config.endpoint.semantic or SemanticEndpointer()
    clips = read_manifest(arguments.manifest, arguments.several)
    whisper = load_whisper(resolve(config.asr.model, "asr"), device=config.asr.device)
    whisper.warm_up()
    target, engine = load_engine(config)
    with engine:
        language = EngineLanguageModel(
            engine, target.tokenizer, sampling(config), context_tokens=config.llm.context_tokens
        )
        stages = Stages(load_vad(), whisper, language)
        recordings = [stages.open(clip.path) for clip in progress(clips, "Listening")]
        evaluation = Evaluation(clips, recordings, stages)
        scores = [
            each
            for kind, detection in progress(list(kinds(semantic).items()), "Playing")
            for each in evaluation.scores(kind, detection)
        ]
        cut = evaluation.cut(TurnDetection(semantic=semantic))
        if arguments.chart:
            arguments.chart.write_text(svg(curves(evaluation, semantic)), encoding="utf-8")
    if arguments.json:
        print(json.dumps({"scores": [asdict(each) for each in scores], "cut": cut}, indent=2))
    else:
        print_scores(scores)
        print("Cut by the words:", ", ".join(cut) or "none")


if __name__ == "__main__":
    main()
