"""When something is missing or breaks, the page says what to do, and typing goes on working."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import FAKE_MICROPHONE, Launch
from tests.browser.fake_server import (
    FakeServer,
    Line,
    answer,
    begin_answer,
    echo_question,
    end_answer,
    say,
    sound,
    tone,
)

ANSWER = "Because of the air."
REMEMBER_STREAM = """
  const devices = navigator.mediaDevices;
  const open = devices.getUserMedia.bind(devices);
  devices.getUserMedia = async (wishes) => (window.stream = await open(wishes));
"""


async def answers(line: Line) -> None:
    number = 0
    while True:
        await echo_question(line)
        number += 1
        await answer(line, f"a{number}", ANSWER, tone(0.2), generation=number)


def ask(page: Page, text: str) -> None:
    page.get_by_label("Your question").fill(text)
    page.get_by_role("button", name="Send").click()


def expect_typing_works(page: Page) -> None:
    ask(page, "Why is the sky blue?")
    expect(page.locator(".caption.assistant").last).to_have_text(f"Assistant{ANSWER}")


@pytest.fixture(scope="module")
def without_devices(launch: Launch) -> Browser:
    return launch("--use-fake-ui-for-media-stream")


@pytest.fixture(scope="module")
def with_strict_permissions(launch: Launch) -> Browser:
    return launch("--use-fake-device-for-media-stream")


@pytest.fixture(scope="module")
def elsewhere(launch: Launch) -> Browser:
    """A browser to which this machine is another one."""
    return launch("--host-resolver-rules=MAP assistant.test 127.0.0.1", *FAKE_MICROPHONE)


class TestMicrophone:
    def test_blocked(self, with_strict_permissions: Browser, server: FakeServer) -> None:
        server.script = answers
        with with_strict_permissions.new_context(permissions=[]) as context:
            page = context.new_page()
            page.goto(server.url)
            page.get_by_role("button", name="Start microphone").click()
            alert = page.get_by_role("alert")
            expect(alert).to_contain_text("The microphone is blocked for this page.")
            expect(alert).to_contain_text("Allow it in the site settings")
            expect_typing_works(page)
            context.grant_permissions(["microphone"])
            alert.get_by_role("button", name="Try again").click()
            expect(page.get_by_role("button", name="Stop microphone")).to_be_visible()
            expect(alert).to_be_hidden()

    def test_none_there(self, without_devices: Browser, server: FakeServer) -> None:
        server.script = answers
        with without_devices.new_context() as context:
            page = context.new_page()
            page.goto(server.url)
            page.get_by_role("button", name="Start microphone").click()
            expect(page.get_by_role("alert")).to_contain_text(
                "No microphone was found. Plug one in"
            )
            expect(page.get_by_role("status")).to_have_text("Ready Type your question.")
            expect_typing_works(page)

    def test_taken_away(self, page: Page, server: FakeServer) -> None:
        server.script = answers
        page.add_init_script(REMEMBER_STREAM)
        page.goto(server.url)
        page.get_by_role("button", name="Start microphone").click()
        page.get_by_role("button", name="Stop microphone").wait_for()
        page.evaluate("stream.getTracks()[0].dispatchEvent(new Event('ended'))")
        expect(page.get_by_role("alert")).to_contain_text("The microphone is gone.")
        expect(page.get_by_role("status")).to_have_text("Ready Type your question.")
        page.get_by_role("alert").get_by_role("button", name="Start again").click()
        expect(page.get_by_role("button", name="Stop microphone")).to_be_visible()

    def test_is_released_when_stopped(self, page: Page, server: FakeServer) -> None:
        page.add_init_script(REMEMBER_STREAM)
        page.goto(server.url)
        status = page.get_by_role("status")
        expect(status).to_have_text("Ready Type, or start the microphone.")
        page.get_by_role("button", name="Start microphone").click()
        expect(status).to_have_text("Listening Speak when you like.")
        page.get_by_role("button", name="Stop microphone").click()
        expect(status).to_have_text("Ready Type, or start the microphone.")
        assert page.evaluate("stream.getTracks().map((track) => track.readyState)") == ["ended"]


class TestInsecurePage:
    def test_asks_for_written_answers(self, elsewhere: Browser, server: FakeServer) -> None:
        async def writes(line: Line) -> None:
            update = await line.expect("session.update")
            assert update["session"]["output_modalities"] == ["text"]
            await echo_question(line)
            await begin_answer(line, "a")
            place = {"response_id": "resp_a", "item_id": "item_a", "output_index": 0}
            await line.send("response.output_text.delta", **place, content_index=0, delta=ANSWER)
            await end_answer(line, "a", ANSWER)

        server.script = writes
        with elsewhere.new_context() as context:
            page = context.new_page()
            page.goto(server.url.replace("127.0.0.1", "assistant.test"))
            alert = page.get_by_role("alert")
            expect(alert).to_contain_text("secure pages only. Open this page over https")
            page.get_by_role("button", name="Start microphone").click()
            expect(alert).to_be_visible()
            expect_typing_works(page)
            expect(page.get_by_role("status")).to_have_text("Ready Type your question.")


class TestConnection:
    @pytest.mark.parametrize(
        ("refusal", "said"),
        [
            ("server_not_ready", "The assistant is still loading its models."),
            ("too_many_sessions", "The assistant is talking to as many people as it can."),
        ],
    )
    def test_waits_for_its_turn(
        self, page: Page, server: FakeServer, refusal: str, said: str
    ) -> None:
        server.refusal = refusal
        page.goto(server.url)
        alert = page.get_by_role("alert")
        expect(alert).to_contain_text(said)
        expect(page.get_by_role("status")).to_contain_text("Not connected")
        server.refusal = None
        expect(page.get_by_text("Connected", exact=True)).to_be_visible()
        expect(alert).to_be_hidden()
        expect(page.locator(".divider")).to_have_count(0)  # no conversation was lost

    def test_sends_the_question_that_had_to_wait(self, page: Page, server: FakeServer) -> None:
        server.script = answers
        server.refusal = "server_not_ready"
        page.goto(server.url)
        alert = page.get_by_role("alert")
        expect(alert).to_be_visible()
        ask(page, "Is anybody there?")
        expect(alert).to_contain_text("Your question waits in the box.")
        expect(alert).to_contain_text("The assistant is still loading its models.")
        expect(page.get_by_label("Your question")).to_have_value("Is anybody there?")
        server.refusal = None
        expect(page.locator(".caption.assistant")).to_have_text(f"Assistant{ANSWER}")
        expect(page.locator(".caption.user")).to_have_text("YouIs anybody there?")
        expect(page.get_by_label("Your question")).to_have_value("")
        expect(alert).to_be_hidden()

    def test_comes_back_and_says_that_it_remembers_nothing(
        self, page: Page, server: FakeServer
    ) -> None:
        async def leaves(line: Line) -> None:
            await echo_question(line)
            await answer(line, "a", ANSWER, tone(0.2), generation=1)
            await line.played("resp_a", 200.5)  # its last report: the end is rounded up
            server.script = answers
            server.shut_door()
            await line.hang_up(reason="server_shutdown")

        server.script = leaves
        page.goto(server.url)
        expect_typing_works(page)
        alert = page.get_by_role("alert")
        expect(alert).to_contain_text("The connection was lost. This page is reconnecting")
        server.open_door()
        expect(page.locator(".divider")).to_have_text(
            "Reconnected. A new conversation begins here."
        )
        expect(alert).to_be_hidden()
        expect_typing_works(page)
        page.wait_for_function(  # generations count from the start again, and still are played
            "assistantProbe.playback.filter(({type}) => type === 'finished').length === 2"
        )

    def test_lost_in_the_middle_of_an_answer_ends_the_sound(
        self, page: Page, server: FakeServer
    ) -> None:
        async def leaves(line: Line) -> None:
            await echo_question(line)
            await begin_answer(line, "a")
            await sound(line, "a", tone(10), generation=1)
            await line.played("resp_a", 300)
            await line.hang_up()

        server.script = leaves
        page.goto(server.url)
        ask(page, "Why is the sky blue?")
        page.wait_for_function("assistantProbe.soundStoppedAt !== null")
        expect(page.locator(".caption.assistant")).to_be_visible()
        expect(page.get_by_role("status")).to_contain_text("Ready")

    def test_closed_after_a_long_silence_waits_for_the_user(
        self, page: Page, server: FakeServer
    ) -> None:
        async def falls_asleep(line: Line) -> None:
            server.script = answers
            await line.hang_up(1000, "idle_timeout")

        server.script = falls_asleep
        page.goto(server.url)
        alert = page.get_by_role("alert")
        expect(alert).to_contain_text("The conversation was closed after a long silence.")
        alert.get_by_role("button", name="Begin again").click()
        expect(alert).to_be_hidden()
        expect_typing_works(page)
        assert len(server.lines) == 2

    def test_without_a_server(self, page: Page, server: FakeServer) -> None:
        with FakeServer() as short_lived:
            page.goto(short_lived.url)
            expect(page.get_by_text("Connected", exact=True)).to_be_visible()
        alert = page.get_by_role("alert")
        expect(alert).to_contain_text("The assistant cannot be reached. See that the server runs")
        expect(alert.get_by_role("button", name="Try now")).to_be_visible()

    def test_error_of_the_server_is_shown(self, page: Page, server: FakeServer) -> None:
        async def complains(line: Line) -> None:
            error = {"type": "server_error", "code": "oops", "message": "The recogniser is stuck."}
            await line.send("error", error=error)

        server.script = complains
        page.goto(server.url)
        expect(page.get_by_role("alert")).to_contain_text(
            "The assistant reported a problem. The recogniser is stuck."
        )

    def test_failed_answer_says_so_in_its_place(self, page: Page, server: FakeServer) -> None:
        async def fails(line: Line) -> None:
            await echo_question(line)
            await begin_answer(line, "a")
            error = {"type": "server_error", "code": "model_failed", "message": "Ask once more."}
            failed = {"object": "realtime.response", "id": "resp_a", "status": "failed"}
            details = {"type": "failed", "error": error}
            await line.send("response.done", response={**failed, "status_details": details})

        server.script = fails
        page.goto(server.url)
        ask(page, "Why is the sky blue?")
        expect(page.locator(".caption.assistant")).to_contain_text("Ask once more.")
        expect(page.get_by_role("status")).to_contain_text("Ready")

    @pytest.mark.parametrize(
        ("reason", "said"),
        [
            ("max_output_tokens", "Cut short: the answer reached its length limit."),
            ("content_filter", "Cut short: the answer was not completed."),
        ],
    )
    def test_answer_that_was_cut_short_says_so(
        self, page: Page, server: FakeServer, reason: str, said: str
    ) -> None:
        async def breaks_off(line: Line) -> None:
            await echo_question(line)
            await begin_answer(line, "a")
            await say(line, "a", "Because of")
            await sound(line, "a", tone(0.2), generation=1)
            details = {"type": "incomplete", "reason": reason}
            await end_answer(line, "a", "Because of", "incomplete", status_details=details)

        server.script = breaks_off
        page.goto(server.url)
        ask(page, "Why is the sky blue?")
        expect(page.locator(".caption.assistant")).to_have_text(f"AssistantBecause of{said}")
        expect(page.locator(".heard")).to_have_text("Because of")
        expect(page.locator(".unheard")).to_have_count(0)  # nobody interrupted it


@pytest.fixture
def silenced(page: Page) -> Page:
    """A page whose browser does not let sound start by itself."""
    page.add_init_script("""
      const Original = AudioContext;
      window.AudioContext = class extends Original {
        constructor(...given) { super(...given); this.suspend(); window.audio = this; }
        resume() { return window.allowed ? super.resume() : new Promise(() => {}); }
      };
    """)
    return page


def test_held_back_sound_has_a_button(silenced: Page, server: FakeServer) -> None:
    server.script = answers
    silenced.goto(server.url)
    ask(silenced, "Why is the sky blue?")
    alert = silenced.get_by_role("alert")
    expect(alert).to_contain_text("The browser holds the sound back.")
    silenced.wait_for_function(  # each piece of sound tries to start it; now only the button does
        "assistantProbe.events.some(({event}) => event.type === 'response.done')"
    )
    silenced.evaluate("window.allowed = true")
    alert.get_by_role("button", name="Turn on sound").click()
    expect(alert).to_be_hidden()
    silenced.wait_for_function("assistantProbe.playback.some(({type}) => type === 'finished')")
