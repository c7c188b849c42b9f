"""The figures as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.table import Table

from assistant.bench.scores import LATENCIES, Percentiles, Score

_LATENCY_HEADINGS = {
    "server_ttfa_ms": "first sound sent",
    "client_ttfa_ms": "… heard",
    "endpoint_wait_ms": "wait for the end",
    "added_latency_ms": "added to that",
}
_COUNT_HEADINGS = ("turns", "cut-ins", "WER", "hit", "miss", "wasted", "tokens/step", "gaps")


def latency_table(scores: Sequence[Score]) -> Table:
    """How long speakers waited: a line for each system and number of sessions."""
    result = _table("ms from the user's last sound: p50/p90/p99", _LATENCY_HEADINGS.values())
    for score in scores:
        latencies = (_percentiles(getattr(score, name)) for name in LATENCIES)
        result.add_row(score.system, str(score.sessions), *latencies)
    return result


def count_table(scores: Sequence[Score]) -> Table:
    """What else was counted, in the same order."""
    result = _table(
        "answered; speculation, and the tokens it wasted; gaps in the sound", _COUNT_HEADINGS
    )
    for score in scores:
        speculation = score.speculation
        result.add_row(
            score.system,
            str(score.sessions),
            f"{score.answered} of {score.turns}",
            str(score.cut_ins),
            f"{100 * score.wer:.1f} %",
            str(speculation["hit"]),
            str(speculation["miss"]),
            str(speculation["wasted_tokens"]),
            f"{score.accepted_length:.2f}",
            str(score.underruns),
        )
    return result


def comparisons(scores: Sequence[Score], yardstick: str) -> Iterator[str]:
    """Say, for each number of sessions, how each system's first sound compares with another's."""
    for other in scores:
        if other.system != yardstick or (theirs := other.server_ttfa_ms) is None:
            continue
        for score in scores:
            ours = score.server_ttfa_ms
            if score.sessions == other.sessions and score.system != yardstick and ours:
                yield (
                    f"{score.name}: first sound after {ours.p50 / theirs.p50:.2f} × (p50), "
                    f"{ours.p90 / theirs.p90:.2f} × (p90) of {other.name}"
                )


def _table(title: str, headings: Iterable[str]) -> Table:
    result = Table(title=title, title_justify="left", box=None, pad_edge=False)
    result.add_column("system", overflow="fold", min_width=12)
    result.add_column("at once", justify="right")
    for heading in headings:
        result.add_column(heading, justify="right")
    return result


def _percentiles(of: Percentiles | None) -> str:
    return "–" if of is None else f"{of.p50:.0f}/{of.p90:.0f}/{of.p99:.0f}"
