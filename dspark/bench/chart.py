"""The comparison as a picture: a bar for each contender, in SVG."""

from __future__ import annotations

from xml.sax.saxutils import escape

from dspark.bench.measurement import Report, Row

_WIDTH = 860
_NAMES = 300
_VALUES = 110
_TOP = 58
_ROW = 26
_BAR = 16
_OURS, _OTHERS, _PALE, _INK, _QUIET = "#d9480f", "#868e96", "#e9ecef", "#212529", "#6c757d"


def svg(report: Report) -> str:
    """Tokens a second of every row, fastest first, over how much memory bandwidth allows."""
    rows = sorted(report.rows, key=lambda row: -row.tokens_per_s)
    floors = [row.tokens_per_s / row.floor_share for row in rows if row.floor_share]
    longest = max([row.tokens_per_s for row in rows] + floors, default=1.0) or 1.0
    height = _TOP + _ROW * len(rows) + 34
    machine = report.machine
    title = f"{machine.processor}, {machine.device}, {_threads(rows)}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'font-family="system-ui, sans-serif" font-size="13" role="img">',
        "<title>Tokens per second</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        _text(16, 24, "Tokens per second, greedy, after the first token", _INK, weight=600),
        _text(16, 43, title, _QUIET),
    ]
    for index, row in enumerate(rows):
        lines += _bar(row, _TOP + _ROW * index, (_WIDTH - _NAMES - _VALUES) / longest)
    note = f"pale: what {machine.bandwidth_gb_s:.0f} GB/s allow at one token a step"
    lines += [_text(16, height - 12, note, _QUIET), "</svg>"]
    return "\n".join(lines) + "\n"


def _bar(row: Row, top: float, scale: float) -> list[str]:
    baseline = top + 13
    width = row.tokens_per_s * scale
    allowed = width / row.floor_share if row.floor_share else 0.0
    value = f"{row.tokens_per_s:.1f}"
    if row.drafter is not None:
        value += f"  (×{row.accepted_length:.2f})"
    return [
        _text(_NAMES - 10, baseline, f"{row.name} {row.dtype}", _INK, anchor="end"),
        f'<rect x="{_NAMES}" y="{top}" width="{allowed:.1f}" height="{_BAR}" fill="{_PALE}"/>',
        f'<rect x="{_NAMES}" y="{top}" width="{width:.1f}" height="{_BAR}" '
        f'fill="{_OURS if row.system == "dspark" else _OTHERS}"/>',
        _text(_NAMES + max(width, allowed) + 8, baseline, value, _INK),
    ]


def _text(
    x: float, y: float, content: str, fill: str, *, anchor: str = "start", weight: int = 400
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{escape(content)}</text>'
    )


def _threads(rows: list[Row]) -> str:
    threads = rows[0].threads if rows else 1
    return f"{threads} thread{'s' if threads != 1 else ''}"
