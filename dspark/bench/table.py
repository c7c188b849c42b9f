"""The comparison as a table for the terminal."""

from __future__ import annotations

from rich.table import Table

from dspark.bench.measurement import Report, Row


def table(report: Report) -> Table:
    """A line for each contender, in the order in which they were given."""
    machine = report.machine
    result = Table(
        title=f"{machine.processor} · {machine.device} · copies {machine.bandwidth_gb_s:.1f} GB/s",
        caption="first token: of a prompt that is new · that begins like the one before",
        box=None,
        pad_edge=False,
    )
    result.add_column("system", overflow="fold")
    result.add_column("dtype", no_wrap=True)
    for heading in (
        "tokens\n/s",
        "of\nfloor",
        "first token\nms",
        "tokens\n/step",
        "as\nplain",
        "extra\nMB",
    ):
        result.add_column(heading, justify="right", no_wrap=True)
    result.add_column("ms a step", overflow="fold")
    for row in report.rows:
        result.add_row(*_cells(row))
    return result


def line(row: Row) -> str:
    """What matters most of a row, for those who wait for the others."""
    known = "" if row.ttft_cached_ms is None else f" ({row.ttft_cached_ms:.0f} ms)"
    return (
        f"{row.name} {row.dtype}: {row.tokens_per_s:.1f} tokens/s, "
        f"{row.accepted_length:.2f} a step, first token after {row.ttft_ms:.0f} ms{known}"
    )


def _cells(row: Row) -> tuple[str, ...]:
    cached = "–" if row.ttft_cached_ms is None else f"{row.ttft_cached_ms:.0f}"
    phases = sorted(row.phases_ms.items(), key=lambda phase: -phase[1])
    return (
        row.name,
        row.dtype,
        f"{row.tokens_per_s:.1f}",
        _percent(row.floor_share),
        f"{row.ttft_ms:.0f} · {cached}",
        f"{row.accepted_length:.2f}",
        _percent(row.same_as_plain),
        "–" if row.extra_mb is None else f"{row.extra_mb:.1f}",
        ", ".join(f"{phase} {ms:.1f}" for phase, ms in phases),
    )


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"
