"""A GGUF file is converted once: where the converted folder lies and when it is made."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
from pathlib import Path

import platformdirs

from dspark.checkpoint import Progress
from dspark.errors import CheckpointError

logger = logging.getLogger(__name__)

_FORMAT = 1  # raise it when folders come to be written differently: all are then converted anew


def converted_folder(path: Path, progress: Progress | None = None) -> Path:
    """The folder that a GGUF file was converted to, converting it now if it was not.

    It lies in `$DSPARK_CACHE` or the user's cache folder, under a name made from the file's path,
    size and time of change. It appears whole or not at all.

    Raises:
        UnsupportedArchitecture: the file holds a model or tokenizer of another family.
        CheckpointError: the file is damaged, or the folder cannot be written.
    """
    cache = Path(os.environ.get("DSPARK_CACHE") or platformdirs.user_cache_dir("dspark-assistant"))
    stat = path.stat()
    key = f"{_FORMAT}:{path.resolve()}:{stat.st_size}:{stat.st_mtime_ns}"
    folder = cache / f"{path.stem}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    logger.info("Converting %s into %s; this is done once", path, folder)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=cache))
        try:
            from dspark.gguf_conversion import convert  # its reader is slow to import

            convert(path, unfinished, progress or (lambda _what, _fraction: None))
            try:
                unfinished.rename(folder)
            except OSError:
                if not folder.is_dir():  # otherwise somebody else was faster, with the same result
                    raise
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        raise CheckpointError(
            f"{path} could not be converted into {folder} ({error}): make room there, or name "
            "another cache folder in DSPARK_CACHE"
        ) from error
    return folder
