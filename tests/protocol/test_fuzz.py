"""Whatever a client sends, in whatever order: no exception, only valid events, and life goes on."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.protocol.client import CheckingClient, silence, tone, types
from tests.protocol.scenario import play

FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
KEYS = st.sampled_from(
    [
        "type",
        "event_id",
        "session",
        "audio",
        "item",
        "item_id",
        "content_index",
        "audio_end_ms",
        "response",
        "response_id",
        "previous_item_id",
        "position_ms",
    ]
)
TYPES = st.sampled_from(
    [
        "session.update",
        "input_audio_buffer.append",
        "input_audio_buffer.commit",
        "input_audio_buffer.clear",
        "conversation.item.create",
        "conversation.item.retrieve",
        "conversation.item.delete",
        "conversation.item.truncate",
        "response.create",
        "response.cancel",
        "output_audio_buffer.clear",
        "x.playback",
    ]
)
ALMOST_EVENTS = st.builds(
    lambda event_type, rest: {**rest, "type": event_type},
    TYPES,
    st.dictionaries(KEYS, JSON, max_size=4),
)


async def _still_alive(client: CheckingClient) -> None:
    events = await client.send(
        {"type": "session.update", "session": {"instructions": "Still here."}}
    )
    assert "session.updated" in types(events)


@FUZZ
@given(st.lists(st.text() | st.binary() | JSON.map(json.dumps), max_size=8))
def test_any_message(messages: list[str | bytes]) -> None:
    async def scenario(client: CheckingClient) -> None:
        for message in messages:
            assert types(await client.send(message)) == ["error"]
        await _still_alive(client)

    play(scenario)


@FUZZ
@given(st.lists(ALMOST_EVENTS, max_size=8))
def test_any_fields(events: list[dict[str, Any]]) -> None:
    async def scenario(client: CheckingClient) -> None:
        for event in events:
            await client.send(event)
        await _still_alive(client)

    play(scenario)


# -- a client that does everything right, and nothing in a sensible order -----------------------

SESSIONS = st.fixed_dictionaries(
    {},
    optional={
        "instructions": st.sampled_from(["Rhyme.", ""]),
        "output_modalities": st.sampled_from([["audio"], ["text"]]),
        "max_output_tokens": st.sampled_from([1, 5, "inf"]),
        "audio": st.fixed_dictionaries(
            {},
            optional={
                "input": st.fixed_dictionaries(
                    {},
                    optional={
                        "turn_detection": st.sampled_from(
                            [
                                None,
                                {"type": "server_vad", "idle_timeout_ms": 5_000},
                                {"type": "server_vad", "create_response": False},
                                {"type": "server_vad", "interrupt_response": False},
                                {"type": "semantic_vad", "eagerness": "high"},
                            ]
                        ),
                        "transcription": st.sampled_from([None, {"model": "whisper-1"}]),
                    },
                ),
                "output": st.fixed_dictionaries(
                    {},
                    optional={
                        "format": st.sampled_from([{"type": "audio/pcm"}, {"type": "audio/pcmu"}]),
                        "speed": st.sampled_from([0.5, 1.5]),
                    },
                ),
            },
        ),
        "x": st.sampled_from(
            [
                {"events": True},
                {"acknowledge_playback": True},
                {"events": True, "playback_lead_ms": None},
            ]
        ),
    },
)


def _message(role: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    content = [{"type": kind, "text": "Something."}]
    return {"type": "message", "role": role, "content": content}


SOUNDS = {"speak": tone(0.4), "pause": silence(0.7)}
ACTIONS = st.one_of(
    st.sampled_from(["speak", "pause"]).map(lambda sound: (sound, None)),
    st.sampled_from([0.05, 0.5, 8.0]).map(lambda seconds: ("wait", seconds)),
    st.sampled_from(["hold", "work", "work a little"]).map(lambda what: (what, None)),
    st.sampled_from(["asr", "llm", "tts", "", "words"]).map(lambda stage: ("break", stage)),
    st.sampled_from(["commit", "clear"]).map(
        lambda what: ("send", {"type": f"input_audio_buffer.{what}"})
    ),
    SESSIONS.map(lambda session: ("send", {"type": "session.update", "session": session})),
    st.sampled_from(["system", "user", "assistant"]).map(
        lambda role: ("send", {"type": "conversation.item.create", "item": _message(role)})
    ),
    st.sampled_from(
        [
            {"type": "response.create"},
            {"type": "response.create", "response": {"output_modalities": ["text"]}},
            {"type": "response.cancel"},
            {"type": "output_audio_buffer.clear"},
        ]
    ).map(lambda event: ("send", event)),
    st.tuples(st.sampled_from(["retrieve", "delete", "truncate", "follow"]), st.integers(0, 5)),
    st.integers(0, 3_000).map(lambda position: ("played", position)),
)


async def _act(client: CheckingClient, action: str, detail: Any) -> None:
    runtime = client.runtime
    match action:
        case "send":
            await client.send(detail)
        case "speak" | "pause":
            await client.append(SOUNDS[action])
        case "wait":
            await client.pass_time(detail)
        case "hold":
            runtime.hold = True
        case "work":
            runtime.work()
        case "work a little":
            runtime.work(steps=2)
        case "break":
            runtime.broken = {detail}
            runtime.words = "" if detail == "words" else "what time is it"
        case "played":
            created = [e for e in client.events if e["type"] == "response.created"]
            if created:
                response_id = created[-1]["response"]["id"]
                event = {"type": "x.playback", "response_id": response_id, "position_ms": detail}
                await client.send(event)
        case _:
            await _touch_an_item(client, action, detail)


async def _touch_an_item(client: CheckingClient, action: str, which: int) -> None:
    item_ids = client.ordering.item_ids
    if not item_ids:
        return
    item_id = item_ids[which % len(item_ids)]
    if action == "follow":
        event: dict[str, Any] = {"type": "conversation.item.create", "item": _message("user")}
        await client.send({**event, "previous_item_id": item_id})
        return
    event = {"type": f"conversation.item.{action}", "item_id": item_id}
    if action == "truncate":
        event |= {"content_index": 0, "audio_end_ms": which * 200}
    await client.send(event)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ACTIONS, max_size=25))
def test_any_course_of_a_session_is_in_order(actions: list[tuple[str, Any]]) -> None:
    async def scenario(client: CheckingClient) -> None:
        for action, detail in actions:
            await _act(client, action, detail)
            await client.collect()
        client.runtime.work()
        await client.collect()
        await _still_alive(client)
        await client.send({"type": "output_audio_buffer.clear"})
        await client.pass_time(600)
        client.ordering.finish()

    play(scenario)
