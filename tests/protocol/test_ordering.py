"""The machine that judges orders accepts a real turn and rejects every way of spoiling it."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable

import pytest

from tests.protocol.client import CheckingClient, Event, of
from tests.protocol.ordering import Ordering, OutOfOrder
from tests.protocol.scenario import play


async def _two_turns(client: CheckingClient) -> list[Event]:
    await client.update(x={"events": True})
    await client.say(0.6)
    await client.pass_time(30)
    await client.update(output_modalities=["text"])
    await client.say(0.6)
    await client.pass_time(30)
    return client.events


@pytest.fixture(scope="module")
def turns() -> list[Event]:
    """A spoken turn answered by voice, and one answered in writing."""
    return play(_two_turns)


def judge(events: list[Event]) -> None:
    ordering = Ordering()
    for event in events:
        ordering.feed(event)
    ordering.finish()


def test_a_real_session_is_in_order(turns: list[Event]) -> None:
    judge(turns)


HARMLESS = {"session.updated", "x.transcript.partial", "x.turn.timeline"}
"""Events that say nothing about the order of the others."""
INTERLEAVING = {"response.output_audio.delta", "response.output_audio_transcript.delta"}


def test_no_event_of_a_turn_can_be_missing(turns: list[Event]) -> None:
    last_audio = of(turns, "response.output_audio.delta")[-1]  # nothing after it can tell
    for index, event in enumerate(turns):
        if event["type"] in HARMLESS or event is last_audio:
            continue
        with pytest.raises(OutOfOrder):
            judge(turns[:index] + turns[index + 1 :])
            pytest.fail(f"a turn without event {index}, {event['type']}, passed")


def test_no_event_can_come_twice(turns: list[Event]) -> None:
    for index, event in enumerate(turns):
        if event["type"] in HARMLESS:
            continue
        again = {**copy.deepcopy(event), "event_id": "another"}
        with pytest.raises(OutOfOrder):
            judge([*turns[: index + 1], again, *turns[index + 1 :]])
            pytest.fail(f"{event['type']} passed twice")


def test_no_two_neighbours_can_change_places(turns: list[Event]) -> None:
    for index, (first, second) in enumerate(itertools.pairwise(turns)):
        kinds = {first["type"], second["type"]}
        if kinds & HARMLESS or kinds == INTERLEAVING:
            continue
        if len(kinds) == 1 and first.get("delta") == second.get("delta"):
            continue
        with pytest.raises(OutOfOrder):
            judge([*turns[:index], second, first, *turns[index + 2 :]])
            pytest.fail(f"{second['type']} passed before {first['type']}")


def _swap(events: list[Event], event_type: str, change: Callable[[Event], None]) -> list[Event]:
    changed = copy.deepcopy(events)
    change(of(changed, event_type)[0])
    return changed


@pytest.mark.parametrize(
    ("event_type", "field", "wrong"),
    [
        ("response.output_audio_transcript.done", "transcript", "something else"),
        ("response.output_text.done", "text", "something else"),
        ("response.output_audio.delta", "response_id", "resp_other"),
        ("response.output_audio.delta", "item_id", "item_other"),
        ("response.output_audio.delta", "x_start_ms", 5.0),
        ("response.output_item.done", "item", {"id": "item_other"}),
        ("conversation.item.input_audio_transcription.completed", "transcript", "other words"),
        ("conversation.item.added", "previous_item_id", "item_other"),
        ("input_audio_buffer.speech_stopped", "item_id", "item_other"),
        ("input_audio_buffer.speech_stopped", "audio_end_ms", -1),
    ],
)
def test_an_event_that_contradicts_another_is_found(
    turns: list[Event], event_type: str, field: str, wrong: object
) -> None:
    with pytest.raises((OutOfOrder, KeyError)):
        judge(_swap(turns, event_type, lambda event: event.update({field: wrong})))


def test_sound_that_was_voided_is_found(turns: list[Event]) -> None:
    delta = of(turns, "response.output_audio.delta")[0]
    index = turns.index(delta)
    clear = {
        "type": "x.playback.clear",
        "event_id": "clear",
        "response_id": delta["response_id"],
        "generation": delta["x_generation"],
    }
    with pytest.raises(OutOfOrder, match="voided"):
        judge([*turns[:index], clear, *turns[index:]])


def test_a_session_may_not_end_within_a_response(turns: list[Event]) -> None:
    created = turns.index(of(turns, "response.created")[0])
    with pytest.raises(OutOfOrder, match="never ended"):
        judge(turns[: created + 2])
