"""What a client may say about its session, what becomes of it, and what it is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from assistant.realtime.errors import ProtocolError
from assistant.realtime.session_config import Installed, WireSession
from assistant.settings import Settings, TurnDetection
from audio.endpoint import SemanticEndpointer
from tests.protocol.client import CheckingClient, types
from tests.protocol.scenario import STAGES, play

INSTALLED = Installed("smollm2", "whisper", "en", "joe")
BASE = Settings(instructions="Be brief.", turn_detection=TurnDetection(threshold=0.6))


def session(**patch: Any) -> WireSession:
    return WireSession.initial(BASE, INSTALLED).updated(patch)


def turn_detection(**wished: Any) -> dict[str, Any]:
    return {"audio": {"input": {"turn_detection": wished}}}


def refusal(patch: dict[str, Any]) -> ProtocolError:
    with pytest.raises(ProtocolError) as refused:
        session(**patch)
    return refused.value


def test_a_client_that_asks_for_nothing_gets_the_servers_settings() -> None:
    assert WireSession.initial(BASE, INSTALLED).settings == BASE


@pytest.mark.parametrize(
    ("patch", "field", "value"),
    [
        ({"instructions": "Rhyme."}, "instructions", "Rhyme."),
        ({"output_modalities": ["text"]}, "modality", "text"),
        ({"max_output_tokens": 50}, "max_output_tokens", 50),
        ({"max_output_tokens": "inf"}, "max_output_tokens", None),
        ({"audio": {"output": {"speed": 1.5}}}, "speed", 1.5),
        ({"audio": {"input": {"turn_detection": None}}}, "turn_detection", None),
        ({"x": {"playback_lead_ms": None}}, "playback_lead_ms", None),
        ({"x": {"playback_lead_ms": 250}}, "playback_lead_ms", 250),
        ({"x": {}}, "playback_lead_ms", BASE.playback_lead_ms),
        ({"x": {"acknowledge_playback": True}}, "playback_acknowledged", True),
    ],
)
def test_a_setting_reaches_the_core(patch: dict[str, Any], field: str, value: object) -> None:
    assert getattr(session(**patch).settings, field) == value


def test_the_less_eager_the_more_complete_the_words_must_sound() -> None:
    caution = []
    for eagerness in ("high", "medium", "low"):
        wished = turn_detection(type="semantic_vad", eagerness=eagerness)
        detection = session(**wished).settings.turn_detection
        assert detection is not None and detection.semantic is not None
        caution.append(detection.semantic.caution)
        assert detection.threshold == 0.6, "what the protocol has no word for stays the server's"
    assert caution == sorted(set(caution))


def test_eagerness_is_the_servers_unless_the_client_has_a_wish() -> None:
    base = replace(BASE, turn_detection=TurnDetection(semantic=SemanticEndpointer(caution=0.7)))
    for wished in ({}, turn_detection(type="semantic_vad"), turn_detection(eagerness="auto")):
        detection = WireSession.initial(base, INSTALLED).updated(wished).settings.turn_detection
        assert detection == base.turn_detection


def test_a_client_that_asks_for_silence_gets_silence() -> None:
    base = replace(BASE, turn_detection=TurnDetection(semantic=SemanticEndpointer()))
    wished = turn_detection(type="server_vad", silence_duration_ms=700)
    detection = WireSession.initial(base, INSTALLED).updated(wished).settings.turn_detection
    assert detection == TurnDetection(silence_ms=700)


def test_every_field_of_server_vad_reaches_the_core() -> None:
    wished = turn_detection(
        type="server_vad",
        threshold=0.7,
        prefix_padding_ms=200,
        silence_duration_ms=900,
        create_response=False,
        interrupt_response=False,
        idle_timeout_ms=6_000,
    )
    assert session(**wished).settings.turn_detection == TurnDetection(
        0.7, 200, 900, create_response=False, interrupt_response=False, idle_timeout_ms=6_000
    )


def test_an_update_changes_only_what_it_names() -> None:
    first = session(**turn_detection(threshold=0.7, silence_duration_ms=900), instructions="A.")
    second = first.updated(turn_detection(threshold=0.8))
    detection = second.settings.turn_detection
    assert detection is not None
    assert (detection.threshold, detection.silence_ms) == (0.8, 900)
    assert second.settings.instructions == "A."


def test_another_type_starts_from_that_types_defaults() -> None:
    semantic = session(**turn_detection(type="semantic_vad", create_response=False))
    back = semantic.updated(turn_detection(type="server_vad"))
    assert back.settings.turn_detection == BASE.turn_detection


def test_turn_detection_switched_on_again_is_the_servers() -> None:
    manual = session(audio={"input": {"turn_detection": None}})
    assert manual.updated(turn_detection(type="server_vad")).settings == BASE


def test_another_format_does_not_inherit_the_rate() -> None:
    mulaw = session(audio={"output": {"format": {"type": "audio/pcmu"}}})
    described: Any = mulaw.describe()
    assert described["audio"]["output"]["format"] == {"type": "audio/pcmu"}


def test_the_effective_session_names_what_is_installed() -> None:
    wished = session(
        model="gpt-realtime",
        tracing="auto",
        audio={
            "input": {
                "transcription": {"model": "gpt-4o-transcribe", "prompt": "names"},
                "noise_reduction": {"type": "near_field"},
            },
            "output": {"voice": {"id": "voice_1"}},
        },
    )
    effective: Any = wished.describe()
    assert effective["model"] == "smollm2"
    assert effective["tracing"] is None
    assert effective["audio"]["output"]["voice"] == "joe"
    assert effective["audio"]["input"]["noise_reduction"] is None
    assert effective["audio"]["input"]["transcription"] == {"model": "whisper", "language": "en"}
    assert "x" not in effective


def test_the_extension_is_echoed_to_those_who_asked_for_it() -> None:
    effective: Any = session(x={"events": True}).describe()
    assert effective["x"] == {
        "events": True,
        "acknowledge_playback": False,
        "playback_lead_ms": BASE.playback_lead_ms,
    }


UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({"type": "transcription"}, "type"),
    ({"tools": [{"type": "function", "name": "f"}]}, "tools"),
    ({"tools": [{"type": "mcp", "server_label": "s"}]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    ({"reasoning": {"effort": "low"}}, "reasoning"),
    ({"truncation": "disabled"}, "truncation"),
    ({"truncation": {"type": "retention_ratio", "retention_ratio": 0.8}}, "truncation"),
    ({"include": ["item.input_audio_transcription.logprobs"]}, "include"),
    (
        {"audio": {"input": {"transcription": {"language": "de"}}}},
        "audio.input.transcription.language",
    ),
]
WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"type": 7}, "type", "invalid_value"),
    ({"modalities": ["text"]}, "modalities", "unknown_parameter"),
    ({"output_modalities": ["text", "audio"]}, "output_modalities", "invalid_value"),
    ({"output_modalities": []}, "output_modalities", "invalid_value"),
    ({"output_modalities": "text"}, "output_modalities", "invalid_type"),
    ({"instructions": None}, "instructions", "invalid_type"),
    ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
    ({"max_output_tokens": 4_097}, "max_output_tokens", "invalid_value"),
    ({"max_output_tokens": True}, "max_output_tokens", "invalid_value"),
    ({"max_output_tokens": "many"}, "max_output_tokens", "invalid_value"),
    ({"audio": None}, "audio", "invalid_type"),
    ({"audio": {"output": {"speed": 0.2}}}, "audio.output.speed", "invalid_value"),
    ({"audio": {"output": {"speed": 1.6}}}, "audio.output.speed", "invalid_value"),
    ({"audio": {"output": {"speed": "1"}}}, "audio.output.speed", "invalid_type"),
    ({"audio": {"output": {"voice": ""}}}, "audio.output.voice", "invalid_value"),
    (
        {"audio": {"input": {"format": {"type": "audio/pcm", "rate": 16_000}}}},
        "audio.input.format.rate",
        "invalid_value",
    ),
    (
        {"audio": {"input": {"format": {"type": "audio/mp3"}}}},
        "audio.input.format.type",
        "invalid_value",
    ),
    ({"audio": {"input": {"format": "pcm16"}}}, "audio.input.format", "invalid_type"),
    (turn_detection(type="psychic"), "audio.input.turn_detection.type", "invalid_value"),
    (turn_detection(threshold=1.5), "audio.input.turn_detection.threshold", "invalid_value"),
    (
        turn_detection(silence_duration_ms=-1),
        "audio.input.turn_detection.silence_duration_ms",
        "invalid_value",
    ),
    (
        turn_detection(idle_timeout_ms=10),
        "audio.input.turn_detection.idle_timeout_ms",
        "invalid_value",
    ),
    (
        turn_detection(type="semantic_vad", threshold=0.5),
        "audio.input.turn_detection.threshold",
        "unknown_parameter",
    ),
    ({"x": {"speed": 2}}, "x.speed", "unknown_parameter"),
    ({"x": {"playback_lead_ms": 0}}, "x.playback_lead_ms", "invalid_value"),
]


@pytest.mark.parametrize(("patch", "param"), UNSUPPORTED)
def test_what_the_client_would_miss_is_refused(patch: dict[str, Any], param: str) -> None:
    error = refusal(patch)
    assert (error.code, error.param) == ("unsupported_parameter", f"session.{param}")


@pytest.mark.parametrize(
    "patch", [{"tools": []}, {"tool_choice": "none"}, {"prompt": None}, {"include": []}]
)
def test_asking_for_none_of_it_is_fine(patch: dict[str, Any]) -> None:
    assert session(**patch).settings == BASE


@pytest.mark.parametrize(("patch", "param", "code"), WRONG)
def test_a_mistake_is_named(patch: dict[str, Any], param: str, code: str) -> None:
    error = refusal(patch)
    assert (error.code, error.param) == (code, f"session.{param}")
    assert error.message.startswith(f"session.{param}")


@pytest.mark.parametrize(
    ("patch", "advice"),
    [
        # The protocol's beta kept these at the top.
        ({"modalities": ["text"]}, "output_modalities"),
        ({"voice": "alloy"}, "audio.output.voice"),
        ({"turn_detection": {"type": "server_vad"}}, "audio.input.turn_detection"),
        ({"input_audio_format": "pcm16"}, 'audio.input.format, an object such as {"type"'),
        ({"output_audio_format": "pcm16"}, "audio.output.format"),
        ({"input_audio_transcription": {"model": "whisper-1"}}, "audio.input.transcription"),
        ({"input_audio_noise_reduction": None}, "audio.input.noise_reduction"),
        ({"max_response_output_tokens": 9}, "use max_output_tokens"),
        ({"temperature": 0.8}, "the server's configuration"),
        # Slips, and what else is asked for.
        ({"instrutions": "Rhyme."}, "did you mean instructions?"),
        ({"audio": {"input": {"turn_detecton": None}}}, "did you mean turn_detection?"),
        ({"x": {"speed": 2}}, "known here: acknowledge_playback, events, playback_lead_ms"),
        ({"type": "transcription"}, "sessions that only transcribe are not offered"),
        (
            {"audio": {"input": {"format": {"type": "audio/pcm", "rate": 16_000}}}},
            "must be 24000",
        ),
        ({"audio": {"input": {"format": {"type": "audio/pcm", "rate": "24k"}}}}, "resample"),
        ({"audio": {"output": {"format": {"type": "audio/pcma", "rate": 8_000}}}}, "leave it out"),
        ({"audio": {"output": {"format": {"type": "audio/mp3"}}}}, "one of 'audio/pcm', "),
        ({"audio": {"output": {"voice": 5}}}, "the name of a voice"),
        ({"audio": {"output": {"voice": {"name": "joe"}}}}, "the name as its id"),
        ({"audio": []}, "must be an object"),
    ],
)
def test_a_refusal_says_what_to_do(patch: dict[str, Any], advice: str) -> None:
    assert advice in refusal(patch).message


def test_the_acknowledgement_names_the_voice_that_will_be_heard() -> None:
    async def scenario(client: CheckingClient) -> None:
        (updated,) = await client.update(audio={"output": {"voice": "alloy"}})
        voice = updated["session"]["audio"]["output"]["voice"]
        assert voice == STAGES.config.voice.model

    play(scenario)


def test_a_refused_update_changes_nothing_at_all() -> None:
    async def scenario(client: CheckingClient) -> None:
        wrong = {"instructions": "Rhyme.", "audio": {"output": {"speed": 9}}}
        (error,) = await client.send({"type": "session.update", "event_id": "u1", "session": wrong})
        assert error["error"]["event_id"] == "u1"
        assert error["error"]["param"] == "session.audio.output.speed"
        (updated,) = await client.update()
        assert updated["session"] == client.events[0]["session"]
        assert client.runtime.commands[-1].settings.instructions == "Be brief."  # type: ignore[attr-defined]

    play(scenario)


def test_each_update_is_acknowledged_with_the_session_it_made() -> None:
    async def scenario(client: CheckingClient) -> None:
        events = await client.update(instructions="One.") + await client.update(instructions="Two.")
        assert [event["session"]["instructions"] for event in events] == ["One.", "Two."]

    play(scenario)


def test_a_session_may_be_opened_with_its_settings() -> None:
    async def scenario(client: CheckingClient) -> None:
        assert client.events[0]["session"]["instructions"] == "Rhyme."
        assert types(client.events) == ["session.created"]

    play(scenario, session={"instructions": "Rhyme."})
