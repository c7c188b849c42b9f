"""The recordings that are played, each with its words and the places where somebody speaks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError, model_validator

from assistant.errors import ManifestError, UsageError

FIXTURES = Path(__file__).parents[2] / "tests" / "fixtures" / "speech" / "manifest.jsonl"
"""The labelled recordings that come with a checkout of the project."""

Moment = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class Clip:
    """A recording of one turn.

    Attributes:
        path: the sound file.
        text: what is said in it.
        speech_end_s: the end of the last voiced span, on the recording's own clock.
    """

    path: Path
    text: str
    speech_end_s: float


class _Line(BaseModel):
    """A line of a manifest; other keys are other readers' business."""

    file: Annotated[str, Field(min_length=1)]
    kind: str = "speech"
    lang: str | None = None
    text: str | None
    vad_auto: list[tuple[Moment, Moment]] | None = None
    tags: list[str] = []

    @model_validator(mode="after")
    def _speech_is_marked(self) -> _Line:
        if self.has_words and self.vad_auto is None:
            raise ValueError("vad_auto is missing: the voiced spans in seconds, [[begin, end], …]")
        if any(begin >= end for begin, end in self.vad_auto or []):
            raise ValueError("vad_auto has a span that ends before it begins")
        return self

    @property
    def has_words(self) -> bool:
        return self.kind != "noise" and bool(self.text and self.text.strip())


def read_manifest(manifest: Path, *, language: str, tag: str | None = None) -> list[Clip]:
    """Return the speech of a manifest; noises, other languages and unmarked speech are left out.

    A line is a JSON object with `file` (relative to the manifest), `text` and `vad_auto`, the
    voiced spans in seconds, and perhaps `kind` ("noise"), `lang` and `tags`.  `tag` keeps only the
    lines that have it.

    Raises:
        ManifestError: a line is not such an object, or its file is missing; the message has the
            line's number.
        UsageError: the manifest cannot be read, or nothing in it can be played.
    """
    try:
        lines = manifest.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The manifest {manifest} cannot be read: {error}") from error
    clips = []
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        line = _parsed(text, f"{manifest}, line {number}")
        path = manifest.parent / line.file
        if not path.is_file():
            raise ManifestError(f"{manifest}, line {number}: there is no file {path}")
        speech = line.has_words and line.lang in (None, language)
        if speech and line.vad_auto and (tag is None or tag in line.tags):
            clips.append(Clip(path, line.text or "", max(end for _, end in line.vad_auto)))
    if not clips:
        which = "" if tag is None else f" with the tag {tag!r}"
        raise UsageError(f"{manifest} holds no speech in {language!r}{which}: nothing to play.")
    return clips


def fixture_manifest() -> Path:
    """Return the manifest of the project's own recordings.

    Raises `UsageError` where they are not: an installed package does not bring them.
    """
    if not FIXTURES.is_file():
        raise UsageError("The project's own recordings are not here: name a manifest with --clips.")
    return FIXTURES


def spread(clips: Sequence[Clip], turns: int) -> list[Clip]:
    """Return `turns` of the clips, evenly spread over all; more than there are go round again."""
    if turns >= len(clips):
        return list(islice(cycle(clips), turns))
    return [clips[index * len(clips) // turns] for index in range(turns)]


def _parsed(text: str, place: str) -> _Line:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ManifestError(f"{place} is not JSON: {error}") from None
    try:
        return _Line.model_validate(content)
    except ValidationError as error:
        wrong = error.errors()[0]
        key = ".".join(str(part) for part in wrong["loc"])
        message = wrong["msg"].removeprefix("Value error, ")
        raise ManifestError(f"{place}: {key + ': ' if key else ''}{message}") from None
