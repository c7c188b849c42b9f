"""A GGUF file is converted once, wherever it lies: its contents name the converted folder."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import platformdirs

from dspark.checkpoint import Progress
from dspark.errors import CheckpointError

logger = logging.getLogger(__name__)

_FORMAT = 2  # raise it when folders come to be written differently: all are then converted anew
_SOURCES = "sources.json"
"""In a converted folder: the files known to have its contents, each with its size and time."""

_Stamp = list[int]  # a file's size in bytes and its time of change in ns, as JSON keeps them


def converted_folder(path: Path, progress: Progress | None = None) -> Path:
    """The folder that a GGUF file was converted to, converting it now if it was not.

    It lies in `$DSPARK_CACHE` or the user's cache folder, under a name made from the file's
    SHA-256, so that a copy or a moved file is not converted again. It is kept in float32, several
    times the size of the file, and appears whole or not at all. What the file was converted to
    before its contents changed is removed.

    Raises:
        UnsupportedArchitecture: the file holds a model or tokenizer of another family.
        CheckpointError: the file is damaged or cannot be read, or the folder cannot be written.
    """
    cache = Path(os.environ.get("DSPARK_CACHE") or platformdirs.user_cache_dir("dspark-assistant"))
    path = path.resolve()
    for folder in _conversions(cache):  # hashing gigabytes takes seconds: once for each file
        current = folder.name.endswith(f"-v{_FORMAT}")
        if current and _sources(folder).get(str(path)) == _stamp(path):
            return folder
    ending = f"-{_sha256(path)[:16]}-v{_FORMAT}"
    folder = next(cache.glob(f"*{ending}"), cache / f"{path.stem}{ending}")
    try:
        if not folder.is_dir():
            logger.info("Converting %s into %s; this is done once", path, folder)
            cache.mkdir(parents=True, exist_ok=True)
            _convert(path, folder, progress or (lambda _what, _fraction: None))
    except OSError as error:
        raise CheckpointError(
            f"{path} could not be converted into {folder} ({error}): make room there, or name "
            "another cache folder in DSPARK_CACHE"
        ) from error
    with suppress(OSError):  # then it is hashed again next time
        _remember(path, folder)
    _remove_superseded(path, cache, folder)
    return folder


def _convert(path: Path, folder: Path, progress: Progress) -> None:
    unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=folder.parent))
    try:
        from dspark.gguf_conversion import convert  # its reader is slow to import

        convert(path, unfinished, progress)
        try:
            unfinished.rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise somebody else was faster, with the same result
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error}): name another file") from error


def _stamp(path: Path) -> _Stamp | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return [stat.st_size, stat.st_mtime_ns]


def _conversions(cache: Path) -> Iterator[Path]:
    """The converted folders of every format that notes its sources."""
    return (noted.parent for noted in cache.glob(f"*/{_SOURCES}"))


def _sources(folder: Path) -> dict[str, _Stamp | None]:
    try:
        sources: dict[str, _Stamp | None] = json.loads((folder / _SOURCES).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return sources


def _remember(path: Path, folder: Path) -> None:
    """Note that the file has the contents that the folder was made from; forget those gone."""
    sources = {name: stamp for name, stamp in _sources(folder).items() if Path(name).exists()}
    sources[str(path)] = _stamp(path)
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=folder, prefix=".unfinished-", delete=False
    ) as file:
        json.dump(sources, file)
    Path(file.name).replace(folder / _SOURCES)


def _remove_superseded(path: Path, cache: Path, current: Path) -> None:
    """Remove conversions that only this file had led to, when its contents were others."""
    for folder in list(_conversions(cache)):
        if folder != current and list(_sources(folder)) == [str(path)]:
            logger.info("Removing %s, which %s no longer is", folder, path)
            shutil.rmtree(folder, ignore_errors=True)
