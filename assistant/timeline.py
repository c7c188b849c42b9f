"""When each thing happened in a turn, and the four latencies that follow from it.

All moments are seconds on one monotonic clock.  *Speech end* is the last voiced sample of the
user's utterance, placed on that clock through the sample clock of the input stream; a written
turn begins where the client asked for the answer.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Literal


@dataclass(slots=True)
class Timeline:
    """The moments of one turn; `None` has not occurred.

    The words may be known and the answer begun before the endpoint, behind the gate that it opens.
    """

    kind: Literal["spoken", "written"]
    speech_start_s: float | None = None
    speech_end_s: float | None = None
    pause_s: float | None = None
    """The user had been silent for long enough to guess that this was all."""
    endpoint_s: float | None = None
    """The turn was decided to be over (for a written turn: the answer was asked for)."""
    transcript_s: float | None = None
    first_text_s: float | None = None
    first_chunk_s: float | None = None
    """The first clause went to synthesis."""
    first_audio_s: float | None = None
    """The first samples of the answer were synthesised."""
    first_sent_s: float | None = None
    """The first samples were handed to the connection."""
    first_heard_s: float | None = None
    """The first sample sounded, by the client's own playback clock."""
    finished_s: float | None = None

    @property
    def cut_in(self) -> bool:
        """Whether we were audible before the user's last sample: never counted as latency."""
        return (
            self.first_sent_s is not None
            and self.speech_end_s is not None
            and self.first_sent_s < self.speech_end_s
        )

    @property
    def endpoint_wait_ms(self) -> float | None:
        """Speech end to endpoint."""
        return _between_ms(self.speech_end_s, self.endpoint_s)

    @property
    def server_ttfa_ms(self) -> float | None:
        """Speech end to the first audio handed to the connection."""
        return None if self.cut_in else _between_ms(self._origin_s, self.first_sent_s)

    @property
    def client_ttfa_ms(self) -> float | None:
        """Speech end to the first audible sample, by the client's playback clock."""
        return None if self.cut_in else _between_ms(self._origin_s, self.first_heard_s)

    @property
    def added_latency_ms(self) -> float | None:
        """What the work behind the endpoint added to it: `server_ttfa - endpoint_wait`."""
        return None if self.cut_in else _between_ms(self.endpoint_s, self.first_sent_s)

    @property
    def _origin_s(self) -> float | None:
        return self.speech_end_s if self.kind == "spoken" else self.endpoint_s

    def as_milliseconds(self) -> dict[str, float | str | bool | None]:
        """Return the moments relative to the speech end, and the latencies, in milliseconds.

        This is the form of the log line, of the `x.turn.timeline` event and of the JSON output.
        """
        origin = self._origin_s
        moments = {
            f.name.removesuffix("_s") + "_ms": _between_ms(origin, getattr(self, f.name))
            for f in fields(self)
            if f.name.endswith("_s")
        }
        return {
            "kind": self.kind,
            **moments,
            "endpoint_wait_ms": self.endpoint_wait_ms,
            "server_ttfa_ms": self.server_ttfa_ms,
            "client_ttfa_ms": self.client_ttfa_ms,
            "added_latency_ms": self.added_latency_ms,
            "cut_in": self.cut_in,
        }

    def check_order(self) -> None:
        """Assert that nothing happened before what must precede it.

        `first_heard_s` stands on the client's clock and is checked against `first_sent_s` only.
        """
        times = asdict(self)
        for chain in (_DECIDED, _WORKED):
            order = [name for name in chain if times[name] is not None]
            for earlier, later in pairwise(order):
                assert times[earlier] <= times[later], f"{earlier} came after {later}: {times}"


_DECIDED = (
    "speech_start_s",
    "speech_end_s",
    "pause_s",
    "endpoint_s",
    "first_sent_s",
    "first_heard_s",
    "finished_s",
)
_WORKED = (
    "transcript_s",
    "first_text_s",
    "first_chunk_s",
    "first_audio_s",
    "first_sent_s",
)


def _between_ms(start_s: float | None, end_s: float | None) -> float | None:
    if start_s is None or end_s is None:
        return None
    return round((end_s - start_s) * 1000, 1)
