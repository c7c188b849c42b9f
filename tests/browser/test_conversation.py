"""The page in conversation with a scripted server: what is shown, played, measured and sent."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.browser.fake_server import (
    FRAME_MS,
    FakeServer,
    Line,
    answer,
    begin_answer,
    echo_question,
    end_answer,
    finish_turn,
    say,
    sound,
    tone,
)

QUESTION = "Why is the sky blue?"
ANSWER = "The sky looks blue because air scatters short waves of light far more than long ones."
HEARD = "The sky looks blue because"
SILENCE = 1e-4  # root mean square below which nothing sounds
WINDOW_S = 0.011  # one of the page's level windows


def ask(page: Page, text: str = QUESTION) -> None:
    page.get_by_label("Your question").fill(text)
    page.keyboard.press("Enter")


def open_connected(page: Page, server: FakeServer) -> None:
    page.goto(server.url)
    expect(page.get_by_text("Connected", exact=True)).to_be_visible()


def probe(page: Page, what: str) -> Any:
    """A member of the page's probe: any JSON value."""
    return page.evaluate(f"assistantProbe.{what}")


def playback(page: Page, kind: str, response_id: str) -> dict[str, Any]:
    events = probe(page, "playback")
    [found] = [e for e in events if e["type"] == kind and e["responseId"] == response_id]
    return dict(found)


def until_silent(page: Page) -> None:
    page.wait_for_function(
        """windowS => {
          const { soundStoppedAt, outputLevels } = assistantProbe;
          const last = outputLevels.at(-1);
          return soundStoppedAt !== null && last.level === 0
            && last.time > soundStoppedAt + 2 * windowS;
        }""",
        arg=WINDOW_S,
    )


def gaps(page: Page) -> list[tuple[float, float]]:
    """Where, on the audio clock, a busy machine left a block out or gave its sound too late."""
    events = [event for event in probe(page, "playback") if event["type"] in ("skip", "underrun")]
    return [(event["time"] - event["gapMs"] / 1000, event["time"]) for event in events]


async def whole_turn(line: Line) -> None:
    question = await echo_question(line)
    await answer(line, "a", ANSWER, tone(1.5), generation=1)
    await line.played("resp_a", 1500.5)  # its last report: the end is rounded up
    await finish_turn(line, 1, response_id="resp_a", transcript=question, heard=ANSWER)


async def endless_answer(line: Line) -> None:
    """An answer of which more than is played will have come, and which is still being made."""
    await echo_question(line)
    await begin_answer(line, "a")
    await say(line, "a", ANSWER)
    await sound(line, "a", tone(10), generation=1)


