"""What became of one recording: when everything happened, counted from the label's speech end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Speculation = Literal["hit", "miss", "none"]

MOMENTS = (
    "pause",
    "transcript",
    "first_text",
    "first_chunk",
    "first_audio",
    "endpoint",
    "first_sent",
)
"""What a turn's time is taken apart by; see `assistant.timeline.Timeline`."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One recording, played to one system.

    Attributes:
        transcript: the words that the system answered.
        moments_ms: when each of `MOMENTS` came, after the last voiced sample of the label.
        heard_ms: when the first audible sample left the loudspeaker.
        cut_in: whether sound came before the user's last sample; such a turn has no latency.
        underruns: how often the answer's sound broke off.
        output_tokens: how long the answer was when the listener had heard enough.
        accepted: how many of these tokens a drafter had proposed.
        wasted_tokens: tokens of answers that were begun and never heard.
        error: why there is no answer, if there is none.
    """

    transcript: str = ""
    moments_ms: Mapping[str, float] = field(default_factory=dict)
    heard_ms: float | None = None
    cut_in: bool = False
    underruns: int = 0
    output_tokens: int = 0
    accepted: int = 0
    speculation: Speculation = "none"
    wasted_tokens: int = 0
    error: str | None = None

    @property
    def answered(self) -> bool:
        """Whether an answer was heard after the user had finished."""
        return "first_sent" in self.moments_ms and not self.cut_in

    @property
    def server_ttfa_ms(self) -> float | None:
        """Speech end to the first audio handed over."""
        return self.moments_ms["first_sent"] if self.answered else None

    @property
    def client_ttfa_ms(self) -> float | None:
        """Speech end to the first audible sample."""
        return self.heard_ms if self.answered else None

    @property
    def endpoint_wait_ms(self) -> float | None:
        """Speech end to the endpoint."""
        return self.moments_ms.get("endpoint") if self.answered else None

    @property
    def added_latency_ms(self) -> float | None:
        """What the work behind the endpoint added to it."""
        wait_ms = self.endpoint_wait_ms
        return None if wait_ms is None else self.moments_ms["first_sent"] - wait_ms
