"""Where speech is: Silero on every 32 ms window, and a gate that turns probabilities into speech.

All times are sample counts at 16 kHz since the start of the stream, so the verdict does not
depend on when the sound arrived or how it was cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnxruntime

from audio.errors import ModelFolderError, brief
from audio.pcm import Samples

SAMPLE_RATE_HZ = 16_000
VAD_WINDOW = 512
"""Samples in one window: 32 ms."""

_NETWORK = Path("assets", "silero_vad_v6.onnx")
_CONTEXT = 64
_STATE_SHAPE = (1, 1, 128)


@dataclass(frozen=True, slots=True)
class SpeechFrame:
    """How likely the samples `[start_sample, end_sample)` are speech, 0 to 1."""

    start_sample: int
    end_sample: int
    probability: float


class SileroVad:
    """The Silero network (v6), shared by all streams; safe to use from several threads.

    It is a recurrent network over windows of 512 samples, each preceded by the last 64 samples of
    the window before. `load_vad` makes one.
    """

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self._session = session

    def stream(self) -> VadStream:
        """Begin a stream with a state of its own."""
        return VadStream(self)

    def run(
        self, window: Samples, hidden: Samples, cell: Samples
    ) -> tuple[float, Samples, Samples]:
        """The speech probability of one window with its context (`[1, 576]`), and the new state."""
        probability, hidden, cell = self._session.run(
            None, {"input": window, "h": hidden, "c": cell}
        )
        return float(probability[0]), hidden, cell


@cache
def load_vad(threads: int = 1) -> SileroVad:
    """Load the Silero network that faster-whisper ships; later calls return the same one.

    Raises `ModelFolderError` when the installed faster-whisper does not contain it, or contains
    one that does not run.
    """
    package = find_spec("faster_whisper")
    path = Path(package.origin if package and package.origin else "").parent / _NETWORK
    if not path.is_file():
        raise ModelFolderError(
            "the installed faster-whisper does not contain the speech detector; "
            "install faster-whisper 1.2 or later"
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        # The fallback from a failed CPU session is the same session again, announced on stdout.
        session = onnxruntime.InferenceSession(
            path, options, ["CPUExecutionProvider"], enable_fallback=0
        )
        vad = SileroVad(session)
        vad.stream().feed(np.zeros(VAD_WINDOW, np.float32))
    except Exception as error:  # ONNX Runtime's own exceptions share no base class
        raise ModelFolderError(
            f"the speech detector {path} is damaged ({brief(error)}); "
            "install faster-whisper again (pip install --force-reinstall faster-whisper)"
        ) from error
    return vad


class VadStream:
    """One stream's recurrent state; feed it 16 kHz samples in any portions."""

    def __init__(self, vad: SileroVad) -> None:
        self._vad = vad
        self._hidden = np.zeros(_STATE_SHAPE, np.float32)
        self._cell = np.zeros(_STATE_SHAPE, np.float32)
        self._context = np.zeros(_CONTEXT, np.float32)
        self._remainder = np.zeros(0, np.float32)
        self._analysed = 0

    def feed(self, samples: Samples) -> list[SpeechFrame]:
        """Analyse every window that is complete now; the rest waits for the next call."""
        pending = np.concatenate([self._remainder, samples])
        whole = len(pending) - len(pending) % VAD_WINDOW
        frames = [
            self._analyse(pending[start : start + VAD_WINDOW])
            for start in range(0, whole, VAD_WINDOW)
        ]
        self._remainder = pending[whole:].copy()
        return frames

    def _analyse(self, window: Samples) -> SpeechFrame:
        # One window a call: the network could take many, but then rounding would depend on how
        # many arrived together.
        with_context = np.concatenate([self._context, window])[np.newaxis]
        probability, self._hidden, self._cell = self._vad.run(
            with_context, self._hidden, self._cell
        )
        self._context = window[-_CONTEXT:].copy()
        start = self._analysed
        self._analysed += VAD_WINDOW
        return SpeechFrame(start, self._analysed, probability)


class SpeechGate:
    """Decides from frame probabilities when speech has begun and which frames are voiced.

    A frame is voiced at `threshold`, and while something voiced is going on already at
    `release_threshold`. Speech is established once `min_speech_ms` of voiced frames have
    followed an onset; one unvoiced frame among them is tolerated, two forget the onset. The gate
    never ends speech by itself: how much silence ends a turn is the endpointer's business, and
    `reset` starts over.
    """

    def __init__(
        self,
        threshold: float = 0.5,
        release_threshold: float | None = None,
        min_speech_ms: float = 90,
    ) -> None:
        self._threshold = threshold
        self._release_threshold = (
            threshold - 0.15 if release_threshold is None else release_threshold
        )
        self._min_speech_samples = min_speech_ms * SAMPLE_RATE_HZ / 1000
        self.reset()

    speaking: bool
    """Whether speech has been established since the last reset."""
    start_sample: int
    """Where the speech began: the start of its first voiced frame."""
    last_voiced_sample: int
    """The end of the last voiced frame; with `start_sample`, the extent of the speech."""

    def reset(self) -> None:
        """Forget the speech; the next one is reported anew."""
        self.speaking = False
        self.start_sample = 0
        self.last_voiced_sample = 0
        self._voiced_samples = 0
        self._was_voiced = False

    def feed(self, start_sample: int, end_sample: int, probability: float) -> bool:
        """Take the next frame; true exactly once, at the frame that establishes speech."""
        level = self._release_threshold if self._was_voiced else self._threshold
        second_gap = not self._was_voiced
        self._was_voiced = probability >= level
        if not self._was_voiced:
            if second_gap and not self.speaking:
                self._voiced_samples = 0
            return False
        if not self._voiced_samples:
            self.start_sample = start_sample
        self._voiced_samples += end_sample - start_sample
        self.last_voiced_sample = end_sample
        if self.speaking or self._voiced_samples < self._min_speech_samples:
            return False
        self.speaking = True
        return True