class TestTypedQuestion:
    def test_asks_for_the_extension(self, page: Page, server: FakeServer) -> None:
        open_connected(page, server)
        server.wait_until_sent("session.update")
        [update] = server.sent("session.update")
        assert update["session"]["x"] == {"events": True, "acknowledge_playback": True}

    def test_is_shown_answered_and_timed(self, page: Page, server: FakeServer) -> None:
        server.script = whole_turn
        open_connected(page, server)
        ask(page)
        conversation = page.get_by_role("region", name="What was said")
        expect(conversation.get_by_role("listitem")).to_have_text(
            [f"You{QUESTION}", f"Assistant{ANSWER}"]
        )
        turn = page.get_by_role("article")
        expect(turn.get_by_role("heading")).to_have_text(f"“{QUESTION}”")
        expect(turn).to_contain_text("Answer sent952 ms")
        expect(turn.get_by_title("server TTFA")).to_have_text("Answer sent952 ms")
        expect(turn).not_to_contain_text("TTFA")
        expect(turn.get_by_role("img")).to_have_accessible_name(
            "After the question: First text 768 ms, First clause 804 ms, First audio 951 ms, "
            "Sent 952 ms, Heard 1015 ms."
        )
        turn.get_by_text("As a table").click()
        rows = turn.get_by_role("table").get_by_role("row")
        expect(rows.nth(3)).to_contain_text("First audio")
        expect(rows.nth(3)).to_contain_text("951147")

    def test_is_answered_with_sound(self, page: Page, server: FakeServer) -> None:
        server.script = whole_turn
        open_connected(page, server)
        ask(page)
        expect(page.get_by_role("article")).to_be_visible()
        loud = [entry for entry in probe(page, "outputLevels") if entry["level"] > 0.3]
        seconds = loud[-1]["time"] - loud[0]["time"]
        silences = gaps(page)
        seconds -= sum(end - begin for begin, end in silences)
        assert seconds == pytest.approx(1.5, abs=(2 + len(silences)) * WINDOW_S)

    def test_acknowledges_absolute_positions(self, page: Page, server: FakeServer) -> None:
        server.script = whole_turn
        open_connected(page, server)
        ask(page)
        expect(page.get_by_role("article")).to_be_visible()
        reports = server.sent("x.playback")
        positions = [report["position_ms"] for report in reports]
        assert {report["response_id"] for report in reports} == {"resp_a"}
        assert positions[0] == 0
        assert all(a < b for a, b in itertools.pairwise(positions))
        # On the audio clock a position says how long the answer has sounded.
        started = playback(page, "started", "resp_a")["time"]
        silences = gaps(page)
        tolerance_ms = 0.1 + 1000 * WINDOW_S * len(silences)
        for event in probe(page, "playback"):
            if event["type"] == "progress" and event["responseId"]:
                now = event["time"]
                silent = sum(min(now, end) - begin for begin, end in silences if begin < now)
                sounded_ms = (now - started - silent) * 1000
                assert event["positionMs"] == pytest.approx(sounded_ms, abs=tolerance_ms)
        # The end is rounded up, never down: short of it, the turn would stay open.
        assert 1500 < positions[-1] < 1502

    def test_words_turn_from_ahead_to_heard(self, page: Page, server: FakeServer) -> None:
        server.script = endless_answer
        open_connected(page, server)
        ask(page)
        heard = page.locator(".heard")
        expect(heard).not_to_have_text("")
        first = heard.inner_text()
        page.wait_for_function(
            "length => document.querySelector('.heard').innerText.length > length", arg=len(first)
        )
        assert ANSWER.startswith(first)
        assert page.locator(".caption.assistant .words").inner_text().strip() == ANSWER

    def test_measures_from_the_question_to_the_first_audible_sample(
        self, page: Page, server: FakeServer
    ) -> None:
        quiet_s = 0.25

        async def late_voice(line: Line) -> None:
            for name in ("a", "b"):  # the context's clock runs from the first answer on
                question = await echo_question(line)
                pcm = np.concatenate([np.zeros(round(quiet_s * 24_000), np.int16), tone(0.3)])
                await answer(line, name, ANSWER, pcm, generation=1 if name == "a" else 2)
                await line.played(f"resp_{name}", 550)
                await finish_turn(
                    line, 1, response_id=f"resp_{name}", transcript=question, heard=ANSWER
                )

        server.script = late_voice
        open_connected(page, server)
        ask(page)
        expect(page.get_by_role("article")).to_have_count(1)
        ask(page)
        expect(page.get_by_role("article")).to_have_count(2)
        [_, turn] = probe(page, "turns")
        created = [e for e in probe(page, "events") if e["event"]["type"] == "response.created"]
        audible = playback(page, "audible", "resp_b")
        since_created_ms = (audible["time"] - created[1]["time"]) * 1000
        assert audible["positionMs"] == pytest.approx(quiet_s * 1000, abs=1)
        assert turn["measuredTtfaMs"] > since_created_ms >= quiet_s * 1000


