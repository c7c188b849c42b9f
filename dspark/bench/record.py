"""The comparison as a JSON file that is whole at every moment, however the run ends."""

from __future__ import annotations

import json
import os
from pathlib import Path

from dspark.bench.measurement import Report
from dspark.errors import InvalidRequest
from dspark.training.storage import replacing


class Record:
    """A report's file: replaced whole whenever there is more to tell.

    What is no file, such as a pipe, cannot be replaced: it is given the finished report alone.

    Raises:
        InvalidRequest: it cannot be written; best known before hours of measuring.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()  # a link stays one
        self._replaced = self._path.is_file() or not self._path.exists()
        needed = self._path.parent if self._replaced else self._path
        if not os.access(needed, os.W_OK):
            raise InvalidRequest(f"{path} cannot be written: {needed} is missing or protected")

    def update(self, report: Report) -> None:
        """Keep the report so far."""
        if self._replaced:
            self._write(report)

    def finish(self, report: Report) -> None:
        """Keep the whole report."""
        self._write(report)

    def _write(self, report: Report) -> None:
        text = json.dumps(report.as_json(), indent=2, ensure_ascii=False) + "\n"
        try:
            if self._replaced:
                with replacing(self._path) as unfinished:
                    unfinished.write_text(text, encoding="utf-8")
            else:
                self._path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InvalidRequest(f"{self._path} cannot be written: {error}") from error
