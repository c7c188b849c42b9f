"""How well and how fast labelled recordings are heard, beside Whisper's usual 30 s path.

Each recording is recognised in three ways: by the usual path and by the fitted window, both once it
is over, and by the streaming recogniser while it plays.

    python -m audio.evaluate recordings/manifest.jsonl --model whisper-folder

Each line of the manifest is a JSON object with `file` (relative to the manifest), `kind`
("noise" for sounds without speech), `lang`, `text` and `text_source` ("source" when the label
comes with the recording, else it was written by listening).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import faster_whisper
import numpy as np
from rich.console import Console
from rich.table import Table

from audio.pcm import Samples, read_audio, resample
from audio.replay import replay
from audio.transcriber import SAMPLE_RATE_HZ, Transcriber, Whisper, load_whisper
from audio.vad import load_vad
from audio.words import normalise, word_errors

STREAMING = "streaming"
FITTED = "fitted window"
USUAL = "30 s window, beam 1"


@dataclass(frozen=True)
class Clip:
    """One labelled recording."""

    path: Path
    text: str | None
    """What is said in it; None for a noise."""
    label_is_original: bool
    """Whether the label came with the recording."""

    def samples(self) -> Samples:
        """The sound at 16 kHz."""
        return resample(*read_audio(self.path), SAMPLE_RATE_HZ)


@dataclass(frozen=True)
class Hearing:
    """What one recogniser made of one clip."""

    clip: Clip
    text: str
    seconds: float
    milliseconds: float
    """Processor time of the attempt whose words counted …"""
    attempts: int = 1
    total_ms: float = 0.0
    """… and of all attempts."""
    heard_before_end: bool = False
    """No attempt had to begin after the end of the speech."""

    @property
    def errors(self) -> int:
        """Word errors against the label."""
        return word_errors(normalise(self.clip.text or ""), normalise(self.text))


@dataclass(frozen=True)
class Score:
    """One line of the result: one recogniser on one set of clips."""

    recogniser: str
    labels: str
    clips: int
    audio_seconds: float
    word_error_rate: float
    exact: float
    """Share of the clips without any word error."""
    mean_ms: float
    p95_ms: float
    compute_ratio: float
    """Processor seconds per second of sound, for the attempts whose words counted."""
    total_compute_ratio: float
    """The same for all attempts."""
    attempts: float
    """Attempts for each clip."""
    heard_before_end: float
    """Share of the clips for which no attempt began after the end of the speech."""


@dataclass(frozen=True)
class Report:
    """Everything that was measured."""

    scores: list[Score]
    noise_clips: int
    noise_clips_with_text: dict[str, int]
    short_answers: int
    short_answers_heard: dict[str, int]
    """One-word clips whose word came out right, by recogniser."""


def read_manifest(manifest: Path) -> list[Clip]:
    """The English speech and the noises of a manifest; recordings without a label are left out."""
    clips = []
    for line in manifest.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        is_noise = row["kind"] == "noise"
        if is_noise or (row.get("lang") == "en" and row.get("text")):
            text = None if is_noise else row["text"]
            path = manifest.parent / row["file"]
            clips.append(Clip(path, text, row.get("text_source") == "source"))
    return clips


Recogniser = Callable[[Clip, Samples], Hearing]


def usual_recogniser(model: Path | str, threads: int = 1) -> Recogniser:
    """faster-whisper's own `transcribe`, greedy, on the same weights."""
    whisper = faster_whisper.WhisperModel(
        str(model), device="cpu", compute_type="int8", cpu_threads=threads
    )

    def transcribe(samples: Samples) -> str:
        segments, _ = whisper.transcribe(samples, language="en", beam_size=1)
        return " ".join(segment.text.strip() for segment in segments)

    return at_once(transcribe)


def at_once(transcribe: Callable[[Samples], str]) -> Recogniser:
    """Recognise a whole clip when it is over."""

    def hear(clip: Clip, samples: Samples) -> Hearing:
        begin = time.process_time()
        text = transcribe(samples)
        took_ms = (time.process_time() - begin) * 1000
        seconds = len(samples) / SAMPLE_RATE_HZ
        return Hearing(clip, text, seconds, took_ms, total_ms=took_ms)

    return hear


def while_it_plays(transcriber: Transcriber) -> Recogniser:
    """Recognise a clip while it is being spoken."""
    vad = load_vad()

    def hear(clip: Clip, samples: Samples) -> Hearing:
        played = replay(samples, transcriber, vad)
        took_ms = played.attempts_ms or [0.0]
        return Hearing(
            clip,
            played.text,
            len(samples) / SAMPLE_RATE_HZ,
            took_ms[-1],
            len(played.attempts_ms),
            sum(took_ms),
            played.heard_before_end,
        )

    return hear


