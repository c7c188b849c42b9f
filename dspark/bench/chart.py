"""The comparison as a picture: a bar for each contender, in SVG."""

from __future__ import annotations

from xml.sax.saxutils import escape

from dspark.bench.measurement import Report, Row
from dspark.pictures import text

WIDTH = 860
NAMES = 300
VALUES = 110
_TOP = 58
ROW = 26
_BAR = 16
_OURS, _OTHERS, _PALE, INK, QUIET = "#d9480f", "#868e96", "#e9ecef", "#212529", "#6c757d"


def svg(report: Report) -> str:
    """Tokens a second of every row, fastest first, over how much memory bandwidth allows."""
    rows = sorted(report.rows, key=lambda row: -row.tokens_per_s)
    floors = [row.tokens_per_s / row.floor_share for row in rows if row.floor_share]
    longest = max([row.tokens_per_s for row in rows] + floors, default=1.0) or 1.0
    height = _TOP + ROW * len(rows) + 34
    machine = report.machine
    title = f"{machine.processor}, {machine.device}, {threads(rows)}"
    lines = [
        text(16, 24, "Tokens per second, after the first token", INK, weight=600),
        text(16, 43, title, QUIET),
    ]
    for index, row in enumerate(rows):
        lines += _bar(row, _TOP + ROW * index, (WIDTH - NAMES - VALUES) / longest)
    note = f"pale: what {machine.bandwidth_gb_s:.0f} GB/s allow at one token a step"
    lines.append(text(16, height - 12, note, QUIET))
    return page("Tokens per second", height, lines)


def page(title: str, height: float, content: list[str]) -> str:
    """A whole picture of this height, as wide as they all are."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="system-ui, sans-serif" font-size="13" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        *content,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _bar(row: Row, top: float, scale: float) -> list[str]:
    baseline = top + 13
    width = row.tokens_per_s * scale
    allowed = width / row.floor_share if row.floor_share else 0.0
    value = f"{row.tokens_per_s:.1f}"
    if row.drafter is not None:
        value += f"  (×{row.accepted_length:.2f})"
    return [
        text(NAMES - 10, baseline, f"{row.name} {row.dtype}", INK, anchor="end"),
        f'<rect x="{NAMES}" y="{top}" width="{allowed:.1f}" height="{_BAR}" fill="{_PALE}"/>',
        f'<rect x="{NAMES}" y="{top}" width="{width:.1f}" height="{_BAR}" '
        f'fill="{_OURS if row.system == "dspark" else _OTHERS}"/>',
        text(NAMES + max(width, allowed) + 8, baseline, value, INK),
    ]


def threads(rows: list[Row]) -> str:
    """How many threads computed."""
    threads = rows[0].threads if rows else 1
    return f"{threads} thread{'s' if threads != 1 else ''}"
