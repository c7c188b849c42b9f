"""What a client may change while its session runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from audio.endpoint import Endpointer, SemanticEndpointer, SilenceEndpointer

Eagerness = Literal["low", "medium", "high", "auto"]
CAUTION: dict[Eagerness, float] = {"low": 0.4, "medium": 0.0, "high": -0.4, "auto": 0.0}
"""What each eagerness asks of the words; see `SemanticEndpointer.caution`."""


@dataclass(frozen=True, slots=True)
class TurnDetection:
    """How the end of the user's turn is found without the client saying so."""

    threshold: float = 0.5
    prefix_padding_ms: int = 500
    silence_ms: int = 500
    semantic: SemanticEndpointer | None = None
    """Ends turns by what was said as well; `None`: after `silence_ms`, whatever was said."""
    pause_ms: int | None = 64
    """Silence after which the answer is begun without anybody knowing; `None`: at the endpoint."""
    create_response: bool = True
    interrupt_response: bool = True
    idle_timeout_ms: int | None = None

    @property
    def endpointer(self) -> Endpointer:
        """What judges how much silence ends a turn."""
        return self.semantic or SilenceEndpointer(self.silence_ms)


@dataclass(frozen=True, slots=True)
class Settings:
    """The effective settings of one session."""

    instructions: str = ""
    modality: Literal["audio", "text"] = "audio"
    turn_detection: TurnDetection | None = field(default_factory=TurnDetection)
    """`None` is manual mode: the client commits the audio and asks for responses."""
    max_output_tokens: int | None = None
    """`None` leaves the model's configured limit."""
    speed: float = 1.0
    playback_lead_ms: int | None = 400
    """How far ahead of the playing client audio is sent; `None` sends it as it is made."""
    playback_acknowledged: bool = False
    """The client sends `Played`; without it, playback is assumed to run from the first frame."""