class TestSpokenQuestion:
    def test_microphone_arrives_in_frames_on_the_audio_clock(
        self, page: Page, server: FakeServer
    ) -> None:
        open_connected(page, server)
        start = page.get_by_role("button", name="Start microphone")
        start.click()
        page.wait_for_function("assistantProbe.inputLevels.length > 60")
        page.get_by_role("button", name="Stop microphone").click()
        start.click()  # the clock goes on while nothing is appended
        page.wait_for_function("assistantProbe.inputLevels.length > 120")
        page.get_by_role("button", name="Stop microphone").click()

        times = [entry["time"] for entry in probe(page, "inputLevels")]
        sent = [e["event"] for e in probe(page, "events") if e["direction"] == "out"]
        sizes = {e["audio"] for e in sent if e["type"] == "input_audio_buffer.append"}
        assert sizes == {960}  # 20 ms of 24 kHz PCM16
        captured = page.evaluate(
            "count => Array.from({length: count}, (_, n) => assistantProbe.capturedAt(20 * n))",
            len(times),
        )
        assert captured == pytest.approx(times, abs=0.001)

    def test_is_shown_as_it_is_understood(self, page: Page, server: FakeServer) -> None:
        async def spoken(line: Line) -> None:
            await line.heard(100)
            await line.send("input_audio_buffer.speech_started", item_id="said", audio_start_ms=20)
            await line.cued()
            await line.send("input_audio_buffer.speech_stopped", item_id="said", audio_end_ms=580)
            for part in ("Why is ", "the sky blue?"):
                await line.send(
                    "conversation.item.input_audio_transcription.delta",
                    item_id="said",
                    content_index=0,
                    delta=part,
                )

        server.script = spoken
        open_connected(page, server)
        status = page.get_by_role("status")
        page.get_by_role("button", name="Start microphone").click()
        expect(status).to_contain_text("Hearing you")
        expect(page.get_by_label("speaking")).to_be_visible()
        server.cue()
        expect(status).to_contain_text("Thinking")
        expect(page.locator(".caption.user")).to_have_text(f"You{QUESTION}")

    def test_is_shown_in_words_while_it_goes_on(self, page: Page, server: FakeServer) -> None:
        async def speaking(line: Line) -> None:
            await line.heard(100)
            await line.send("input_audio_buffer.speech_started", item_id="said", audio_start_ms=20)
            for stable, tentative in (("", "what thyme"), ("what", "time is it")):
                await line.send(
                    "x.transcript.partial", item_id="said", stable=stable, tentative=tentative
                )
            await line.cued()
            transcription = "conversation.item.input_audio_transcription"
            where = {"item_id": "said", "content_index": 0}
            await line.send(f"{transcription}.delta", **where, delta=QUESTION)
            await line.cued()
            usage = {"type": "duration", "seconds": 1.0}
            await line.send(f"{transcription}.completed", **where, transcript=QUESTION, usage=usage)

        server.script = speaking
        open_connected(page, server)
        page.get_by_role("button", name="Start microphone").click()
        caption = page.locator(".caption.user")
        expect(caption).to_have_text("Youwhat time is it")
        server.cue()
        expect(caption).to_have_text(f"You{QUESTION}")
        server.cue()
        expect(caption).to_have_text(f"You{QUESTION}")

    def test_a_cough_leaves_nothing_behind(self, page: Page, server: FakeServer) -> None:
        async def cough(line: Line) -> None:
            await line.heard(100)
            await line.send("input_audio_buffer.speech_started", item_id="cough", audio_start_ms=20)
            await line.cued()
            await line.send("input_audio_buffer.speech_stopped", item_id="cough", audio_end_ms=380)
            await line.send("x.turn.discarded", item_id="cough", reason="no_speech")

        server.script = cough
        open_connected(page, server)
        page.get_by_role("button", name="Start microphone").click()
        expect(page.get_by_role("status")).to_contain_text("Hearing you")
        server.cue()
        expect(page.get_by_role("status")).to_contain_text("Listening")
        expect(page.locator(".caption")).to_have_count(0)

    def test_is_timed_from_the_last_sample_spoken(self, page: Page, server: FakeServer) -> None:
        speech_end_ms, output_latency_ms = 500, 40

        async def spoken(line: Line) -> None:
            await line.heard(100)
            await line.send("input_audio_buffer.speech_started", item_id="said", audio_start_ms=20)
            await line.heard(1200)
            await line.send(
                "input_audio_buffer.speech_stopped",
                item_id="said",
                audio_end_ms=1000,
                x_speech_end_ms=speech_end_ms,
            )
            await answer(line, "a", ANSWER, tone(0.4), generation=1)
            await line.played("resp_a", 400)
            await finish_turn(
                line, 1, response_id="resp_a", transcript=QUESTION, heard=ANSWER, kind="spoken"
            )

        server.script = spoken
        page.add_init_script(
            "Object.defineProperty(AudioContext.prototype, 'outputLatency',"
            f" {{ get: () => {output_latency_ms / 1000} }});"
        )
        open_connected(page, server)
        page.get_by_role("button", name="Start microphone").click()
        expect(page.get_by_role("article")).to_be_visible()
        [turn] = probe(page, "turns")
        spoken_at = probe(page, f"capturedAt({speech_end_ms})")
        audible_at = playback(page, "audible", "resp_a")["time"]
        until_audible_ms = (audible_at - spoken_at) * 1000 + output_latency_ms
        assert turn["measuredTtfaMs"] == pytest.approx(until_audible_ms, abs=0.1)
        assert turn["measuredTtfaMs"] > 1200 - speech_end_ms


