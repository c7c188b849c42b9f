"""Questions from the command line: where they come from, and what comes back of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import numpy as np
import pytest

from assistant.ask import Outcome, Question, outcomes, recorded, without_sound, written
from assistant.client import Dialogue
from assistant.errors import UsageError
from audio.pcm import read_audio, write_wav
from tests.unit.assistant.scripted_server import ANSWER_AUDIO, ScriptedServer

Open = Callable[[], AbstractAsyncContextManager[Dialogue]]


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "question.wav"
    write_wav(path, np.full(1_600, 0.25, np.float32), 16_000)
    return path


def asked(questions: list[Question], server: Callable[[], ScriptedServer]) -> list[Outcome]:
    async def ask_all() -> list[Outcome]:
        return [outcome async for outcome in outcomes(questions, lambda: Dialogue(server()))]

    return asyncio.run(ask_all())


def test_the_words_of_the_command_line_are_one_question() -> None:
    assert written(["What", "is", "it?"], None) == Question(text="What is it?")


def test_a_question_in_writing_becomes_a_line_with_its_answer() -> None:
    [outcome] = asked([written(["Hello?"], None)], ScriptedServer)
    assert outcome.as_json() == {
        "text": "Hello?",
        "reply": "Hi.",
        "status": "completed",
        "heard_ms": 100.0,
        "out": None,
        "timeline": {"server_ttfa_ms": 1.0},
    }


def test_a_recording_becomes_a_line_with_what_was_understood(recording: Path) -> None:
    [outcome] = asked(recorded([str(recording)], None), ScriptedServer)
    line = outcome.as_json()
    assert (line["wav"], line["transcript"], line["reply"]) == (str(recording), "hello", "Hi.")


def test_a_recording_without_words_is_no_error(recording: Path) -> None:
    [outcome] = asked(recorded([str(recording)], None), lambda: ScriptedServer(words=""))
    line = outcome.as_json()
    assert (line["transcript"], line["rejection"], line["reply"]) == ("", "repetition", "")


def test_one_bad_recording_does_not_stop_the_others(recording: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.wav"
    bad.write_bytes(b"no sound")
    missing = tmp_path / "missing.wav"
    files = [str(bad), str(recording), str(missing)]
    first, second, third = asked(recorded(files, None), ScriptedServer)
    assert first.as_json()["wav"] == str(bad)
    assert "bad.wav" in str(first.as_json()["error"])
    assert second.error is None
    assert "missing.wav" in str(third.error)


def test_each_recording_is_a_dialogue_of_its_own(recording: Path) -> None:
    servers: list[ScriptedServer] = []

    def new_server() -> ScriptedServer:
        servers.append(ScriptedServer())
        return servers[-1]

    asked(recorded([str(recording)] * 2, None), new_server)
    assert len(servers) == 2


def test_the_spoken_answer_is_written_as_sound(recording: Path, tmp_path: Path) -> None:
    out = tmp_path / "answer.wav"
    [outcome] = asked(recorded([str(recording)], out), ScriptedServer)
    samples, rate_hz = read_audio(out)
    assert rate_hz == 24_000
    assert len(samples) == len(ANSWER_AUDIO) // 2
    assert outcome.as_json()["out"] == str(out)


def test_several_answers_go_into_a_folder_under_the_names_of_their_questions(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "answers"
    questions = recorded(["a.wav", "b.flac", "elsewhere/a.wav"], folder)
    assert [question.out for question in questions] == [
        folder / "a.answer.wav",
        folder / "b.answer.wav",
        folder / "a-2.answer.wav",
    ]


def test_several_answers_do_not_go_into_one_file() -> None:
    with pytest.raises(UsageError, match="name a folder"):
        recorded(["a.wav", "b.wav"], Path("answer.wav"))


@pytest.mark.parametrize("ask", [lambda out: written(["Hi"], out), lambda out: recorded([], out)])
def test_one_folder_is_made_for_the_answers_and_no_path_of_them(
    ask: Callable[[Path], object], tmp_path: Path
) -> None:
    ask(tmp_path / "new")
    for out in (tmp_path / "mistyped" / "new", tmp_path / "mistyped" / "answer.wav"):
        with pytest.raises(UsageError, match=r"there is no folder .*mistyped: make it"):
            ask(out)


def test_a_file_that_is_no_recording_is_not_taken_for_a_folder(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    with pytest.raises(UsageError, match="is a file already"):
        written(["Hi"], notes)


def test_the_answer_is_written_into_a_new_folder(recording: Path, tmp_path: Path) -> None:
    asked(recorded([str(recording)], tmp_path / "new"), ScriptedServer)
    assert (tmp_path / "new" / "question.answer.wav").stat().st_size > 0


def test_recordings_that_cannot_be_read_are_found_before_any_is_sent(
    recording: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.wav"
    bad.write_bytes(b"no sound")
    questions = recorded([str(recording), str(bad), str(tmp_path / "missing.wav")], None)
    unreadable, missing = without_sound([*questions, written(["Hi"], None)])
    assert (unreadable.question, missing.question) == (questions[1], questions[2])
    assert "bad.wav" in str(unreadable.error)
    assert "there is no such file" in str(missing.error)


def test_an_answer_never_replaces_its_question(tmp_path: Path) -> None:
    question = tmp_path / "a.wav"
    [asked_question] = recorded([str(question)], tmp_path)
    assert asked_question.out != question


def test_in_real_time_a_recording_takes_as_long_as_it_is(
    recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept_s: list[float] = []
    sleep = asyncio.sleep

    async def note(delay_s: float) -> None:
        slept_s.append(delay_s)
        await sleep(0)

    async def ask() -> None:
        monkeypatch.setattr("assistant.ask.asyncio.sleep", note)
        question = recorded([str(recording)], None)
        async for outcome in outcomes(question, lambda: Dialogue(ScriptedServer()), realtime=True):
            assert outcome.error is None

    asyncio.run(ask())
    assert slept_s[0] == pytest.approx(0.1, abs=0.02)  # the recording is one chunk of 100 ms
