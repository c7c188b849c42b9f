"""The page's audio code, block by block: what is played, what is not, and where it stopped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playwright.sync_api import Browser, Page

from tests.browser.fake_server import FakeServer

BLOCK = 128  # Web Audio's render quantum
RATE_HZ = 48_000

# A loudspeaker of 48 kHz for the tests: plays the script, returns all that came out.
LOUDSPEAKER = """
async ({ script, rateHz, block }) => {
  const { Playout } = await import("/static/playout.js");
  const playout = new Playout(rateHz);
  const sound = [], events = [];
  const actions = {
    push: ({ samples, ...more }) => playout.push({ samples: Float32Array.from(samples), ...more }),
    end: ({ responseId }) => playout.end(responseId),
    flush: () => playout.flush(),
    clear: ({ generation }) => playout.clearThrough(generation),
    reset: () => playout.reset(),
    render: ({ blocks }) => {
      for (let at = 0; at < blocks; at++) {
        const output = new Float32Array(block);
        playout.render(output);
        for (const event of playout.events.splice(0)) {
          events.push({ ...event, at: sound.length + event.frame });
        }
        sound.push(...output);
      }
    },
  };
  for (const { action, ...more } of script) actions[action](more);
  return { sound, events, underruns: playout.underruns, targetMs: playout.targetMs };
}
"""

Step = dict[str, Any]


class Loudspeaker:
    """Plays a script of steps through the page's own code."""

    def __init__(self, page: Page) -> None:
        self._page = page

    def play(self, *script: Step) -> Played:
        given = {"script": list(script), "rateHz": RATE_HZ, "block": BLOCK}
        return Played(self._page.evaluate(LOUDSPEAKER, given))


class Played:
    """What came out of the loudspeaker, and what was reported."""

    def __init__(self, result: dict[str, Any]) -> None:
        self.sound = np.array(result["sound"], np.float32)
        self.events: list[Step] = result["events"]
        self.underruns: int = result["underruns"]
        self.target_ms: float = result["targetMs"]

    def event(self, kind: str) -> Step:
        [found] = [event for event in self.events if event["type"] == kind]
        return found

    @property
    def largest_step(self) -> float:
        return float(np.abs(np.diff(self.sound, prepend=0.0)).max())


def push(
    samples: list[float], *, start: int = 0, response: str = "a", generation: int | None = 1
) -> Step:
    return {
        "action": "push",
        "responseId": response,
        "generation": generation,
        "start": start,
        "samples": samples,
    }


def end(response: str = "a") -> Step:
    return {"action": "end", "responseId": response}


def render(blocks: int) -> Step:
    return {"action": "render", "blocks": blocks}


FLUSH: Step = {"action": "flush"}
LOUD = [0.5] * RATE_HZ  # a second at half of full scale: any break in it is a visible step


@pytest.fixture(scope="module")
def modules(browser: Browser, running_server: FakeServer) -> Iterator[Page]:
    """A page that can import the audio code."""
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(running_server.url)
        yield page


@pytest.fixture(scope="module")
def loudspeaker(modules: Page) -> Loudspeaker:
    return Loudspeaker(modules)


