"""Every client event of the protocol is carried out or refused by name; bad input is told so."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any, get_args

import numpy as np
import pytest
from openai.types.realtime import RealtimeClientEvent
from pydantic import TypeAdapter

from assistant.events import (
    CancelResponse,
    ClearAudio,
    ClearPlayback,
    Command,
    CommitAudio,
    CreateItem,
    CreateResponse,
    DeleteItem,
    Played,
    RetrieveItem,
    Role,
    TruncateItem,
    UpdateSettings,
)
from assistant.realtime.client_events import MOST_APPENDED_BYTES
from tests.protocol.client import CheckingClient, Event, of, silence, tone, types
from tests.protocol.scenario import play

USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello."}]}


def item(**changes: Any) -> Event:
    return {"type": "conversation.item.create", "item": {**USER, **changes}}


def response(**wished: Any) -> Event:
    return {"type": "response.create", "response": wished}


def part(**content: Any) -> Event:
    return item(content=[content])


CARRIED_OUT: list[tuple[Event, Command]] = [
    ({"type": "input_audio_buffer.commit"}, CommitAudio(end_sample=0)),
    ({"type": "input_audio_buffer.clear"}, ClearAudio(end_sample=0)),
    (item(), CreateItem(role=Role.USER, text="Hello.")),
    (
        {**item(id="item_a", role="system", status="completed"), "previous_item_id": "root"},
        CreateItem(role=Role.SYSTEM, text="Hello.", item_id="item_a", previous_item_id="root"),
    ),
    (
        item(
            role="assistant",
            content=[
                {"type": "output_text", "text": "One."},
                {"type": "output_audio", "transcript": "Two."},
            ],
        ),
        CreateItem(role=Role.ASSISTANT, text="One.\nTwo."),
    ),
    (
        {"type": "conversation.item.retrieve", "item_id": "item_a"},
        RetrieveItem(item_id="item_a"),
    ),
    ({"type": "conversation.item.delete", "item_id": "item_a"}, DeleteItem(item_id="item_a")),
    (
        {
            "type": "conversation.item.truncate",
            "item_id": "item_a",
            "content_index": 0,
            "audio_end_ms": 700,
        },
        TruncateItem(item_id="item_a", audio_end_ms=700),
    ),
    ({"type": "response.create"}, CreateResponse()),
    (
        response(
            instructions="Rhyme.",
            output_modalities=["text"],
            max_output_tokens=9,
            metadata={"a": "b"},
            conversation="auto",
            tools=[],
            audio={"output": {"voice": "alloy"}},
        ),
        CreateResponse(
            instructions="Rhyme.", modality="text", max_output_tokens=9, metadata={"a": "b"}
        ),
    ),
    ({"type": "response.cancel"}, CancelResponse()),
    ({"type": "response.cancel", "response_id": "resp_1"}, CancelResponse(response_id="resp_1")),
    ({"type": "output_audio_buffer.clear"}, ClearPlayback()),
    (
        {"type": "x.playback", "response_id": "resp_1", "position_ms": 12.5},
        Played(response_id="resp_1", position_ms=12.5),
    ),
]
ELSEWHERE = {"session.update", "input_audio_buffer.append"}
"""Client events that are more than one command; they have tests of their own."""


def test_no_client_event_of_the_protocol_is_forgotten() -> None:
    published = {
        get_args(model.model_fields["type"].annotation)[0]
        for model in get_args(get_args(RealtimeClientEvent)[0])
    }
    covered = {event["type"] for event, _ in CARRIED_OUT} | ELSEWHERE
    assert published <= covered


@pytest.mark.parametrize(("event", "command"), CARRIED_OUT)
def test_a_client_event_becomes_its_command(event: Event, command: Command) -> None:
    if not event["type"].startswith("x."):
        TypeAdapter(RealtimeClientEvent).validate_python(event, strict=True)

    async def scenario(client: CheckingClient) -> None:
        await client.update(x={"acknowledge_playback": True})
        await client.send(event)
        assert client.runtime.commands[-1] == command
        await client.send({**event, "event_id": "mine"})
        assert client.runtime.commands[-1].command_id == "mine"

    play(scenario)


def test_session_update_becomes_settings() -> None:
    async def scenario(client: CheckingClient) -> None:
        update = {"type": "session.update", "event_id": "mine", "session": {"instructions": "A."}}
        await client.send(update)
        (command,) = client.runtime.commands
        assert isinstance(command, UpdateSettings)
        assert (command.settings.instructions, command.command_id) == ("A.", "mine")

    play(scenario)


BAD: list[tuple[Event | str | bytes, str, str | None]] = [
    # The envelope.
    ("", "invalid_json", None),
    ("{", "invalid_json", None),
    ("nonsense", "invalid_json", None),
    ('{"type": "response.create", "x": NaN}', "invalid_json", None),
    ("[" * 100_000, "invalid_json", None),
    ('"\\ud800"', "invalid_json", None),
    ("[]", "invalid_type", None),
    ('"response.create"', "invalid_type", None),
    ("null", "invalid_type", None),
    (b"\x00\x01", "unsupported_message", None),
    (b'{"type": "response.create"}', "unsupported_message", None),
    ({}, "missing_required_parameter", "type"),
    ({"type": "response.explode"}, "invalid_value", "type"),
    ({"type": 3}, "invalid_value", "type"),
    ({"type": None}, "invalid_value", "type"),
    ({"type": ["response.create"]}, "invalid_value", "type"),
    ({"type": "response.done"}, "invalid_value", "type"),
    ({"type": "response.create", "event_id": 5}, "invalid_type", "event_id"),
    ({"type": "response.create", "event_id": ""}, "invalid_value", "event_id"),
    ({"type": "response.create", "respnse": {}}, "unknown_parameter", "respnse"),
    # The session.
    ({"type": "session.update"}, "missing_required_parameter", "session"),
    ({"type": "session.update", "session": []}, "invalid_type", "session"),
    ({"type": "session.update", "session": None}, "invalid_type", "session"),
    # Sound.
    ({"type": "input_audio_buffer.append"}, "missing_required_parameter", "audio"),
    ({"type": "input_audio_buffer.append", "audio": 1}, "invalid_type", "audio"),
    ({"type": "input_audio_buffer.append", "audio": "!!!!"}, "invalid_value", "audio"),
    ({"type": "input_audio_buffer.append", "audio": "AAA"}, "invalid_value", "audio"),
    ({"type": "input_audio_buffer.append", "audio": "AAAA\n"}, "invalid_value", "audio"),
    ({"type": "input_audio_buffer.append", "audio": "ÄÄÄÄ"}, "invalid_value", "audio"),
    (
        {"type": "input_audio_buffer.append", "audio": "A" * (MOST_APPENDED_BYTES + 4)},
        "invalid_value",
        "audio",
    ),
    (
        {
            "type": "input_audio_buffer.append",
            "audio": base64.b64encode(b"RIFF\x00\x10\x00\x00WAVEfmt ").decode(),
        },
        "invalid_audio",
        "audio",
    ),
    ({"type": "input_audio_buffer.commit"}, "input_audio_buffer_commit_empty", None),
    # Items.
    ({"type": "conversation.item.create"}, "missing_required_parameter", "item"),
    (item(type="function_call"), "unsupported_parameter", "item.type"),
    (item(type="function_call_output"), "unsupported_parameter", "item.type"),
    (item(type="mcp_approval_response"), "unsupported_parameter", "item.type"),
    (item(type="poem"), "invalid_value", "item.type"),
    (item(role="robot"), "invalid_value", "item.role"),
    (item(role="assistant"), "invalid_value", "item"),
    (item(content=[]), "invalid_value", "item.content"),
    (item(content="Hello."), "invalid_type", "item.content"),
    (item(id="root"), "invalid_value", "item.id"),
    (item(id=""), "invalid_value", "item.id"),
    (item(colour="red"), "unknown_parameter", "item.colour"),
    (part(type="input_text", text=" "), "invalid_value", "item"),
    (part(type="input_text"), "invalid_value", "item"),
    (part(type="input_text", text=7), "invalid_type", "item.content.0.text"),
    (part(type="output_text", text="Hi."), "invalid_value", "item"),
    (part(type="input_audio", audio="AAAA"), "unsupported_parameter", "item.content.0.type"),
    (part(type="input_image"), "unsupported_parameter", "item.content.0.type"),
    (part(type="smell"), "invalid_value", "item.content.0.type"),
    ({**item(), "previous_item_id": "item_9"}, "item_not_found", "previous_item_id"),
    ({"type": "conversation.item.retrieve"}, "missing_required_parameter", "item_id"),
    (
        {"type": "conversation.item.retrieve", "item_id": "item_9"},
        "item_not_found",
        "item_id",
    ),
    ({"type": "conversation.item.delete", "item_id": "item_9"}, "item_not_found", "item_id"),
    ({"type": "conversation.item.delete", "item_id": 9}, "invalid_type", "item_id"),
    (
        {
            "type": "conversation.item.truncate",
            "item_id": "item_9",
            "content_index": 0,
            "audio_end_ms": 1,
        },
        "item_not_found",
        "item_id",
    ),
    (
        {
            "type": "conversation.item.truncate",
            "item_id": "item_9",
            "content_index": 1,
            "audio_end_ms": 1,
        },
        "invalid_value",
        "content_index",
    ),
    (
        {
            "type": "conversation.item.truncate",
            "item_id": "item_9",
            "content_index": 0,
            "audio_end_ms": -1,
        },
        "invalid_value",
        "audio_end_ms",
    ),
    (
        {
            "type": "conversation.item.truncate",
            "item_id": "item_9",
            "content_index": 0,
            "audio_end_ms": 1.5,
        },
        "invalid_type",
        "audio_end_ms",
    ),
    # Responses.
    ({"type": "response.create", "response": []}, "invalid_type", "response"),
    (response(output_modalities=["text", "audio"]), "invalid_value", "response.output_modalities"),
    (response(max_output_tokens=-1), "invalid_value", "response.max_output_tokens"),
    (response(conversation="none"), "unsupported_parameter", "response.conversation"),
    (response(conversation="other"), "invalid_value", "response.conversation"),
    (response(input=[USER]), "unsupported_parameter", "response.input"),
    (
        response(tools=[{"type": "function", "name": "f"}]),
        "unsupported_parameter",
        "response.tools",
    ),
    (response(tool_choice="required"), "unsupported_parameter", "response.tool_choice"),
    (response(prompt={"id": "p"}), "unsupported_parameter", "response.prompt"),
    (response(metadata={"a": 1}), "invalid_type", "response.metadata.a"),
    (response(metadata={str(n): "" for n in range(17)}), "invalid_value", "response.metadata"),
    (
        response(audio={"output": {"format": {"type": "audio/pcmu"}}}),
        "unsupported_parameter",
        "response.audio.output.format",
    ),
    ({"type": "response.cancel"}, "response_cancel_not_active", None),
    # Ours.
    (
        {"type": "x.playback", "response_id": "r", "position_ms": 1},
        "extension_not_enabled",
        "type",
    ),
    (
        {"type": "x.playback", "response_id": "r", "position_ms": -1},
        "invalid_value",
        "position_ms",
    ),
]


@pytest.mark.parametrize(("message", "code", "param"), BAD)
def test_bad_input_is_refused_by_name_and_the_session_goes_on(
    message: Event | str | bytes, code: str, param: str | None
) -> None:
    async def scenario(client: CheckingClient) -> None:
        named = isinstance(message, dict) and "event_id" not in message
        sent = {**message, "event_id": "mine"} if isinstance(message, dict) and named else message
        (event,) = await client.send(sent)
        error = event["error"]
        assert (event["type"], error["code"], error["param"]) == ("error", code, param)
        assert error["type"] == "invalid_request_error"
        assert error["event_id"] == ("mine" if named else None) or param == "event_id"
        assert error["message"]
        await client.update(instructions="Still here.")

    play(scenario)


@pytest.mark.parametrize(
    ("event", "advice"),
    [
        ({"type": "respons.create"}, "did you mean response.create?"),
        ({"type": "input_audio_buffer.apend"}, "did you mean input_audio_buffer.append?"),
        ({"type": "response.done"}, "known here: conversation.item.create, "),
        ({"type": "transcription_session.update"}, "sessions that only transcribe are not offered"),
        (response(modalities=["text"]), "use output_modalities"),
        (response(respond="now"), "known here: audio, "),
        (response(instruction="Rhyme."), "did you mean instructions?"),
        (item(role="assistant"), "send output_audio or output_text"),
        ({"type": "conversation.item.delete", "itemid": "item_a"}, "did you mean item_id?"),
    ],
)
def test_a_refusal_says_what_to_do(event: Event, advice: str) -> None:
    async def scenario(client: CheckingClient) -> None:
        (refused,) = await client.send(event)
        assert advice in refused["error"]["message"]

    play(scenario)


def test_an_endless_name_is_not_repeated_to_its_end() -> None:
    async def scenario(client: CheckingClient) -> None:
        endless = "x" * 100_000
        formatted = {"audio": {"input": {"format": {"type": endless}}}}
        for event in (
            {"type": endless},
            {"type": "response.create", endless: 1},
            {"type": "session.update", "session": formatted},
        ):
            (refused,) = await client.send(event)
            assert len(json.dumps(refused)) < 2_000

    play(scenario)


def test_an_event_may_be_handed_over_decoded() -> None:
    async def scenario(client: CheckingClient) -> None:
        await client.connection.receive({"type": "response.cancel", "event_id": "mine"})
        (event,) = await client.collect()
        assert event["error"]["event_id"] == "mine"

    play(scenario)


def test_a_message_that_is_too_long_is_refused_whole() -> None:
    async def scenario(client: CheckingClient) -> None:
        (event,) = await client.send(json.dumps(item()) + " " * 1_000)
        assert event["error"]["code"] == "message_too_long"
        assert types(await client.send(item()))[0] == "conversation.item.added"

    play(scenario, message_limit=1_000)


def test_a_client_that_asks_faster_than_it_reads_waits_for_itself() -> None:
    places, questions = 16, 40

    async def scenario(client: CheckingClient) -> None:
        async def ask() -> None:
            for number in range(questions):
                cancel = {"type": "response.cancel", "event_id": str(number)}
                await client.connection.receive(cancel)

        asking = asyncio.create_task(ask())
        for _ in range(10 * questions):  # ample opportunity, without anything being read
            await asyncio.sleep(0)
        assert client.connection.waiting_events == places // 2 + 1
        answers = []
        while len(answers) < questions:
            answers.append((await client.connection.next_event())["error"]["event_id"])
        await asking
        assert answers == [str(number) for number in range(questions)]

    play(scenario, outbox_limit=places)


# -- sound --------------------------------------------------------------------------------------


def appended(client: CheckingClient) -> np.ndarray[Any, Any]:
    return np.concatenate(client.runtime.appended)


def test_it_does_not_matter_how_sound_is_cut_into_messages() -> None:
    pcm = tone(0.5)

    async def cut(client: CheckingClient, sizes: list[int]) -> np.ndarray[Any, Any]:
        start = 0
        for size in [*sizes, len(pcm)]:
            audio = base64.b64encode(pcm[start : start + size]).decode()
            await client.send({"type": "input_audio_buffer.append", "audio": audio})
            start += size
        await client.send({"type": "input_audio_buffer.commit"})
        return appended(client)

    whole = play(lambda client: cut(client, []))
    odd = play(lambda client: cut(client, [1, 3, 0, 4_801, 7]))
    assert np.array_equal(whole, odd)


def test_a_commit_keeps_what_the_resampler_held_back() -> None:
    async def scenario(client: CheckingClient) -> None:
        await client.update(audio={"input": {"turn_detection": None}})
        await client.append(tone(0.5))
        await client.send({"type": "input_audio_buffer.commit"})
        assert client.runtime.appended_samples == 8_000

    play(scenario)


def test_nothing_of_an_append_that_is_refused_is_heard() -> None:
    async def scenario(client: CheckingClient) -> None:
        audio = base64.b64encode(tone(2.0)).decode() + "!"
        await client.send({"type": "input_audio_buffer.append", "audio": audio})
        assert client.runtime.appended_samples == 0

    play(scenario)


def test_a_new_input_format_holds_from_the_next_append() -> None:
    async def scenario(client: CheckingClient) -> None:
        await client.append(silence(1.0))
        await client.update(audio={"input": {"format": {"type": "audio/pcmu"}}})
        assert client.runtime.appended_samples == 16_000
        audio = base64.b64encode(b"\xff" * 8_000).decode()
        await client.send({"type": "input_audio_buffer.append", "audio": audio})
        await client.send({"type": "input_audio_buffer.commit"})
        assert client.runtime.appended_samples == 32_000

    play(scenario)


def test_a_full_buffer_is_the_clients_mistake() -> None:
    async def scenario(client: CheckingClient) -> None:
        await client.update(audio={"input": {"turn_detection": None}})
        minute = base64.b64encode(silence(60)).decode()
        append = {"type": "input_audio_buffer.append", "audio": minute, "event_id": "mine"}
        events = []
        for _ in range(3):
            events += await client.send(append)
        error = of(events, "error")[0]["error"]
        assert error["code"] == "input_audio_buffer_full"
        assert error["type"] == "invalid_request_error"
        assert error["event_id"] == "mine"

    play(scenario)
