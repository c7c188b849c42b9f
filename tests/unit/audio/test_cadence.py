"""When an utterance is recognised again: at a dip, on a beat, and once at its end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from audio.cadence import COVER_MARGIN_MS, PartialCadence, covers
from audio.vad import SAMPLE_RATE_HZ, VAD_WINDOW

WINDOW_S = VAD_WINDOW / SAMPLE_RATE_HZ
VOICED_FROM = 0.35


class Listener:
    """Feeds probabilities, one a window, to a cadence whose attempts take `cost_s`."""

    def __init__(self, cost_s: float = 0.1) -> None:
        self.cadence = PartialCadence(0.0, cost_s)
        self.cost_s = cost_s
        self.asked: list[tuple[str, float]] = []
        self.cursors: list[int] = []
        self.ends_s: list[float] = []
        self.windows = 0
        self.last_voiced = 0

    def hear(self, *probabilities: float) -> None:
        for probability in probabilities:
            self.windows += 1
            end = self.windows * VAD_WINDOW
            now = end / SAMPLE_RATE_HZ
            if probability >= VOICED_FROM:
                self.last_voiced = end
            busy = any(now < end_s for end_s in self.ends_s)
            kind = self.cadence.feed(now, end, self.last_voiced, probability, busy=busy)
            if kind is not None:
                assert kind == "pause" or not busy, "a partial waits behind another attempt"
                self.asked.append((kind, now))
                self.cursors.append(end)
                self.cadence.asked(now, end)
                self.cadence.took(self.cost_s)
                self.ends_s.append(now + self.cost_s)

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.asked]


def test_a_fading_probability_asks_before_the_silence_does() -> None:
    listener = Listener()
    listener.hear(*[0.99] * 20, 0.55, 0.4, 0.1, 0.1, 0.1)
    assert listener.asked == [("partial", 21 * WINDOW_S)]
    assert covers(listener.cursors[0], listener.last_voiced)


def test_silence_that_comes_at_once_asks_once() -> None:
    listener = Listener()
    listener.hear(*[0.99] * 20, 0.1, 0.1, 0.1, 0.1, 0.1)
    assert listener.asked == [("pause", 21 * WINDOW_S)]


def test_speech_that_goes_on_after_a_silence_has_a_pause_of_its_own() -> None:
    listener = Listener()
    listener.hear(*[0.99] * 20, *[0.1] * 5, *[0.99] * 10, *[0.1] * 5)
    assert listener.kinds() == ["pause", "pause"]


def test_steady_speech_is_recognised_on_a_beat() -> None:
    listener = Listener(cost_s=0.05)
    listener.hear(*[0.99] * 320)
    assert listener.kinds() == ["partial"] * 5


def test_the_beat_slows_down_with_the_cost() -> None:
    slow, quick = Listener(cost_s=0.4), Listener(cost_s=0.05)
    for listener in (slow, quick):
        listener.hear(*[0.99] * 640)
    busy_s = len(slow.asked) * slow.cost_s
    assert len(slow.asked) < len(quick.asked) / 2
    assert busy_s < 640 * WINDOW_S / 7


def test_a_slow_moment_does_not_silence_the_rest() -> None:
    cadence = PartialCadence(0.0)
    for _ in range(50):
        cadence.took(60.0)
    assert cadence.feed(10.0, VAD_WINDOW, VAD_WINDOW, 0.99, busy=False) == "partial"


@given(st.lists(st.sampled_from([0.99, 0.8, 0.6, 0.4, 0.2, 0.02]), max_size=120))
def test_whatever_is_said_silence_is_always_covered(probabilities: list[float]) -> None:
    listener = Listener()
    listener.hear(0.99, *probabilities, 0.02)
    assert covers(listener.cursors[-1], listener.last_voiced)


def test_what_the_margin_is() -> None:
    margin = COVER_MARGIN_MS * SAMPLE_RATE_HZ // 1000
    assert covers(16_000 - margin, 16_000)
    assert not covers(16_000 - margin - 1, 16_000)