class TestInterruption:
    @pytest.mark.parametrize("extended", [True, False], ids=["our server", "any other"])
    def test_by_voice_stops_the_sound_and_says_where(
        self, page: Page, server: FakeServer, extended: bool
    ) -> None:
        async def barge_in(line: Line) -> None:
            await endless_answer(line)
            await line.played("resp_a", 700)
            await line.send(
                "input_audio_buffer.speech_started", item_id="said", audio_start_ms=4000
            )
            await sound(line, "a", tone(1), generation=1, start_ms=10_000)  # was on its way
            if extended:
                await line.send("x.playback.clear", response_id="resp_a", generation=1)
            truncation = await line.expect("conversation.item.truncate")
            await line.send(
                "conversation.item.truncated",
                item_id="item_a",
                content_index=0,
                audio_end_ms=truncation["audio_end_ms"],
            )
            await line.expect("conversation.item.retrieve")
            content = [{"type": "output_audio", "transcript": HEARD}]
            item = {
                "type": "message",
                "role": "assistant",
                "id": "item_a",
                "status": "incomplete",
                "content": content,
            }
            await line.send("conversation.item.retrieved", item=item)

        server.script = barge_in
        open_connected(page, server)
        ask(page)
        until_silent(page)
        expect(page.locator(".heard")).to_have_text(HEARD)
        expect(page.locator("s.unheard")).to_have_text(f"(not heard:) {ANSWER[len(HEARD) + 1 :]}")

        [truncation] = server.sent("conversation.item.truncate")
        cut = playback(page, "cut", "resp_a")
        assert truncation["item_id"] == "item_a"
        assert truncation["audio_end_ms"] == int(cut["positionMs"])
        assert server.sent("x.playback")[-1]["position_ms"] == pytest.approx(cut["positionMs"])
        after = [
            e["level"] for e in probe(page, "outputLevels") if e["time"] > cut["time"] + WINDOW_S
        ]
        assert after and max(after) < SILENCE

    def test_the_next_answer_is_heard_from_its_start(self, page: Page, server: FakeServer) -> None:
        async def two_answers(line: Line) -> None:
            await endless_answer(line)
            await line.played("resp_a", 500)
            await line.send("x.playback.clear", response_id="resp_a", generation=1)
            await sound(line, "a", tone(1), generation=1, start_ms=10_000)
            await answer(line, "b", "Because of the air.", tone(0.5), generation=2)

        server.script = two_answers
        open_connected(page, server)
        ask(page)
        page.wait_for_function(
            "assistantProbe.playback.some(({type, responseId}) =>"
            " type === 'finished' && responseId === 'resp_b')"
        )
        assert playback(page, "started", "resp_b")["positionMs"] == 0
        assert playback(page, "finished", "resp_b")["positionMs"] == pytest.approx(500, abs=0.1)

    def test_by_escape_cancels_what_is_being_made(self, page: Page, server: FakeServer) -> None:
        async def cancelled(line: Line) -> None:
            await endless_answer(line)
            await line.expect("response.cancel")
            await end_answer(line, "a", ANSWER, "cancelled")

        server.script = cancelled
        open_connected(page, server)
        ask(page)
        expect(page.get_by_role("status")).to_contain_text("Speaking")
        page.keyboard.press("Escape")
        until_silent(page)
        expect(page.locator(".caption.cut")).to_be_visible()
        expect(page.get_by_role("status")).to_contain_text("Ready")
        server.wait_until_sent("conversation.item.truncate")
        kinds = [event["type"] for event in server.received]
        order = ["x.playback", "response.cancel", "conversation.item.truncate"]
        assert kinds[-3:] == order  # the exact position first: the server cuts at it
        assert server.sent("output_audio_buffer.clear") == []

    def test_of_a_tail_that_only_plays_on_is_no_error(self, page: Page, server: FakeServer) -> None:
        async def finished_early(line: Line) -> None:
            await echo_question(line)
            await answer(line, "a", ANSWER, tone(10), generation=1)
            await line.expect("output_audio_buffer.clear")

        server.script = finished_early
        open_connected(page, server)
        ask(page)
        expect(page.get_by_role("status")).to_contain_text("Speaking")
        page.wait_for_function(
            "assistantProbe.events.some(({event}) => event.type === 'response.done')"
        )
        page.get_by_role("button", name="Interrupt").click()
        until_silent(page)
        assert server.sent("response.cancel") == []
        expect(page.get_by_role("alert")).to_be_hidden()

    def test_that_comes_too_late_for_the_server_is_no_error(
        self, page: Page, server: FakeServer
    ) -> None:
        async def refuses(line: Line) -> None:
            await endless_answer(line)
            late = await line.expect("response.cancel")
            error = {
                "type": "invalid_request_error",
                "code": "response_cancel_not_active",
                "message": "No such answer is being made.",
                "event_id": late["event_id"],
            }
            await line.send("error", error=error)
            await end_answer(line, "a", ANSWER)

        server.script = refuses
        open_connected(page, server)
        ask(page)
        expect(page.get_by_role("status")).to_contain_text("Speaking")
        page.keyboard.press("Escape")
        expect(page.get_by_role("status")).to_contain_text("Ready")
        expect(page.get_by_role("alert")).to_be_hidden()

    def test_with_nothing_to_stop_sends_nothing(self, page: Page, server: FakeServer) -> None:
        open_connected(page, server)
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Interrupt").click(force=True)  # it says it is disabled
        ask(page)
        page.wait_for_function("assistantProbe.events.length >= 4")
        kinds = [e["event"]["type"] for e in probe(page, "events") if e["direction"] == "out"]
        assert kinds == ["session.update", "conversation.item.create", "response.create"]

    def test_a_new_question_stops_the_old_answer(self, page: Page, server: FakeServer) -> None:
        server.script = endless_answer
        open_connected(page, server)
        ask(page)
        expect(page.get_by_role("status")).to_contain_text("Speaking")
        ask(page, "And at night?")
        server.wait_until_sent("response.create", times=2)
        kinds = [event["type"] for event in server.received if event["type"] != "x.playback"]
        assert kinds[-4:] == [
            "response.cancel",
            "conversation.item.truncate",
            "conversation.item.create",
            "response.create",
        ]


