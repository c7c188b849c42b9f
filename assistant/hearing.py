"""Where the user's utterance begins and ends, on the input stream's sample clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from assistant.events import INPUT_RATE_HZ, AudioAnalysed
from assistant.settings import TurnDetection
from assistant.turn_end import TurnEnd
from audio.streaming import TAIL_MS
from audio.vad import SpeechGate

STALL_S = 1.0
"""A microphone that sends nothing for this long has fallen silent."""
JUDGED_PAUSE_MS = 160
"""The pause after which the words are judged if no answer is begun at pauses."""
Change = Literal["started", "paused", "resumed", "stopped"]
"""What a window of sound does to the utterance: `paused` and `resumed` alternate inside it."""


@dataclass(frozen=True, slots=True)
class Utterance:
    """A stretch of input samples that one person spoke, with its moments on the clock."""

    start_sample: int
    last_voiced_sample: int
    end_sample: int
    speech_start_s: float
    speech_end_s: float


class Hearing:
    """Follows the speech probability of one session and says when an utterance starts and ends.

    An arrival can only be late, so the earliest one (arrival time less sample time) since the
    utterance began shows where the sample clock stands on the wall clock.
    """

    def __init__(
        self, detection: TurnDetection, min_speech_ms: int, max_utterance_s: float
    ) -> None:
        self._detection = detection
        self._max_samples = round(max_utterance_s * INPUT_RATE_HZ)
        self._gate = SpeechGate(threshold=detection.threshold, min_speech_ms=min_speech_ms)
        self.turn_end = TurnEnd(detection.endpointer)
        """What is known about whether the utterance going on is over."""
        self._pause_ms = detection.pause_ms
        if self._pause_ms is None and detection.semantic is not None:
            self._pause_ms = JUDGED_PAUSE_MS
        self._paused = False
        self._padding = detection.prefix_padding_ms * INPUT_RATE_HZ // 1000
        self._earliest_sample = 0
        self.end_sample = 0
        """The end of the audio fed so far."""
        self._offset_s = 0.0
        self._last_arrival_s = 0.0

    @property
    def speaking(self) -> bool:
        """Whether an utterance is going on."""
        return self._gate.speaking

    @property
    def paused(self) -> bool:
        """Whether the user has been silent for long enough that this may be all."""
        return self._paused

    @property
    def over(self) -> bool:
        """Whether the utterance going on has been followed by all the silence that it needs."""
        return self.speaking and self._silence_ms >= self.turn_end.silence_needed_ms

    @property
    def last_voiced_sample(self) -> int:
        """Where the speech of the utterance going on ended, as far as is known."""
        return self._gate.last_voiced_sample

    @property
    def start_sample(self) -> int:
        """The first sample of the utterance going on, padding included."""
        return max(self._earliest_sample, self._gate.start_sample - self._padding)

    @property
    def stalls_s(self) -> float | None:
        """When the utterance ends because no audio comes any more."""
        return self._last_arrival_s + STALL_S if self.speaking else None

    def needed_from(self) -> int:
        """Return the first sample that an utterance, going on or about to begin, may need."""
        if self.speaking:
            return self.start_sample
        return max(self._earliest_sample, self.end_sample - self._padding - INPUT_RATE_HZ)

    def feed(self, frame: AudioAnalysed, now: float) -> Change | None:
        """Take one analysed window; say what it changes."""
        self._last_arrival_s = now
        self.end_sample = frame.end_sample
        offset_s = now - frame.end_sample / INPUT_RATE_HZ
        if self._gate.feed(frame.start_sample, frame.end_sample, frame.probability):
            self._offset_s = offset_s
            return "started"
        if not self._gate.speaking:
            return None
        self._offset_s = min(self._offset_s, offset_s)
        silence_ms = self._silence_ms
        too_long = frame.end_sample - self.start_sample >= self._max_samples
        if self.over or too_long:
            return "stopped"
        if self._paused and silence_ms == 0:
            self._paused = False
            self.turn_end.goes_on()
            return "resumed"
        if not self._paused and self._pause_ms is not None and silence_ms >= self._pause_ms:
            self._paused = True
            return "paused"
        return None

    @property
    def _silence_ms(self) -> float:
        return (self.end_sample - self._gate.last_voiced_sample) * 1000 / INPUT_RATE_HZ

    def take(self) -> Utterance:
        """End the utterance going on and return it."""
        utterance = self.utterance()
        self.forget(utterance.last_voiced_sample)
        return utterance

    def utterance(self) -> Utterance:
        """Return the utterance going on, as far as it has come."""
        assert self.speaking
        last_voiced = self._gate.last_voiced_sample
        tail = TAIL_MS * INPUT_RATE_HZ // 1000
        return Utterance(
            start_sample=self.start_sample,
            last_voiced_sample=last_voiced,
            end_sample=min(self.end_sample, last_voiced + tail),
            speech_start_s=self._offset_s + self._gate.start_sample / INPUT_RATE_HZ,
            speech_end_s=self._offset_s + last_voiced / INPUT_RATE_HZ,
        )

    def forget(self, until_sample: int) -> None:
        """Let nothing before `until_sample` belong to an utterance any more."""
        self._gate.reset()
        self._paused = False
        self.turn_end.goes_on()
        self._earliest_sample = until_sample
