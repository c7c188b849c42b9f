"""Where a token's time goes, as a picture: a stacked bar for each contender, in SVG."""

from __future__ import annotations

from dspark.bench.chart import INK, NAMES, QUIET, ROW, VALUES, WIDTH, page, threads
from dspark.bench.measurement import Report, Row
from dspark.pictures import text

_TOP = 78
_BAR = 16
_PHASES = {"target": "#495057", "drafter": "#d9480f", "rest": "#adb5bd"}


def costs_svg(report: Report) -> str:
    """Milliseconds a token of drafting, of the target's steps and of the rest, cheapest first.

    What a drafter costs and what its accepted tokens save stand in one bar: it pays if the bar is
    shorter than that of plain decoding. Contenders whose time is not known in parts are left out.
    """
    rows = sorted((row for row in report.rows if row.phases_ms), key=_ms_a_token)
    longest = max(map(_ms_a_token, rows), default=1.0) or 1.0
    scale = (WIDTH - NAMES - VALUES) / longest
    machine = report.machine
    lines = [
        text(16, 24, "Milliseconds a token, after the first", INK, weight=600),
        text(16, 43, f"{machine.processor}, {machine.device}, {threads(rows)}", QUIET),
        *_legend(),
    ]
    for index, row in enumerate(rows):
        lines += _bar(row, _TOP + ROW * index, scale)
    return page("Milliseconds a token", _TOP + ROW * len(rows) + 10, lines)


def _ms_a_token(row: Row) -> float:
    return sum(row.phases_ms.values()) / row.accepted_length


def _legend() -> list[str]:
    lines: list[str] = []
    for place, (phase, colour) in enumerate(_PHASES.items()):
        left = 16 + 100 * place
        lines.append(f'<rect x="{left}" y="54" width="12" height="12" fill="{colour}"/>')
        lines.append(text(left + 18, 64, phase, INK))
    return lines


def _bar(row: Row, top: float, scale: float) -> list[str]:
    lines = [text(NAMES - 10, top + 13, f"{row.name} {row.dtype}", INK, anchor="end")]
    left = float(NAMES)
    for phase, colour in _PHASES.items():
        width = max(0.0, row.phases_ms.get(phase, 0.0)) / row.accepted_length * scale
        lines.append(
            f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{_BAR}" fill="{colour}"/>'
        )
        left += width
    lines.append(text(left + 8, top + 13, f"{_ms_a_token(row):.1f}", INK))
    return lines
