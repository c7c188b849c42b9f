"""Scores what `assistant ask --wav … --json --out FOLDER` wrote: words, sounds, times.

    assistant ask --wav --realtime --json --out answers CLIPS… > answers/answers.jsonl
    python -m tests.real.score_answers answers/answers.jsonl MANIFEST.jsonl

prints a Markdown table.  The spoken answers are transcribed by faster-whisper's own `transcribe`
(beam 5), so that neither our windows nor our guards judge our own voice.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import median, quantiles

from faster_whisper import WhisperModel

from assistant.models import resolve
from audio.pcm import Resampler, read_audio
from audio.words import normalise, word_errors

LATENCIES = ("endpoint_wait_ms", "added_latency_ms", "server_ttfa_ms")


def spoken_words(recogniser: WhisperModel, path: Path) -> list[str]:
    """Return the words that a stock recogniser hears in a recording."""
    samples, rate_hz = read_audio(path)
    segments, _ = recogniser.transcribe(Resampler(rate_hz, 16_000).feed(samples), language="en")
    return normalise(" ".join(segment.text for segment in segments))


def quantile_row(name: str, values: list[float]) -> str:
    """Return a table row with the median and the ninth decile."""
    ninth = quantiles(values, n=10)[-1] if len(values) > 1 else values[0]
    return f"| {name} | {median(values):.0f} | {ninth:.0f} | {max(values):.0f} |"


def report(rows: Iterable[dict[str, object]], references: dict[str, str]) -> str:
    """Return the tables for the answers in `rows`."""
    recogniser = WhisperModel(str(resolve("whisper-tiny.en", "asr")), compute_type="int8")
    heard_errors = heard_words = said_errors = said_words = 0
    latencies: dict[str, list[float]] = {name: [] for name in LATENCIES}
    lines = [
        "| clip | understood | answer | errors in the spoken answer | server TTFA, ms |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        clip = Path(str(row["wav"])).name
        timeline = row.get("timeline")
        if not isinstance(timeline, dict) or not row.get("reply"):
            lines.append(
                f"| {clip} | {row.get('transcript', '')} | – | {row.get('rejection')} | – |"
            )
            continue
        reference, answer = normalise(references[clip]), normalise(str(row["reply"]))
        heard_errors += word_errors(reference, normalise(str(row["transcript"])))
        heard_words += len(reference)
        errors = word_errors(answer, spoken_words(recogniser, Path(str(row["out"]))))
        said_errors += errors
        said_words += len(answer)
        for name in LATENCIES:
            latencies[name].append(float(timeline[name]))
        reply = str(row["reply"]).replace("\n", " ").replace("|", "\\|")
        lines.append(
            f"| {clip} | {row['transcript']} | {reply} | {errors} of {len(answer)} | "
            f"{timeline['server_ttfa_ms']:.0f} |"
        )
    summary = [
        f"Words understood: WER {heard_errors / heard_words:.3f} over {heard_words} words.  "
        f"Answers spoken: WER {said_errors / said_words:.3f} over {said_words} words.",
        "",
        "| latency, ms | median | p90 | max |",
        "| --- | --- | --- | --- |",
        *(quantile_row(f"`{name.removesuffix('_ms')}`", latencies[name]) for name in LATENCIES),
        "",
    ]
    return "\n".join([*summary, *lines])


def main() -> None:
    """Print the report on the files named on the command line."""
    if len(sys.argv) != 3:
        sys.exit("usage: python -m tests.real.score_answers ANSWERS.jsonl MANIFEST.jsonl")
    answers, manifest = map(Path, sys.argv[1:])
    rows = [json.loads(line) for line in answers.read_text("utf-8").splitlines()]
    clips = [json.loads(line) for line in manifest.read_text("utf-8").splitlines()]
    print(report(rows, {Path(clip["file"]).name: clip["text"] for clip in clips}))


if __name__ == "__main__":
    main()
