"""The whole way, with real models: a recording is the microphone, the page's clock is the judge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from audio.pcm import read_audio, write_wav
from tests.browser.conftest import FAKE_MICROPHONE, Launch

pytestmark = pytest.mark.real

QUESTION = "cmd_s2p_what_s_the_weather_like_in_new_york.flac"
INTERRUPTION = "cmd_rh3_whats_the_date_today.flac"
LEAD_S = 1.0
QUESTION_SPEECH_END_S = 2.27  # as the recordings' manifest says
PAUSE_S = 6.0  # the answer begins and does not end in it
LOUD = 0.02  # root mean square of a microphone frame that holds speech; the pauses are all zero
SILENCE = 1e-4
WINDOW_S = 0.011  # one of the page's level windows
CLOCKS_AGREE_MS = 200  # the server knows the loudspeaker only through messages
PATIENCE_MS = 60_000


class Conversation:
    """What the page knew after it was over."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.events: list[dict[str, Any]] = page.evaluate("assistantProbe.events")
        self.playback: list[dict[str, Any]] = page.evaluate("assistantProbe.playback")
        self.turns: list[dict[str, Any]] = page.evaluate("assistantProbe.turns")
        self.errors: list[object] = page.evaluate("assistantProbe.errors")
        self.input_levels: list[dict[str, float]] = page.evaluate("assistantProbe.inputLevels")
        self.output_levels: list[dict[str, float]] = page.evaluate("assistantProbe.outputLevels")

    def all(self, kind: str) -> list[dict[str, Any]]:
        """The protocol's events of one kind, either way."""
        return [entry["event"] for entry in self.events if entry["event"]["type"] == kind]

    def played(self, kind: str, turn: int) -> dict[str, Any]:
        """The player's event of one kind in the answer of that turn."""
        response_id = self.turns[turn]["response_id"]
        [found] = [
            event
            for event in self.playback
            if event["type"] == kind and event["responseId"] == response_id
        ]
        return found

    def levels_between(self, start_s: float, end_s: float) -> list[float]:
        return [e["level"] for e in self.output_levels if start_s < e["time"] < end_s]


@pytest.fixture(scope="module")
def microphone(fixtures_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A question, a pause for the answer, and another question right into it."""
    speech = fixtures_folder / "speech" / "human"
    question, rate_hz = read_audio(speech / QUESTION)
    interruption, same_rate_hz = read_audio(speech / INTERRUPTION)
    assert rate_hz == same_rate_hz

    def silence(seconds: float) -> np.ndarray[Any, np.dtype[np.float32]]:
        return np.zeros(round(seconds * rate_hz), np.float32)

    path = tmp_path_factory.mktemp("microphone") / "conversation.wav"
    parts = [silence(LEAD_S), question, silence(PAUSE_S), interruption, silence(60)]
    write_wav(path, np.concatenate(parts), rate_hz)
    return path


@pytest.fixture(scope="module")
def conversation(launch: Launch, server_url: str, microphone: Path) -> Iterator[Conversation]:
    browser = launch(*FAKE_MICROPHONE, f"--use-file-for-fake-audio-capture={microphone}%noloop")
    with browser.new_context(bypass_csp=True) as context:
        page = context.new_page()
        page.goto(server_url)
        expect(page.get_by_text("Connected", exact=True)).to_be_visible()
        page.get_by_role("button", name="Start microphone").click()
        page.wait_for_function("assistantProbe.turns.length === 2", timeout=PATIENCE_MS)
        yield Conversation(page)


def test_both_questions_are_understood_and_answered(conversation: Conversation) -> None:
    weather, date = [turn["transcript"].lower() for turn in conversation.turns]
    assert "weather like in new york" in weather
    assert "date today" in date
    assert [turn["outcome"] for turn in conversation.turns] == ["interrupted", "done"]
    captions = conversation.page.locator(".caption .who")
    expect(captions).to_have_text(["You", "Assistant", "You", "Assistant"])
    assert conversation.errors == []


def test_the_answer_can_be_heard(conversation: Conversation) -> None:
    audible, cut = conversation.played("audible", 0), conversation.played("cut", 0)
    levels = conversation.levels_between(audible["time"], cut["time"])
    assert np.mean(np.array(levels) > 0.01) > 0.5  # speech, not a click in silence


def test_the_sound_stops_when_the_user_speaks(conversation: Conversation) -> None:
    started, cut = conversation.played("started", 0), conversation.played("cut", 0)
    spoken_s = [
        entry["time"]
        for entry in conversation.input_levels
        if entry["time"] > started["time"] and entry["level"] > LOUD
    ]
    print(f"the sound stopped {1000 * (cut['time'] - spoken_s[0]):.0f} ms after the speech began")
    assert spoken_s[0] < cut["time"] < spoken_s[-1]  # the user is not made to talk over it
    next_answer = conversation.played("started", 1)
    after = conversation.levels_between(cut["time"] + WINDOW_S, next_answer["time"])
    assert after and max(after) < SILENCE


def test_the_history_ends_at_the_heard_word(conversation: Conversation) -> None:
    cut = conversation.played("cut", 0)
    [truncation] = conversation.all("conversation.item.truncate")
    assert truncation["audio_end_ms"] == int(cut["positionMs"])
    [retrieved] = conversation.all("conversation.item.retrieved")
    kept = retrieved["item"]["content"][0]["transcript"]
    planned = conversation.all("response.output_audio_transcript.done")[0]["transcript"]
    assert kept and planned.startswith(kept) and len(kept) < len(planned)
    assert not planned[len(kept)].isalnum()  # at the end of a word
    assert kept.startswith(conversation.turns[0]["heard"])  # what it last knew, or a word more
    page = conversation.page
    expect(page.locator(".heard").first).to_have_text(kept)
    expect(page.locator("s.unheard")).to_contain_text(planned[len(kept) :].strip())


def test_the_next_answer_is_heard_to_its_end(conversation: Conversation) -> None:
    finished = conversation.played("finished", 1)
    reports = [
        report["position_ms"]
        for report in conversation.all("x.playback")
        if report["response_id"] == conversation.turns[1]["response_id"]
    ]
    assert reports == sorted(reports)
    assert reports[-1] >= finished["positionMs"]
    assert conversation.turns[1]["heard"] == conversation.page.locator(".heard").last.inner_text()


def test_each_turn_shows_where_its_time_went(conversation: Conversation) -> None:
    turns = conversation.page.get_by_role("article")
    expect(turns).to_have_count(2)
    for turn in turns.all():
        turn.get_by_text("As a table").click()
        cells = turn.get_by_role("row").locator("td:nth-of-type(1)").all_inner_texts()
        pause, *work, endpoint, sent, heard = [int(cell) for cell in cells]
        assert len(work) == 4  # the words may be known before the pause, the rest is begun at it
        assert work == sorted(work) and pause <= work[1]
        assert max(work[-1], endpoint) <= sent <= heard  # what is ready earlier waits for the end


def test_the_server_and_the_audio_clock_agree_on_the_wait(conversation: Conversation) -> None:
    microphone_start_s = conversation.input_levels[0]["time"]
    speech_end_s = microphone_start_s + LEAD_S + QUESTION_SPEECH_END_S
    audible_ms = (conversation.played("audible", 0)["time"] - speech_end_s) * 1000
    reported_ms = conversation.turns[0]["timeline"]["client_ttfa_ms"]
    assert reported_ms == pytest.approx(audible_ms, abs=CLOCKS_AGREE_MS)
