"""The operator's page in a real browser, fed by the real server over scripted stages."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, expect
from pydantic import SecretStr
from websockets.sync.client import connect

from assistant.config import Config, LogConfig, ServerConfig
from assistant.effects import TurnFinished
from assistant.items import AnswerStep, DraftToken, Message, Usage
from assistant.language import Commitment, Ending, Piece
from assistant.stages import Stages
from assistant.timeline import Timeline
from tests.browser.fake_server import PATIENCE_S
from tests.browser.test_access import CONTRASTS, READABLE
from tests.fakes import ScriptedLanguageModel, fake_stages
from tests.protocol.live_server import LiveServer, serving

KEY = "sk-for-the-tests"
QUESTION = "What is the capital of France?"
ANSWER = "The capital is Paris."
STEPS = (
    AnswerStep(
        ("The", " capital", " is"),
        (
            DraftToken("The", "accepted"),
            DraftToken(" capital", "accepted"),
            DraftToken(" of", "rejected"),
            DraftToken(" London", "unverified"),
        ),
    ),
    AnswerStep((" Paris.",)),
)


@dataclass
class DraftingLanguageModel(ScriptedLanguageModel):
    """Answers in two steps, the first of which had a draft."""

    async def answer(
        self, messages: Sequence[Message], max_output_tokens: int | None, commitment: Commitment
    ) -> AsyncGenerator[Piece | Ending, None]:
        for step in STEPS:
            yield Piece("".join(step.committed), len(step.committed), step)
        yield Ending("stop", Usage(1, 0, 4))


def drafting(config: Config) -> Stages:
    return fake_stages(config=config, language=DraftingLanguageModel())


@pytest.fixture(scope="module")
def telling() -> Iterator[LiveServer]:
    """A server that may tell what is said, with one turn behind it."""
    with serving(Config(log=LogConfig(transcripts=True)), drafting) as server:
        have_a_turn(server, "Is it raining?")
        yield server


def have_a_turn(server: LiveServer, question: str, key: str | None = None) -> None:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with connect(server.websocket, additional_headers=headers) as client:
        part = {"type": "input_text", "text": question}
        item = {"type": "message", "role": "user", "content": [part]}
        session = {"type": "realtime", "output_modalities": ["text"], "x": {"events": True}}
        client.send(json.dumps({"type": "session.update", "session": session}))
        client.send(json.dumps({"type": "conversation.item.create", "item": item}))
        client.send(json.dumps({"type": "response.create"}))
        while json.loads(client.recv(timeout=PATIENCE_S))["type"] != "x.turn.timeline":
            pass


@pytest.fixture
def dashboard(browser: Browser) -> Iterator[Page]:
    """A page that is not open yet; an error in its own code fails the test."""
    errors: list[str] = []
    with browser.new_context() as context:
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text))
        yield page
    assert errors == []


def test_a_turn_is_shown_as_it_ends_with_its_time_and_its_tokens(
    dashboard: Page, telling: LiveServer
) -> None:
    dashboard.goto(f"{telling.http}/dashboard")
    expect(dashboard.get_by_role("status")).to_have_text("Live")
    shown = dashboard.locator("#turn")
    expect(shown.get_by_role("heading", level=4)).to_have_text("The answer, token by token")
    have_a_turn(telling, QUESTION)
    expect(shown).to_contain_text("heard to the end · speculation: none")
    expect(shown.get_by_role("img")).to_have_accessible_name(
        re.compile(r"After the question: First text \d+ ms")
    )
    tokens = shown.locator(".steps .token")
    expect(tokens).to_have_text(
        [
            "The (accepted)",
            "\u00a0capital (accepted)",
            "\u00a0of (rejected)",
            "\u00a0London (not checked)",
            "\u00a0is",
            "\u00a0Paris.",
        ]
    )
    expect(shown).to_contain_text(
        "4 drafted, 3 checked, 2 accepted, 67 % of those checked, 1 rejected: 2.00 tokens a step."
    )
    expect(dashboard.locator("#sessions")).to_have_text(re.compile(r"^\d+$"))


def test_an_earlier_turn_can_be_looked_at_by_keyboard_and_stays(
    dashboard: Page, telling: LiveServer
) -> None:
    dashboard.goto(f"{telling.http}/dashboard")
    earliest = dashboard.get_by_role("list", name="Turns").get_by_role("button").last
    expect(earliest).to_be_visible()
    earliest.focus()
    dashboard.keyboard.press("Enter")
    expect(earliest).to_have_attribute("aria-current", "true")
    count = dashboard.get_by_role("list", name="Turns").get_by_role("button").count()
    have_a_turn(telling, QUESTION)
    expect(dashboard.get_by_role("list", name="Turns").get_by_role("button")).to_have_count(
        count + 1
    )
    expect(earliest).to_have_attribute("aria-current", "true")
    expect(earliest).to_be_focused()


def spoken(number: int, ttfa_s: float, speculation: Literal["hit", "miss"]) -> TurnFinished:
    """A turn whose answer was sent so long after the end of the speech, half of it silence."""
    timeline = Timeline(
        "spoken",
        speech_end_s=10.0,
        pause_s=10.0 + ttfa_s / 8,
        transcript_s=10.0 + ttfa_s / 4,
        endpoint_s=10.0 + ttfa_s / 2,
        first_sent_s=10.0 + ttfa_s,
    )
    return TurnFinished(
        number, "done", timeline, "resp", "words", "heard", STEPS, speculation, wasted_tokens=3
    )


def test_many_turns_are_summed_up(dashboard: Page) -> None:
    with serving(make_stages=drafting) as server:
        feed = server.app.state.server.dashboard.feed
        for number in range(1, 11):
            feed.tell_turn(
                "a session", spoken(number, number / 10, "miss" if number > 8 else "hit")
            )
        dashboard.goto(f"{server.http}/dashboard")
        sent = dashboard.get_by_role("figure").filter(has_text="Answer sent")
        expect(sent.get_by_role("definition")).to_have_text(["550 ms", "910 ms", "991 ms"])
        waited = dashboard.get_by_role("figure").filter(has_text="Silence awaited")
        expect(waited.get_by_role("definition")).to_have_text(["275 ms", "455 ms", "496 ms"])
        guesses = dashboard.locator("#speculation")
        expect(guesses).to_contain_text("8 hit")
        expect(guesses).to_contain_text("2 miss")
        expect(guesses).to_contain_text("30 tokens wasted")
        expect(dashboard.locator("#drafts")).to_contain_text(
            "40 drafted, 30 checked, 20 accepted, 67 % of those checked, 10 rejected"
        )
        expect(dashboard.locator("#turn").get_by_role("img")).to_have_accessible_name(
            "After the end of the user's speech: Pause 125 ms, Transcript 250 ms, "
            "Endpoint 500 ms, Sent 1000 ms."
        )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_readable_and_fits_a_phone(
    browser: Browser, telling: LiveServer, scheme: Literal["light", "dark"]
) -> None:
    with browser.new_context(
        color_scheme=scheme, viewport={"width": 320, "height": 700}
    ) as context:
        page = context.new_page()
        page.goto(f"{telling.http}/dashboard")
        expect(page.locator(".steps .token")).to_have_count(6)
        contrasts = page.evaluate(CONTRASTS)
        assert len(contrasts) > 40
        assert [found for found in contrasts if found["ratio"] < READABLE] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 320


def test_it_asks_for_the_key_and_shows_no_words_unless_it_may(browser: Browser) -> None:
    locked = Config(server=ServerConfig(api_keys=(SecretStr(KEY),)))
    with serving(locked, drafting) as server, browser.new_context() as context:
        have_a_turn(server, QUESTION, KEY)
        page = context.new_page()
        page.goto(f"{server.http}/dashboard")
        expect(page.get_by_role("alert")).to_contain_text("add #key=…")
        expect(page.locator(".token")).to_have_count(0)
        page.goto(f"{server.http}/dashboard#key={KEY}")
        page.reload()
        expect(page.locator(".steps .token")).to_have_count(6)
        expect(page.locator("#turn")).to_contain_text("What was said is not shown.")
        for word in ("capital", "Paris", "London", "France"):
            expect(page.locator("body")).not_to_contain_text(word)
