"""A reliability diagram: what was promised, against how often it happened."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dspark.calibration import BINS, expected_calibration_error

_SIDE, _MARGIN = 260, 44
_INK, _QUIET, _PALE, _OURS = "#212529", "#6c757d", "#e9ecef", "#d9480f"


def svg(promised: NDArray[np.float64], happened: NDArray[np.bool_]) -> str:
    """Draw it.

    Args:
        promised: `[predictions]`, probabilities.
        happened: `[predictions]`, whether each came true.
    """
    bins = np.minimum((promised * BINS).astype(np.int64), BINS - 1)
    counts = np.bincount(bins, minlength=BINS)
    filled = np.flatnonzero(counts)
    means = np.bincount(bins, promised, BINS)[filled] / counts[filled]
    found = np.bincount(bins, happened, BINS)[filled] / counts[filled]
    size = _SIDE + 2 * _MARGIN
    error = 100 * expected_calibration_error(promised, happened)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size} {size}" '
        'font-family="system-ui, sans-serif" font-size="12" role="img">',
        "<title>Promised and found survival of drafted tokens</title>",
        f'<rect width="{size}" height="{size}" fill="white"/>',
        f'<rect x="{_MARGIN}" y="{_MARGIN}" width="{_SIDE}" height="{_SIDE}" fill="none" '
        f'stroke="{_PALE}"/>',
        f'<line x1="{_x(0)}" y1="{_y(0)}" x2="{_x(1)}" y2="{_y(1)}" stroke="{_QUIET}" '
        'stroke-dasharray="4 4"/>',
    ]
    for count, mean, share in zip(counts[filled], means, found, strict=True):
        radius = 2 + 8 * float(np.sqrt(count / counts.max()))
        lines.append(
            f'<circle cx="{_x(mean):.1f}" cy="{_y(share):.1f}" r="{radius:.1f}" fill="{_OURS}" '
            'fill-opacity="0.75"/>'
        )
    lines += [
        f'<text x="{_MARGIN}" y="24" fill="{_INK}" font-weight="600">Survival of drafted tokens, '
        f"error {error:.1f} %</text>",
        f'<text x="{size / 2}" y="{size - 14}" fill="{_QUIET}" text-anchor="middle">promised, 0 … 1'
        "</text>",
        f'<text x="18" y="{size / 2}" fill="{_QUIET}" text-anchor="middle" '
        f'transform="rotate(-90 18 {size / 2})">found, 0 … 1</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _x(share: float) -> float:
    return _MARGIN + _SIDE * share


def _y(share: float) -> float:
    return _MARGIN + _SIDE * (1 - share)