def hear(
    clips: Sequence[Clip], recognisers: dict[str, Recogniser]
) -> Iterator[tuple[str, Hearing]]:
    """Give every clip to every recogniser in turn, so that a busy moment hits all of them."""
    for clip in clips:
        samples = clip.samples()
        for name, recogniser in recognisers.items():
            yield name, recogniser(clip, samples)


def evaluate(whisper: Whisper, model: Path | str, clips: Sequence[Clip]) -> Report:
    """Run the recogniser in both ways, and the usual path, over the clips."""
    whisper.warm_up()
    recognisers = {
        STREAMING: while_it_plays(whisper),
        FITTED: at_once(lambda samples: whisper.transcribe(samples).text),
        USUAL: usual_recogniser(model),
    }
    heard: dict[str, list[Hearing]] = {name: [] for name in recognisers}
    for name, hearing in hear(clips, recognisers):
        heard[name].append(hearing)
    speech = {name: [h for h in each if h.clip.text is not None] for name, each in heard.items()}
    noise = {name: [h for h in each if h.clip.text is None] for name, each in heard.items()}
    short = {
        name: [h for h in each if len(normalise(h.clip.text or "")) == 1]
        for name, each in speech.items()
    }
    scores = []
    for labels, chosen in (("original", (True,)), ("all", (True, False))):
        for name, each in speech.items():
            selected = [h for h in each if h.clip.label_is_original in chosen]
            if selected:
                scores.append(score(name, labels, selected))
    return Report(
        scores=scores,
        noise_clips=len(noise[FITTED]),
        noise_clips_with_text={n: sum(bool(h.text) for h in each) for n, each in noise.items()},
        short_answers=len(short[FITTED]),
        short_answers_heard={n: sum(not h.errors for h in each) for n, each in short.items()},
    )


def score(recogniser: str, labels: str, hearings: Sequence[Hearing]) -> Score:
    """Sum up; the word error rate is over all words together, not a mean of rates."""
    milliseconds = [h.milliseconds for h in hearings]
    seconds = sum(h.seconds for h in hearings)
    return Score(
        recogniser=recogniser,
        labels=labels,
        clips=len(hearings),
        audio_seconds=round(seconds, 1),
        word_error_rate=sum(h.errors for h in hearings)
        / sum(len(normalise(h.clip.text or "")) for h in hearings),
        exact=sum(not h.errors for h in hearings) / len(hearings),
        mean_ms=float(np.mean(milliseconds)),
        p95_ms=float(np.percentile(milliseconds, 95)),
        compute_ratio=sum(milliseconds) / 1000 / seconds,
        total_compute_ratio=sum(h.total_ms for h in hearings) / 1000 / seconds,
        attempts=sum(h.attempts for h in hearings) / len(hearings),
        heard_before_end=sum(h.heard_before_end for h in hearings) / len(hearings),
    )


def print_report(report: Report) -> None:
    """The report as a table on the terminal."""
    titles = "recogniser,labels,clips,WER,exact,ms,p95,compute,in total,attempts,heard before end"
    table = Table(*titles.split(","))
    for line in report.scores:
        table.add_row(
            line.recogniser,
            line.labels,
            str(line.clips),
            f"{line.word_error_rate:.3f}",
            f"{line.exact:.2f}",
            f"{line.mean_ms:.0f}",
            f"{line.p95_ms:.0f}",
            f"{line.compute_ratio:.3f}",
            f"{line.total_compute_ratio:.3f}",
            f"{line.attempts:.1f}",
            f"{line.heard_before_end:.2f}",
        )
    console = Console()
    console.print(table)
    for name, count in report.noise_clips_with_text.items():
        console.print(f"{name}: text on {count} of {report.noise_clips} noises")
    for name, count in report.short_answers_heard.items():
        console.print(f"{name}: {count} of {report.short_answers} one-word clips right")


def main() -> None:
    """Read the command line and print the report."""
    parser = argparse.ArgumentParser(prog="python -m audio.evaluate", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("manifest", type=Path, help="the labelled recordings, one JSON per line")
    parser.add_argument("--model", required=True, help="Whisper folder (CTranslate2) or hub id")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    report = evaluate(
        load_whisper(arguments.model), arguments.model, read_manifest(arguments.manifest)
    )
    if arguments.json:
        print(json.dumps(asdict(report), indent=2))
    else:
        print_report(report)


if __name__ == "__main__":
    main()
