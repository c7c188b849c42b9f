"""How much silence after the last word ends a turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Endpointer(Protocol):
    """Judges, from what was said so far, how long a silence has to be to end the turn."""

    def silence_needed_ms(self, text: str | None) -> float:
        """Milliseconds of silence after which the turn is over.

        `text` is the transcript up to the silence, None while there is none yet.
        """
        ...


@dataclass(frozen=True)
class SilenceEndpointer:
    """Ends every turn after the same silence, whatever was said."""

    silence_ms: float

    def silence_needed_ms(self, text: str | None) -> float:
        """`silence_ms`, always."""
        return self.silence_ms
