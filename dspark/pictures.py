"""Pieces of the pictures that measurements are drawn as, in SVG."""

from __future__ import annotations

from xml.sax.saxutils import escape


def text(
    x: float, y: float, content: str, fill: str, *, anchor: str = "start", weight: int = 400
) -> str:
    """A line of text: `x` is its start, or for the anchors `middle` and `end` that part of it."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{escape(content)}</text>'
    )
