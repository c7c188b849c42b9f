"""Compiling for this machine, once: what is compiled lies in the cache folder."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

from dspark.compiled.processor import MATRIX_UNIT
from dspark.step_cost import cache_folder

logger = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])


def _sources() -> str:
    """Tells versions of this package apart: a cached function knows only its own file.

    And whether the matrix unit may be used, which numba does not look at either.
    """
    digest = hashlib.sha256(f"{numba.__version__}, {MATRIX_UNIT}".encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


VERSION = _sources()
"""Of all that is compiled."""

FOLDER = cache_folder() / "compiled" / VERSION


_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


def compiled(function: Function) -> Function:
    """Compile at the first call, or read what an earlier start compiled.

    The global interpreter lock is let go of while such a function runs.
    """
    config: Any = numba.config
    before = config.CACHE_DIR
    config.CACHE_DIR = str(FOLDER)
    try:
        if not FOLDER.is_dir():
            logger.info("Compiling for this processor, into %s; this is done once", FOLDER)
        return cast(Function, numba.njit(cache=True, **_OPTIONS)(function))
    except RuntimeError as error:
        logger.warning("What is compiled cannot be kept in %s (%s)", FOLDER, error)
        return inlined(function)
    finally:
        config.CACHE_DIR = before


def inlined(function: Function) -> Function:
    """Compile as a part of the functions that call it."""
    return cast(Function, numba.njit(**_OPTIONS)(function))