class TestPlaying:
    def test_waits_for_the_target_before_it_starts(self, loudspeaker: Loudspeaker) -> None:
        little = loudspeaker.play(push(LOUD[:BLOCK]), render(4))
        enough = loudspeaker.play(push(LOUD[: RATE_HZ // 10]), render(4))
        assert not little.sound.any()
        assert enough.event("started")["at"] == 0

    def test_does_not_wait_for_ever(self, loudspeaker: Loudspeaker) -> None:
        played = loudspeaker.play(push(LOUD[:BLOCK]), render(60))
        waited_ms = played.event("started")["at"] / RATE_HZ * 1000
        assert waited_ms == pytest.approx(played.target_ms, abs=2 * BLOCK / RATE_HZ * 1000)

    def test_a_whole_answer_needs_no_buffer(self, loudspeaker: Loudspeaker) -> None:
        played = loudspeaker.play(push(LOUD[:300]), end(), render(8))
        assert played.event("started")["at"] == 0
        assert played.event("finished")["position"] == 300

    def test_names_the_first_audible_sample(self, loudspeaker: Loudspeaker) -> None:
        quiet = [0.001] * 1000
        played = loudspeaker.play(push(quiet + LOUD[:9000]), end(), render(20))
        assert played.event("audible")["at"] == len(quiet)

    def test_answers_follow_one_another_without_a_gap(self, loudspeaker: Loudspeaker) -> None:
        played = loudspeaker.play(
            push(LOUD[:5000]),
            push(LOUD[:5000], response="b", generation=2),
            end(),
            end("b"),
            render(100),
        )
        assert np.count_nonzero(played.sound[:10_000]) == 10_000
        assert [e["position"] for e in played.events if e["type"] == "finished"] == [5000, 5000]

    def test_frames_that_never_came_are_counted_as_passed(self, loudspeaker: Loudspeaker) -> None:
        played = loudspeaker.play(push(LOUD[:480]), push(LOUD[:480], start=9600), end(), render(20))
        assert played.event("finished")["position"] == 9600 + 480


class TestStopping:
    def test_fades_within_one_block_and_is_silent_after(self, loudspeaker: Loudspeaker) -> None:
        played = loudspeaker.play(push(LOUD), render(20), FLUSH, render(20))
        stop = 20 * BLOCK
        fade = played.sound[stop : stop + BLOCK]
        assert played.sound[stop - 1] == 0.5
        assert (np.diff(fade) < 0).all() and fade[-1] == 0
        assert not played.sound[stop + BLOCK :].any()

    def test_says_exactly_where(self, loudspeaker: Loudspeaker) -> None:
        played = loudspeaker.play(push(LOUD), render(20), FLUSH, render(5))
        cut = played.event("cut")
        assert cut["responseId"] == "a"
        assert cut["position"] == cut["at"] == 21 * BLOCK

    def test_what_had_not_begun_is_cut_at_nothing(self, loudspeaker: Loudspeaker) -> None:
        played = loudspeaker.play(push(LOUD[:BLOCK]), FLUSH, render(60))
        assert played.event("cut")["position"] == 0
        assert not played.sound.any()

    def test_in_silence_is_answered_too(self, loudspeaker: Loudspeaker) -> None:
        assert loudspeaker.play(FLUSH, render(1)).event("cut")["responseId"] is None

    def test_what_arrives_late_is_never_played(self, loudspeaker: Loudspeaker) -> None:
        played = loudspeaker.play(
            push(LOUD),
            render(20),
            FLUSH,
            render(2),
            push(LOUD, start=RATE_HZ),  # the same answer goes on arriving
            push(LOUD, response="old", generation=0),
            render(200),
        )
        assert not played.sound[21 * BLOCK :].any()

    def test_nor_from_a_server_without_generations(self, loudspeaker: Loudspeaker) -> None:
        played = loudspeaker.play(
            push(LOUD, generation=None),
            render(20),
            FLUSH,
            render(2),
            push(LOUD, start=RATE_HZ, generation=None),
            render(100),
        )
        assert not played.sound[21 * BLOCK :].any()

    def test_the_next_answer_is_played(self, loudspeaker: Loudspeaker) -> None:
        played = loudspeaker.play(
            push(LOUD),
            render(20),
            FLUSH,
            render(2),
            push(LOUD, response="b", generation=2),
            render(9),
        )
        assert played.sound[22 * BLOCK] == 0.5

    def test_a_generation_is_cleared_with_all_before_it(self, loudspeaker: Loudspeaker) -> None:
        played = loudspeaker.play(
            push(LOUD),
            render(20),
            {"action": "clear", "generation": 1},
            push(LOUD, response="b", generation=2),
            render(20),
        )
        assert played.event("cut")["responseId"] == "a"
        assert played.sound[21 * BLOCK] == 0.5  # the newer answer, right after the fade

    def test_clearing_an_older_generation_leaves_the_sound_alone(
        self, loudspeaker: Loudspeaker
    ) -> None:
        older = {"action": "clear", "generation": 0}
        played = loudspeaker.play(push(LOUD), render(20), older, render(20))
        assert (played.sound == 0.5).all()

    def test_a_new_session_may_count_from_the_start(self, loudspeaker: Loudspeaker) -> None:
        reset = {"action": "reset"}
        again = push(LOUD, response="b", generation=1)
        played = loudspeaker.play(push(LOUD), render(20), reset, render(2), again, render(9))
        assert played.sound[22 * BLOCK] == 0.5


class TestRunningDry:
    def test_is_counted_and_makes_the_buffer_longer(self, loudspeaker: Loudspeaker) -> None:
        first, second = LOUD[:4800], LOUD[:24_000]
        played = loudspeaker.play(push(first), render(60), push(second, start=4800), render(60))
        before = loudspeaker.play(render(1))
        assert played.underruns == 1
        assert played.target_ms > before.target_ms
        gap = played.event("underrun")["gap"]
        assert gap == pytest.approx(60 * BLOCK - len(first), abs=BLOCK)

    def test_does_not_click(self, loudspeaker: Loudspeaker) -> None:
        smooth = np.linspace(0, 0.5, 4800).tolist()
        played = loudspeaker.play(push(smooth), render(60), push(LOUD, start=4800), render(60))
        assert played.underruns == 1
        assert played.largest_step < 0.01

    def test_at_the_very_end_is_no_dropout(self, loudspeaker: Loudspeaker) -> None:
        played = loudspeaker.play(push(LOUD[:4800]), render(60), end(), render(2))
        assert played.underruns == 0
        assert played.event("finished")["position"] == 4800

    def test_is_forgiven_by_answers_that_do_not(self, loudspeaker: Loudspeaker) -> None:
        dry = [push(LOUD[:4800]), render(60), push(LOUD[:4800], start=4800), end(), render(60)]
        clean = [
            step
            for name in "bcdefgh"
            for step in (push(LOUD[:4800], response=name), end(name), render(60))
        ]
        assert loudspeaker.play(*dry, *clean).target_ms < loudspeaker.play(*dry).target_ms


quickly = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
pieces = st.lists(st.integers(1, 3000), min_size=1, max_size=12)


@quickly
@given(pieces, st.lists(st.integers(0, 12), min_size=12, max_size=12))
def test_every_sample_is_played_once_and_in_order(
    loudspeaker: Loudspeaker, lengths: list[int], pauses: list[int]
) -> None:
    samples = np.linspace(0.1, 0.9, sum(lengths), dtype=np.float32)
    script: list[Step] = []
    at = 0
    for length, pause in zip(lengths, pauses, strict=False):
        script += [push(samples[at : at + length].tolist(), start=at), render(pause)]
        at += length
    played = loudspeaker.play(*script, end(), render(len(samples) // BLOCK + 4))
    if played.underruns == 0:  # else the fades change some of them
        heard = played.sound[played.event("started")["at"] :][: len(samples)]
        np.testing.assert_array_equal(heard, samples)
    assert played.event("finished")["position"] == len(samples)


RESAMPLE = """
async ({ fromHz, toHz, samples, lengths }) => {
  const { Resampler } = await import("/static/resampler.js");
  const resampler = new Resampler(fromHz, toHz);
  const output = [];
  let at = 0;
  for (const length of lengths) {
    output.push(...resampler.feed(Float32Array.from(samples.slice(at, at + length))));
    at += length;
  }
  output.push(...resampler.flush());
  return output;
}
"""
rates = st.sampled_from([(24_000, 48_000), (24_000, 44_100), (44_100, 24_000), (96_000, 24_000)])


class TestResampling:
    @quickly
    @given(rates, pieces)
    def test_does_not_depend_on_how_the_stream_was_cut(
        self, modules: Page, rates: tuple[int, int], lengths: list[int]
    ) -> None:
        from_hz, to_hz = rates
        noise = np.random.default_rng(7).uniform(-1, 1, sum(lengths)).tolist()
        given = {"fromHz": from_hz, "toHz": to_hz, "samples": noise}
        cut = modules.evaluate(RESAMPLE, {**given, "lengths": lengths})
        whole = modules.evaluate(RESAMPLE, {**given, "lengths": [sum(lengths)]})
        assert cut == whole
        assert len(whole) == -(-len(noise) * to_hz // from_hz)

    @pytest.mark.parametrize(("from_hz", "to_hz"), [(24_000, 44_100), (48_000, 24_000)])
    def test_keeps_a_tone(self, modules: Page, from_hz: int, to_hz: int) -> None:
        def wave(rate_hz: int, count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
            return 0.5 * np.sin(2 * np.pi * 1000 * np.arange(count) / rate_hz)

        given = {"fromHz": from_hz, "toHz": to_hz, "lengths": [4800]}
        result = modules.evaluate(RESAMPLE, {**given, "samples": wave(from_hz, 4800).tolist()})
        inner = slice(200, -200)  # past the ends, where the tone begins and stops at once
        np.testing.assert_allclose(
            np.array(result)[inner], wave(to_hz, len(result))[inner], atol=1e-3
        )

    def test_removes_what_the_lower_rate_cannot_carry(self, modules: Page) -> None:
        above = np.sin(2 * np.pi * 15_000 * np.arange(9600) / 48_000)
        given = {"fromHz": 48_000, "toHz": 24_000, "samples": above.tolist(), "lengths": [9600]}
        assert np.abs(np.array(modules.evaluate(RESAMPLE, given))[200:-200]).max() < 1e-3


def test_pcm_survives_the_wire(modules: Page) -> None:
    given = [-32768, -1, 0, 1, 255, 256, 32767]
    result = modules.evaluate(
        """async (values) => {
          const { floatToPcm, pcmToFloat, toBase64, fromBase64 } = await import("/static/pcm.js");
          const sent = toBase64(floatToPcm(Float32Array.from(values, (value) => value / 32768)));
          return Array.from(pcmToFloat(fromBase64(sent)), (sample) => sample * 32768);
        }""",
        given,
    )
    assert result == given
