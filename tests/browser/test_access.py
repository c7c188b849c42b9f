"""Everybody can use the page: by keyboard, by ear, on a phone, in the dark, without motion."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.fake_server import (
    FakeServer,
    Line,
    begin_answer,
    echo_question,
    finish_turn,
    say,
    sound,
    tone,
)

ANSWER = "The sky looks blue because air scatters short waves of light far more than long ones."
HEARD = "The sky looks blue because"
READABLE = 4.5  # WCAG 2.2, 1.4.3: contrast of text
TOUCHABLE_PX = 40  # WCAG 2.2, 2.5.8 asks for 24


async def everything(line: Line) -> None:
    """Fill the page: a question, an interrupted answer, a turn, an error."""
    question = await echo_question(line)
    await begin_answer(line, "a")
    await say(line, "a", ANSWER)
    await sound(line, "a", tone(0.5), generation=1)
    await line.played("resp_a", 300)
    await line.send("x.playback.clear", response_id="resp_a", generation=1)
    await finish_turn(
        line,
        1,
        response_id="resp_a",
        transcript=question,
        heard=HEARD,
        outcome="interrupted",
    )
    error = {"type": "server_error", "code": "oops", "message": "The recogniser is stuck."}
    await line.send("error", error=error)


async def thinking(line: Line) -> None:
    await echo_question(line)
    await begin_answer(line, "a")


def ask(page: Page) -> None:
    page.get_by_label("Your question").fill("Why is the sky blue?")
    page.keyboard.press("Enter")


def fill(page: Page, server: FakeServer) -> None:
    server.script = everything
    page.goto(server.url)
    ask(page)
    expect(page.get_by_role("article")).to_be_visible()
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_text("As a table").click()


@pytest.fixture(params=["light", "dark"])
def themed(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    scheme: Literal["light", "dark"] = request.param
    with browser.new_context(color_scheme=scheme) as context:
        yield context.new_page()


class TestKeyboard:
    def test_order_follows_the_page(self, page: Page, server: FakeServer) -> None:
        page.goto(server.url)
        expect(page.get_by_text("Connected", exact=True)).to_be_visible()
        order = [
            page.get_by_role("link", name="Skip to the question box"),
            page.get_by_role("region", name="What was said"),
            page.get_by_role("button", name="Interrupt"),
            page.get_by_role("button", name="Start microphone"),
            page.get_by_role("textbox", name="Your question"),
            page.get_by_role("button", name="Send"),
        ]
        for control in order:
            page.keyboard.press("Tab")
            expect(control).to_be_focused()

    def test_is_enough_for_a_turn(self, page: Page, server: FakeServer) -> None:
        server.script = thinking
        page.goto(server.url)
        expect(page.get_by_text("Connected", exact=True)).to_be_visible()
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")  # the skip link
        page.keyboard.type("Why is the sky blue?")
        page.keyboard.press("Enter")
        box = page.get_by_label("Your question")
        expect(box).to_be_focused()
        expect(box).to_have_value("")
        expect(page.locator(".caption.assistant")).to_be_visible()
        page.keyboard.press("Escape")
        page.wait_for_function(
            "assistantProbe.events.some(({event}) => event.type === 'response.cancel')"
        )

    def test_starts_and_stops_the_microphone(self, page: Page, server: FakeServer) -> None:
        page.goto(server.url)
        page.get_by_role("button", name="Start microphone").focus()
        page.keyboard.press("Space")
        expect(page.get_by_role("button", name="Stop microphone")).to_be_focused()
        page.keyboard.press("Space")
        expect(page.get_by_role("button", name="Start microphone")).to_be_focused()

    def test_focus_can_be_seen(self, page: Page, server: FakeServer) -> None:
        page.goto(server.url)
        for _ in range(6):
            page.keyboard.press("Tab")
            width = page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
            assert width == "2px"


async def speaking(line: Line) -> None:
    await thinking(line)
    await sound(line, "a", tone(10), generation=1)


class TestScreenReader:
    def test_hears_what_the_assistant_does(self, page: Page, server: FakeServer) -> None:
        server.script = speaking
        page.goto(server.url)
        status = page.get_by_role("status")
        expect(status).to_have_attribute("aria-live", "polite")
        expect(status).to_contain_text("Ready")
        page.get_by_role("button", name="Start microphone").click()
        expect(status).to_contain_text("Listening")
        ask(page)
        expect(status).to_contain_text("Speaking")

    def test_is_told_each_state_once(self, page: Page, server: FakeServer) -> None:
        server.script = everything
        page.goto(server.url)
        expect(page.get_by_role("status")).to_contain_text("Ready")
        page.evaluate("""() => {
          window.announced = [];
          const label = document.querySelector("#state-label");
          new MutationObserver(() => announced.push(label.textContent))
            .observe(label, { childList: true, characterData: true, subtree: true });
        }""")
        ask(page)
        expect(page.get_by_role("alert")).to_be_visible()
        page.wait_for_function("announced.at(-1) === 'Ready'")
        assert page.evaluate("announced") == ["Thinking", "Speaking", "Ready"]

    def test_gets_the_struck_words_named(self, page: Page, server: FakeServer) -> None:
        fill(page, server)
        expect(page.locator("s")).to_have_text(f"(not heard:) {ANSWER[len(HEARD) + 1 :]}")

    def test_finds_the_numbers_in_a_table(self, page: Page, server: FakeServer) -> None:
        fill(page, server)
        table = page.get_by_role("table", name=re.compile("milliseconds", re.IGNORECASE))
        expect(table.get_by_role("columnheader")).to_have_text(["Step", "At", "Took"])
        expect(table.get_by_role("rowheader").first).to_contain_text("First text")

    def test_every_control_has_a_name(self, page: Page, server: FakeServer) -> None:
        fill(page, server)
        for control in page.get_by_role("button").all() + page.get_by_role("textbox").all():
            expect(control).to_have_accessible_name(re.compile(r"\w"))


CONTRASTS = """
() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const read = (color, under) => {
    canvas.fillStyle = `rgb(${under.join(" ")})`; canvas.fillRect(0, 0, 1, 1);
    canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((value) => value / 255)
      .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    const chain = [];
    for (let at = element; at; at = at.parentElement) chain.unshift(at);
    return chain.reduce((under, at) => read(getComputedStyle(at).backgroundColor, under),
      [255, 255, 255]);
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  while (texts.nextNode()) {
    const { parentElement: element, textContent } = texts.currentNode;
    const hidden = element.closest(".quiet, .skip, noscript, [aria-disabled=true]");
    if (hidden || element.getClientRects().length === 0 || textContent.trim() === "") continue;
    const style = getComputedStyle(element);
    const under = behind(element);
    const color = read(element instanceof SVGElement ? style.fill : style.color, under);
    const [light, dark] = [luminance(color), luminance(under)].sort((a, b) => b - a);
    found.push({ text: textContent.trim().slice(0, 40), ratio: (light + 0.05) / (dark + 0.05) });
  }
  return found;
}
"""


def test_all_text_is_readable(themed: Page, server: FakeServer) -> None:
    fill(themed, server)
    contrasts = themed.evaluate(CONTRASTS)
    assert len(contrasts) > 40
    assert [found for found in contrasts if found["ratio"] < READABLE] == []


def test_nothing_moves_for_those_who_asked(browser: Browser, server: FakeServer) -> None:
    def animations(motion: Literal["reduce", "no-preference"]) -> int:
        server.script = thinking
        with browser.new_context(reduced_motion=motion) as context:
            page = context.new_page()
            page.goto(server.url)
            expect(page.get_by_text("Connected", exact=True)).to_be_visible()
            ask(page)
            expect(page.get_by_role("status")).to_contain_text("Thinking")
            return int(page.evaluate("document.getAnimations().length"))

    assert animations("no-preference") > 0
    assert animations("reduce") == 0


@pytest.mark.parametrize("width", [320, 390])
def test_fits_a_phone(browser: Browser, server: FakeServer, width: int) -> None:
    with browser.new_context(viewport={"width": width, "height": 700}) as context:
        page = context.new_page()
        fill(page, server)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for button in page.locator(".dock").get_by_role("button").all():
            box = button.bounding_box()
            assert box is not None and box["height"] >= TOUCHABLE_PX
            assert box["x"] >= 0 and box["x"] + box["width"] <= width
        status = page.get_by_role("status").bounding_box()
        assert status is not None and status["y"] + status["height"] <= 700


def test_all_it_needs_comes_from_its_own_server(browser: Browser, server: FakeServer) -> None:
    complaints: list[str] = []
    requested: list[str] = []
    with browser.new_context() as context:
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("request", lambda request: requested.append(request.url))
        fill(page, server)
    assert [url for url in requested if not url.startswith(server.url)] == []
    assert complaints == []  # the content policy would complain here
