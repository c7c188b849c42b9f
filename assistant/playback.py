"""How far the client's loudspeaker is, and which samples may be sent to it now."""

from __future__ import annotations

from collections import deque

import numpy as np

from assistant.events import Samples

FRAME_MS = 40
"""Audio leaves in frames of this length: small beside the lead, few enough for a slow client."""


class Playback:
    """The audio of one answer between its synthesis and the user's ear.

    Positions are absolute output samples since the answer began.  At most `lead_ms` of sound is
    sent ahead of the loudspeaker (`None`: no limit).  With `acknowledged` the loudspeaker is where
    the client last said it is; without, it is assumed to play each frame as soon as it may.
    """

    def __init__(self, rate_hz: int, lead_ms: int | None, *, acknowledged: bool) -> None:
        self._rate_hz = rate_hz
        self._lead = None if lead_ms is None else lead_ms * rate_hz // 1000
        self._frame = FRAME_MS * rate_hz // 1000
        self._acknowledged = acknowledged
        self._pending: deque[Samples] = deque()
        self._played = 0
        self._silent_from_s = 0.0
        """When an unacknowledged loudspeaker will have played all that was sent."""
        self.whole = False
        """No more samples will be appended."""
        self.total = 0
        self.sent = 0

    def append(self, samples: Samples) -> None:
        """Add the next samples of the answer."""
        assert not self.whole
        if len(samples):
            self._pending.append(samples)
            self.total += len(samples)

    def acknowledge(self, position: int) -> None:
        """Note that the loudspeaker reached `position`; clamped to what was sent, never back."""
        self._played = max(self._played, min(position, self.sent))

    def position(self, now: float) -> int:
        """Return how many samples the user has heard by `now`."""
        if self._acknowledged:
            return self._played
        if self._lead is None:
            return self.sent
        unheard_s = max(0.0, self._silent_from_s - now)
        return max(0, self.sent - round(unheard_s * self._rate_hz))

    def take(self, now: float) -> tuple[int, Samples] | None:
        """Return the next frame that may leave now, with its position, or `None`.

        A frame is full unless it ends the answer; without a lead it is all there is.
        """
        ready = self.total - self.sent
        if not ready:
            return None
        if self._lead is None:
            length = ready
        else:
            length = min(self._frame, ready)
            room = self.position(now) + self._lead - self.sent
            if room < length or (length < self._frame and not self.whole):
                return None
        start = self.sent
        self.sent += length
        self._silent_from_s = max(self._silent_from_s, now) + length / self._rate_hz
        return start, self._pull(length)

    def next_take_s(self, now: float) -> float | None:
        """Return when `take` should be asked again if nothing else happens."""
        ready = self.total - self.sent
        if not ready or self._lead is None or self._acknowledged:
            return None
        length = min(self._frame, ready)
        if length < self._frame and not self.whole:
            return None
        missing = length - (self.position(now) + self._lead - self.sent)
        return now + max(0, missing) / self._rate_hz

    def all_sent(self) -> bool:
        """Whether the answer is whole and has left."""
        return self.whole and self.sent == self.total

    def ends_s(self, now: float) -> float | None:
        """Return when the answer will have been heard, if only time is missing for that."""
        if not self.all_sent() or self._acknowledged or self._lead is None:
            return None
        return max(now, self._silent_from_s)

    def all_heard(self, now: float) -> bool:
        """Whether the user has heard the whole answer."""
        return self.all_sent() and self.position(now) >= self.total

    def unsent_s(self) -> float:
        """Return how many seconds of audio wait to be sent."""
        return (self.total - self.sent) / self._rate_hz

    def _pull(self, length: int) -> Samples:
        parts: list[Samples] = []
        while length:
            head = self._pending.popleft()
            if len(head) > length:
                self._pending.appendleft(head[length:])
                head = head[:length]
            parts.append(head)
            length -= len(head)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
