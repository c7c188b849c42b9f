"""The check of every event must itself be strict, or all tests that lean on it say nothing."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from tests.protocol.client import CheckingClient, Event
from tests.protocol.scenario import play
from tests.protocol.schema import ADAPTER, PUBLISHED, check


async def _everything(client: CheckingClient) -> list[Event]:
    await client.update(x={"events": True})
    await client.say(0.6)
    await client.pass_time(30)
    await client.send({"type": "nonsense"})
    return client.events


@pytest.fixture(scope="module")
def samples() -> dict[str, Event]:
    """One event of each type that occurs in a spoken turn."""
    return {event["type"]: event for event in play(_everything)}


def _without_each_required_field(event: Event) -> Iterator[tuple[str, Event]]:
    model = PUBLISHED[event["type"]]
    for name, described in model.model_fields.items():
        if described.is_required() and name != "type":
            yield name, {key: value for key, value in event.items() if key != name}


def test_an_event_that_lacks_a_required_field_is_found(samples: dict[str, Event]) -> None:
    tried = 0
    for event_type, event in samples.items():
        if event_type in PUBLISHED:
            for name, broken in _without_each_required_field(event):
                tried += 1
                with pytest.raises((ValidationError, AssertionError, KeyError)):
                    check(broken)
                    pytest.fail(f"{event_type} without {name} passed")
                with pytest.raises(ValidationError):
                    ADAPTER.validate_python(broken, strict=True)
    assert tried > 50


@pytest.mark.parametrize(
    ("event_type", "path", "wrong"),
    [
        ("response.done", ("response", "status"), "done"),
        ("response.done", ("response", "object"), "response"),
        ("response.done", ("response", "usage", "total_tokens"), "3"),
        ("response.done", ("response", "output", 0, "role"), "robot"),
        ("response.done", ("response", "output", 0, "content", 0, "type"), "audio"),
        ("response.done", ("response", "output_modalities"), ["speech"]),
        ("response.content_part.added", ("part", "type"), "output_audio"),
        ("response.output_audio.delta", ("content_index",), "0"),
        ("conversation.item.added", ("item", "status"), "whole"),
        ("input_audio_buffer.speech_started", ("audio_start_ms",), 1.5),
        ("session.created", ("session", "type"), "voice"),
        ("session.created", ("session", "audio", "output", "format", "rate"), 16_000),
        ("session.created", ("session", "audio", "input", "turn_detection", "type"), "vad"),
        ("error", ("error", "message"), None),
        ("x.turn.timeline", ("outcome",), "fine"),
    ],
)
def test_a_wrong_value_is_found(
    samples: dict[str, Event], event_type: str, path: tuple[str | int, ...], wrong: Any
) -> None:
    event = copy.deepcopy(samples[event_type])
    place: Any = event
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = wrong
    with pytest.raises((ValidationError, AssertionError)):
        check(event)


@pytest.mark.parametrize(
    ("event_type", "path"),
    [
        ("response.done", ()),
        ("response.done", ("response",)),
        ("response.done", ("response", "output", 0)),
        ("response.done", ("response", "usage", "input_token_details")),
        ("session.created", ("session", "audio", "input")),
        ("error", ("error",)),
        ("x.turn.timeline", ()),
    ],
)
def test_a_field_that_no_client_knows_is_found(
    samples: dict[str, Event], event_type: str, path: tuple[str | int, ...]
) -> None:
    event = copy.deepcopy(samples[event_type])
    place: Any = event
    for step in path:
        place = place[step]
    place["surprise"] = 1
    with pytest.raises((ValidationError, AssertionError)):
        check(event)


def test_an_event_of_an_unknown_type_is_found() -> None:
    with pytest.raises(KeyError):
        check({"type": "response.audio.delta", "event_id": "e"})