def test_what_never_came_is_passed_over(page: Page, server: FakeServer) -> None:
    async def with_a_hole(line: Line) -> None:
        await echo_question(line)
        await begin_answer(line, "a")
        await sound(line, "a", tone(0.2), generation=1)
        await sound(line, "a", tone(0.2), generation=1, start_ms=5000)
        await end_answer(line, "a", ANSWER)

    server.script = with_a_hole
    open_connected(page, server)
    ask(page)
    page.wait_for_function("assistantProbe.playback.some(({type}) => type === 'finished')")
    assert playback(page, "finished", "resp_a")["positionMs"] == pytest.approx(5200, abs=0.1)


def test_a_slow_server_is_heard_with_a_gap_and_nothing_lost(page: Page, server: FakeServer) -> None:
    async def slow(line: Line) -> None:
        await echo_question(line)
        await begin_answer(line, "a")
        pcm = tone(0.6)
        half = len(pcm) // 2
        await sound(line, "a", pcm[:half], generation=1)
        await line.played("resp_a", 300 - FRAME_MS)
        await line.heard(600)  # the microphone's clock: far longer than the rest lasts
        await sound(line, "a", pcm[half:], generation=1, start_ms=300)
        await end_answer(line, "a", ANSWER)

    server.script = slow
    open_connected(page, server)
    page.get_by_role("button", name="Start microphone").click()
    ask(page)
    page.wait_for_function("assistantProbe.playback.some(({type}) => type === 'finished')")
    underruns = playback(page, "finished", "resp_a")["underruns"]
    assert underruns >= 1  # a busy machine may add some
    assert playback(page, "finished", "resp_a")["positionMs"] == pytest.approx(600, abs=0.1)
    expect(page.get_by_text("dropouts: ")).to_be_visible()
