"""Cut-ins against waiting as a picture, in SVG: the nearer to the corner, the better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from dspark.pictures import text

_WIDTH, _HEIGHT = 760, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 20, 56, 52
_COLOURS = ("#868e96", "#d9480f")
_INK, _QUIET, _GRID = "#212529", "#6c757d", "#e9ecef"


@dataclass(frozen=True)
class Point:
    """One setting of one way of ending turns."""

    label: str
    mean_wait_ms: float
    median_wait_ms: float
    cut_ins_percent: float


@dataclass(frozen=True)
class Curve:
    """One way of ending turns, at several settings."""

    name: str
    points: tuple[Point, ...]


def svg(curves: Sequence[Curve]) -> str:
    """The percentage of recordings that are cut, over the mean wait in milliseconds."""
    points = [point for curve in curves for point in curve.points]
    widest = 100 * (int(max(point.mean_wait_ms for point in points) / 100) + 1)
    highest = 5 * (int(max(point.cut_ins_percent for point in points) / 5) + 1)

    def x(ms: float) -> float:
        return _LEFT + ms / widest * (_WIDTH - _LEFT - _RIGHT)

    def y(percent: float) -> float:
        return _HEIGHT - _BOTTOM - percent / highest * (_HEIGHT - _TOP - _BOTTOM)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'font-family="system-ui, sans-serif" font-size="13" role="img">',
        "<title>Speakers cut off, against how long they wait</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        text(16, 24, "Speakers cut off, against how long they wait", _INK, weight=600),
        text(_WIDTH - _RIGHT, _HEIGHT - 14, "mean wait, ms", _QUIET, anchor="end"),
        text(16, _TOP - 10, "% of recordings cut", _QUIET),
    ]
    lines += [
        text(x(ms), _HEIGHT - _BOTTOM + 18, str(ms), _QUIET, anchor="middle")
        for ms in range(0, widest + 1, 200)
    ]
    for percent in range(0, highest + 1, 5):
        level = f"{y(percent):.1f}"
        lines.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{level}" y2="{level}" '
            f'stroke="{_GRID}"/>'
        )
        lines.append(text(_LEFT - 8, y(percent) + 4, str(percent), _QUIET, anchor="end"))
    for curve, colour in zip(curves, _COLOURS, strict=False):
        path = " ".join(f"{x(p.mean_wait_ms):.1f},{y(p.cut_ins_percent):.1f}" for p in curve.points)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for point in curve.points:
            where = f'cx="{x(point.mean_wait_ms):.1f}" cy="{y(point.cut_ins_percent):.1f}"'
            told = f"{curve.name}, {point.label}: median {point.median_wait_ms:.0f} ms"
            lines.append(
                f'<circle {where} r="4" fill="{colour}"><title>{escape(told)}</title></circle>'
            )
    for row, (curve, colour) in enumerate(zip(curves, _COLOURS, strict=False)):
        height = _TOP + 14 + 20 * row
        lines.append(
            f'<circle cx="{_WIDTH - 200}" cy="{height - 4}" r="5" fill="{colour}"/>'
            + text(_WIDTH - 188, height, curve.name, _INK)
        )
    return "\n".join([*lines, "</svg>"]) + "\n"
