"""The configuration: defaults, files, the environment, and what a mistake is told."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from pydantic import ValidationError

from assistant.config import Config, load_config
from assistant.errors import ConfigError

CONFIGS = Path(__file__).resolve().parents[3] / "configs"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return path


def complaint_about(path: Path | None, **env: str) -> str:
    with pytest.raises(ConfigError) as raised:
        load_config(path, env=env)
    return str(raised.value)


def test_the_default_file_says_what_the_code_would_do_without_it() -> None:
    assert load_config(CONFIGS / "cpu.toml", env={}) == load_config(env={}) == Config()


def test_the_default_file_shows_every_key_that_has_a_default() -> None:
    shown = tomllib.loads((CONFIGS / "cpu.toml").read_text())
    expected = Config().model_dump(mode="json", exclude_none=True)
    assert {(section, key) for section in shown for key in shown[section]} == {
        (section, key) for section in expected for key in expected[section]
    }


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.name)
def test_every_shipped_configuration_is_valid(path: Path) -> None:
    load_config(path, env={})


def test_a_file_changes_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, "[endpoint]\nsilence_ms = 200\n"), env={})
    assert config.endpoint.silence_ms == 200
    assert config.llm == Config().llm


def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, '[llm]\nmodel = "from/file"\nslots = 7\n')
    config = load_config(path, env={"ASSISTANT__LLM__MODEL": "from/environment"})
    assert (config.llm.model, config.llm.slots) == ("from/environment", 7)


def test_the_environment_sets_numbers_switches_and_lists() -> None:
    config = load_config(
        env={
            "ASSISTANT__SERVER__PORT": "0",
            "ASSISTANT__LOG__TRANSCRIPTS": "true",
            "ASSISTANT__SERVER__API_KEYS": '["first", "second"]',
        }
    )
    assert config.server.port == 0
    assert config.log.transcripts is True
    assert [key.get_secret_value() for key in config.server.api_keys] == ["first", "second"]


def test_other_variables_of_the_environment_are_left_alone() -> None:
    assert load_config(env={"ASSISTANT_MODELS": "somewhere", "LLM__MODEL": "x"}) == Config()


def test_a_misspelt_key_is_named_with_its_file_and_the_right_one(tmp_path: Path) -> None:
    path = written(tmp_path, '[llm]\nmodle = "x"\n')
    assert complaint_about(path) == (
        f"{path}: llm.modle: there is no such key; did you mean llm.model?"
    )


def test_a_misspelt_section_is_named_with_the_right_one(tmp_path: Path) -> None:
    path = written(tmp_path, "[endpiont]\nsilence_ms = 1\n")
    assert complaint_about(path).endswith("did you mean endpoint?")


def test_a_key_in_the_wrong_section_is_sent_to_the_right_one(tmp_path: Path) -> None:
    path = written(tmp_path, "[llm]\nsilence_ms = 200\n")
    assert "did you mean endpoint.silence_ms?" in complaint_about(path)


def test_a_key_like_no_other_gets_no_guess(tmp_path: Path) -> None:
    path = written(tmp_path, "[llm]\nxyzzy = 1\n")
    assert complaint_about(path) == f"{path}: llm.xyzzy: there is no such key"


def test_a_value_out_of_range_is_named_with_what_would_do(tmp_path: Path) -> None:
    path = written(tmp_path, "[vad]\nthreshold = 1.5\n")
    assert complaint_about(path) == (
        f"{path}: vad.threshold: input should be less than 1 (found 1.5)"
    )


def test_a_mistake_in_the_environment_names_the_variable(tmp_path: Path) -> None:
    path = written(tmp_path, "[llm]\nslots = 2\n")
    complaint = complaint_about(path, ASSISTANT__LLM__SLOTS="none")
    assert complaint.startswith("ASSISTANT__LLM__SLOTS: llm.slots: ")


def test_every_mistake_is_told_at_once(tmp_path: Path) -> None:
    path = written(tmp_path, "[vad]\nthreshold = 2\n[llm]\nslots = 0\n[nothing]\n")
    assert len(complaint_about(path).splitlines()) == 3


def test_a_key_that_clients_must_show_is_neither_printed_nor_told() -> None:
    config = load_config(env={"ASSISTANT__SERVER__API_KEYS": '["s3cret"]'})
    assert "s3cret" not in f"{config} {config!r} {config.model_dump_json()}"
    assert "s3cret" not in complaint_about(None, ASSISTANT__SERVER__API_KEYS="s3cret")


def test_an_english_only_recogniser_refuses_another_language() -> None:
    complaint = complaint_about(None, ASSISTANT__ASR__LANGUAGE="de")
    assert "ASSISTANT__ASR__LANGUAGE" in complaint
    assert "knows English only" in complaint


@pytest.mark.parametrize("written_as", ["a key", '"a key"', "9"])
def test_one_value_where_a_list_belongs_is_told_how_lists_are_written(written_as: str) -> None:
    complaint = complaint_about(None, ASSISTANT__SERVER__API_KEYS=written_as)
    assert complaint == (
        'ASSISTANT__SERVER__API_KEYS: server.api_keys is a list: write ["…"], or ["…", "…"] for '
        "several"
    )


def test_a_value_where_a_section_belongs_is_told_a_key(tmp_path: Path) -> None:
    assert complaint_about(None, ASSISTANT__SERVER="9") == (
        "ASSISTANT__SERVER: server is a section: set its keys, such as ASSISTANT__SERVER__HOST"
    )
    path = written(tmp_path, "llm = 'x'\n")
    assert complaint_about(path) == (f"{path}: llm is a section: set its keys, such as llm.model")


def test_a_section_where_a_value_belongs_is_told_so(tmp_path: Path) -> None:
    path = written(tmp_path, "[llm.slots]\nmany = 1\n")
    assert complaint_about(path) == (f"{path}: llm.slots is a value, not a section: it has no keys")


@pytest.mark.parametrize(
    ("section", "device", "key", "kind"),
    [
        ("LLM", "cuda", "dtype", "int8"),
        ("LLM", "cuda:1", "dtype", "int8"),
        ("ASR", "cpu", "compute_type", "float16"),
        ("ASR", "cpu", "compute_type", "int8_float16"),
    ],
)
def test_numbers_that_the_device_does_not_compute_with_are_refused(
    section: str, device: str, key: str, kind: str
) -> None:
    chosen = {f"ASSISTANT__{section}__DEVICE": device, f"ASSISTANT__{section}__{key.upper()}": kind}
    complaint = complaint_about(None, **chosen)
    assert f"{key} {kind}" in complaint
    assert f"device is {device}" in complaint
    assert all(variable in complaint for variable in chosen)


def test_a_refused_dtype_says_what_else_there_is() -> None:
    chosen = {"ASSISTANT__LLM__DEVICE": "cuda", "ASSISTANT__LLM__DTYPE": "int4"}
    assert "set dtype to bfloat16" in complaint_about(None, **chosen)


def test_a_device_alone_can_be_chosen() -> None:
    assert load_config(None, {"ASSISTANT__LLM__DEVICE": "cuda"}).llm.dtype == "auto"


@pytest.mark.parametrize("variable", ["ASSISTANT_SERVER_PORT", "ASSISTANT_SERVER__PORT"])
def test_a_variable_with_too_few_underscores_is_warned_about(
    variable: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert load_config(env={variable: "9000"}) == Config()
    assert caplog.messages == [f"{variable} is not read: write it ASSISTANT__SERVER__PORT"]


def test_other_variables_are_not_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    load_config(env={"ASSISTANT_MODELS": "x", "ASSISTANT_API_KEY": "x", "SERVER_PORT": "1"})
    assert caplog.messages == []


def test_an_answer_that_leaves_the_conversation_no_room_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "[llm]\ncontext_tokens = 1024\nmax_new_tokens = 1000\n")
    assert "at most half of context_tokens (1024)" in complaint_about(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    assert complaint_about(missing) == f"{missing}: there is no such file"


def test_a_file_that_is_not_toml_is_named_with_the_line(tmp_path: Path) -> None:
    path = written(tmp_path, "[llm]\nmodel = \n")
    assert complaint_about(path).startswith(f"{path}: is not valid TOML: ")
    assert "line 2" in complaint_about(path)


def test_a_value_cannot_be_changed_once_loaded() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Config().llm.slots = 5  # type: ignore[misc]
