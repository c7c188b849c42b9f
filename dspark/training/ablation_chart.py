"""Acceptance by position for the variants of each choice, side by side, in SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dspark.pictures import text

_PLOT_WIDTH, _PLOT_HEIGHT, _LEFT, _TOP, _GAP = 230, 190, 48, 60, 130
_INK, _QUIET, _PALE = "#212529", "#6c757d", "#e9ecef"
_COLOURS = ("#adb5bd", "#d9480f", "#1971c2", "#2f9e44", "#9c36b5", "#e67700")
_TICKS = 5


@dataclass(frozen=True)
class Line:
    """One variant: its name, accepted length, and acceptance by position."""

    name: str
    accepted_length: float
    acceptance: Sequence[float]


@dataclass(frozen=True)
class Panel:
    """The variants of one choice."""

    choice: str
    lines: Sequence[Line]


def svg(panels: Sequence[Panel]) -> str:
    """Draw them to one scale. Behind a variant's name stands its accepted length."""
    lines = [line for panel in panels for line in panel.lines]
    longest = max((len(line.acceptance) for line in lines), default=1)
    highest = max((max(line.acceptance) for line in lines), default=1.0)
    ceiling = min(1.0, (int(highest * 10) + 1) / 10)
    width = _LEFT + (_PLOT_WIDTH + _GAP) * len(panels)
    height = _TOP + _PLOT_HEIGHT + 44
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="system-ui, sans-serif" font-size="12" role="img">',
        "<title>Acceptance by position, and accepted length</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        text(16, 24, "Acceptance by position of the block", _INK, weight=600),
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, _LEFT + (_PLOT_WIDTH + _GAP) * number, longest, ceiling)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(panel: Panel, left: float, positions: int, ceiling: float) -> list[str]:
    def x(position: int) -> float:
        return left + _PLOT_WIDTH * (position - 1) / max(1, positions - 1)

    def y(acceptance: float) -> float:
        return _TOP + _PLOT_HEIGHT * (1 - acceptance / ceiling)

    parts = [text(left, _TOP - 14, panel.choice, _INK, weight=600)]
    for tick in range(_TICKS + 1):
        value = ceiling * tick / _TICKS
        parts.append(
            f'<line x1="{left}" y1="{y(value):.1f}" x2="{left + _PLOT_WIDTH}" y2="{y(value):.1f}" '
            f'stroke="{_PALE}"/>'
        )
        parts.append(text(left - 8, y(value) + 4, f"{value:.2f}", _QUIET, anchor="end"))
    for position in range(1, positions + 1):
        label = str(position)
        parts.append(text(x(position), _TOP + _PLOT_HEIGHT + 18, label, _QUIET, anchor="middle"))
    for number, line in enumerate(panel.lines):
        colour = _COLOURS[number % len(_COLOURS)]
        points = [(x(place), y(value)) for place, value in enumerate(line.acceptance, 1)]
        path = " ".join(f"{across:.1f},{down:.1f}" for across, down in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{a:.1f}" cy="{d:.1f}" r="3" fill="{colour}"/>' for a, d in points]
        name = f"{line.name}  ×{line.accepted_length:.2f}"
        parts.append(text(left + _PLOT_WIDTH + 8, _TOP + 12 + 18 * number, name, colour))
    return parts
