"""Which target something was made with: enough of its files to tell it from any other."""

from __future__ import annotations

import hashlib
from pathlib import Path

_SAMPLE_BYTES = 1 << 20


def fingerprint(folder: Path) -> str:
    """A short name for the weights, configuration and tokenizer in a checkpoint's folder.

    Of each file counts its size and how it begins and ends. Whole weights would take as long to
    read as to load.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix not in {".json", ".safetensors", ".jinja"} or not path.is_file():
            continue
        size = path.stat().st_size
        with path.open("rb") as file:
            begins = file.read(_SAMPLE_BYTES)
            file.seek(max(0, size - _SAMPLE_BYTES))
            digest.update(f"{path.name} {size} ".encode() + begins + file.read())
    return digest.hexdigest()[:16]
