"""The stretch of a session's microphone audio that may still be needed."""

from __future__ import annotations

from collections import deque

import numpy as np

from assistant.events import Samples


class MicrophoneBuffer:
    """Input samples by their absolute position; those that nobody needs any more are let go."""

    def __init__(self) -> None:
        self._blocks: deque[Samples] = deque()
        self.start_sample = 0
        self.end_sample = 0

    def append(self, samples: Samples) -> None:
        """Add the next samples."""
        if len(samples):
            self._blocks.append(samples)
            self.end_sample += len(samples)

    def release(self, before_sample: int) -> None:
        """Let go of whole blocks before `before_sample`."""
        while self._blocks and self.start_sample + len(self._blocks[0]) <= before_sample:
            self.start_sample += len(self._blocks.popleft())

    def slice(self, start_sample: int, end_sample: int) -> Samples:
        """Return the samples `[start_sample, end_sample)`, as far as they are still held."""
        held: Samples = np.concatenate(self._blocks) if self._blocks else np.zeros(0, np.float32)
        start = max(0, start_sample - self.start_sample)
        return held[start : max(start, end_sample - self.start_sample)]
