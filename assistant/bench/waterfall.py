"""Where each millisecond of a median turn goes, as a picture: a group of bars for each system."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from assistant.bench.scores import Score
from dspark.pictures import text

_WIDTH = 860
_NAMES = 190
_MARGIN = 70
_TOP = 66
_ROW = 22
_BAR = 14
_GROUP = 34
_NARROW = 36
_INK, _QUIET, _GRID = "#212529", "#6c757d", "#e9ecef"
_SILENCE, _WORDS, _TEXT, _SOUND, _READY, _HEARD = (
    "#ced4da",
    "#1971c2",
    "#d9480f",
    "#2b8a3e",
    "#b2f2bb",
    "#212529",
)

_NEEDED = {"transcript", "first_chunk", "first_audio", "endpoint", "heard"}


@dataclass(frozen=True)
class Bar:
    """What happens between two moments after the speech end, in milliseconds."""

    name: str
    begin_ms: float
    end_ms: float
    colour: str


def bars(moments_ms: Mapping[str, float]) -> list[Bar]:
    """The steps of a turn: each begins when what it needs is there.

    Words that were known before they were asked for are a bar without length.
    """
    at = moments_ms
    asked = at.get("pause", at["endpoint"])
    steps = [
        Bar("silence", 0.0, at["endpoint"], _SILENCE),
        Bar("recognition", min(asked, at["transcript"]), at["transcript"], _WORDS),
        Bar("first words written", max(asked, at["transcript"]), at["first_chunk"], _TEXT),
        Bar("their first sound", at["first_chunk"], at["first_audio"], _SOUND),
    ]
    if at["first_audio"] < at["endpoint"]:
        steps.append(Bar("ready, held back", at["first_audio"], at["endpoint"], _READY))
    return steps


def svg(scores: Sequence[Score]) -> str:
    """Draw the median turn of each system that answered, on one time axis."""
    drawn = [each for each in scores if each.moments_ms.keys() >= _NEEDED]
    rows = {each.name: bars(each.moments_ms) for each in drawn}
    height = _TOP + sum(_GROUP + _ROW * len(group) for group in rows.values()) + 30
    ends = [each.moments_ms["heard"] for each in drawn]
    begins = [bar.begin_ms for group in rows.values() for bar in group]
    axis = _Axis(min([0.0, *begins]), max([1.0, *ends]))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'font-family="system-ui, sans-serif" font-size="13" role="img">',
        "<title>Where the time of a median turn goes</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        text(16, 24, "Where the time of a median turn goes", _INK, weight=600),
        text(16, 43, "milliseconds since the user's last sound", _QUIET),
        *axis.grid(height),
    ]
    top = _TOP
    for each in drawn:
        group = rows[each.name]
        lines += _group(each, group, top, axis)
        top += _GROUP + _ROW * len(group)
    return "\n".join([*lines, "</svg>"]) + "\n"


@dataclass(frozen=True)
class _Axis:
    """Places milliseconds on the picture."""

    first_ms: float
    last_ms: float

    def x(self, ms: float) -> float:
        room = _WIDTH - _NAMES - _MARGIN
        return _NAMES + (ms - self.first_ms) / (self.last_ms - self.first_ms) * room

    def grid(self, height: int) -> Iterator[str]:
        step = next(each for each in (100, 200, 500, 1000, 10**9) if self.last_ms / each <= 10)
        for ms in range(0, int(self.last_ms) + 1, step):
            x = self.x(ms)
            yield (
                f'<line x1="{x:.1f}" y1="{_TOP - 8}" x2="{x:.1f}" y2="{height - 24}" '
                f'stroke="{_GRID}"/>'
            )
            yield text(x, height - 8, str(ms), _QUIET, anchor="middle")


def _group(score: Score, group: Sequence[Bar], top: int, axis: _Axis) -> Iterator[str]:
    heard_ms = score.moments_ms["heard"]
    yield text(16, top + 14, score.name, _INK, weight=600)
    bottom = top + _GROUP + _ROW * len(group) - 12
    x = axis.x(heard_ms)
    yield (
        f'<line x1="{x:.1f}" y1="{top + 4}" x2="{x:.1f}" y2="{bottom}" '
        f'stroke="{_HEARD}" stroke-width="2"/>'
    )
    yield text(x - 6, top + 14, f"heard after {heard_ms:.0f} ms", _INK, anchor="end", weight=600)
    for number, bar in enumerate(group):
        yield from _row(bar, top + _GROUP - 12 + _ROW * number, axis)


def _row(bar: Bar, top: float, axis: _Axis) -> Iterator[str]:
    left, right = axis.x(bar.begin_ms), axis.x(bar.end_ms)
    width = max(2.0, right - left)
    yield text(_NAMES - 10, top + 12, bar.name, _INK, anchor="end")
    yield (
        f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{_BAR}" fill="{bar.colour}"/>'
    )
    length_ms = bar.end_ms - bar.begin_ms
    told = f"{length_ms:.0f}" if length_ms else f"known at {bar.end_ms:.0f}"
    if width < _NARROW:
        yield text(left + width + 6, top + 12, told, _QUIET)
    else:
        ink = _INK if bar.colour in (_SILENCE, _READY) else "white"
        yield text(right - 5, top + 12, told, ink, anchor="end")
