"""What the operator's page is told: words only if they may be read, and never without bound."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pydantic import TypeAdapter

from assistant.config import Config, LogConfig
from assistant.dashboard.feed import KEPT_LOADS, KEPT_TURNS, MOST_UNREAD, Feed
from assistant.dashboard.load import LoadMeter
from assistant.dashboard.records import MOST_STEPS, DashboardEvent, Greeting, LoadRecord, TurnRecord
from assistant.effects import TurnFinished
from assistant.items import AnswerStep, DraftToken
from assistant.realtime.errors import CLIENT_TOO_SLOW, ConnectionEnded
from assistant.realtime.outbox import Outbox
from assistant.timeline import Timeline
from assistant.workers import Urgency
from dspark import EngineMetrics

NOW_S = 1_750_000_000.0
QUESTION, ANSWER = "Where is my father's will?", "Behind the clock."
EVENT: TypeAdapter[Greeting | TurnRecord | LoadRecord] = TypeAdapter(DashboardEvent)


def turn(number: int = 1, steps: tuple[AnswerStep, ...] | None = None) -> TurnFinished:
    drafted = (
        DraftToken("Behind", "accepted"),
        DraftToken(" a", "rejected"),
        DraftToken(" wall", "unverified"),
    )
    return TurnFinished(
        number,
        "done",
        Timeline("spoken", speech_end_s=1.0, pause_s=1.16, endpoint_s=1.5, first_sent_s=1.52),
        "resp",
        QUESTION,
        ANSWER,
        steps or (AnswerStep(("Behind", " the"), drafted), AnswerStep((" clock.",))),
        speculation="hit",
        wasted_tokens=3,
    )


def feed(*, transcripts: bool = False) -> Feed:
    return Feed(Config(log=LogConfig(transcripts=transcripts)), clock=lambda: NOW_S)


def unread(outbox: Outbox) -> list[Any]:
    """What waits for a page: records as JSON."""

    async def take() -> list[Any]:
        return [await outbox.take() for _ in range(len(outbox))]

    return asyncio.run(take())


def seen(source: Feed) -> list[Greeting | TurnRecord | LoadRecord]:
    """What a page that is opened now gets."""
    with source.watch() as outbox:
        return [EVENT.validate_json(json.dumps(record)) for record in unread(outbox)]


def load(sessions: int = 0) -> LoadRecord:
    return LoadRecord(at_s=NOW_S, sessions=sessions)


def test_a_turn_is_told_with_its_moments_and_what_became_of_every_token() -> None:
    source = feed(transcripts=True)
    source.tell_turn("a session", turn())
    _, record = seen(source)
    assert isinstance(record, TurnRecord)
    assert (record.session, record.turn, record.ended_at_s) == ("a session", 1, NOW_S)
    assert (record.speculation, record.wasted_tokens) == ("hit", 3)
    assert record.timeline["pause_ms"] == 160
    assert record.timeline["server_ttfa_ms"] == 520
    assert (record.transcript, record.heard) == (QUESTION, ANSWER)
    assert [[(token.text, token.fate) for token in step] for step in record.steps] == [
        [("Behind", "accepted"), (" a", "rejected"), (" wall", "unverified"), (" the", "own")],
        [(" clock.", "own")],
    ]


def test_what_people_say_is_not_told_unless_it_may_be_logged() -> None:
    source = feed(transcripts=False)
    source.tell_turn("a session", turn())
    with source.watch() as outbox:
        told = json.dumps(unread(outbox))
    for word in ("father", "Behind", "wall", "clock"):
        assert word not in told
    _, record = seen(source)
    assert isinstance(record, TurnRecord)
    assert [[token.fate for token in step] for step in record.steps] == [
        ["accepted", "rejected", "unverified", "own"],
        ["own"],
    ]


def test_a_page_is_told_first_what_to_expect() -> None:
    greeting, *_ = seen(feed(transcripts=True))
    assert isinstance(greeting, Greeting)
    assert greeting.transcripts and greeting.kept_turns == KEPT_TURNS
    assert greeting.models["llm"] == Config().llm.model


def test_a_page_that_opens_later_gets_the_last_turns_and_no_more() -> None:
    source = feed()
    for number in range(KEPT_TURNS + 5):
        source.tell_turn("a session", turn(number))
        source.tell_load(load(number))
    records = seen(source)
    turns = [record.turn for record in records if isinstance(record, TurnRecord)]
    loads = [record.sessions for record in records if isinstance(record, LoadRecord)]
    assert turns == list(range(5, KEPT_TURNS + 5))
    assert loads == list(range(KEPT_TURNS + 5))[-KEPT_LOADS:]


def test_open_pages_are_told_at_once_and_in_order() -> None:
    source = feed()
    with source.watch() as one, source.watch() as other:
        assert source.watching == 2
        source.tell_turn("a session", turn(1))
        source.tell_load(load())
        for outbox in (one, other):
            assert [record["type"] for record in unread(outbox)] == ["greeting", "turn", "load"]
    assert source.watching == 0


def test_a_page_that_does_not_read_is_given_up_and_the_others_are_not() -> None:
    source = feed()
    with source.watch() as slow, source.watch() as quick:
        unread(quick)
        for _ in range(MOST_UNREAD):
            source.tell_load(load())
        assert len(unread(quick)) == MOST_UNREAD
        assert len(slow) == 0
        with pytest.raises(ConnectionEnded) as ended:
            asyncio.run(slow.take())
        assert (ended.value.code, ended.value.reason) == CLIENT_TOO_SLOW


def test_of_an_endless_answer_the_first_steps_are_told() -> None:
    source = feed()
    source.tell_turn("a session", turn(steps=(AnswerStep(("on",)),) * (MOST_STEPS + 7)))
    _, record = seen(source)
    assert isinstance(record, TurnRecord)
    assert (len(record.steps), record.steps_left_out) == (MOST_STEPS, 7)


# -- load -----------------------------------------------------------------------------------


def test_the_load_is_what_was_noted_since_the_last_time() -> None:
    meter = LoadMeter(lambda: None)
    for lag_s in (0.001, 0.004, 0.002):
        meter.note_lag(lag_s)
    meter.note_wait("tts", Urgency.FIRST_CLAUSE, 0.010)
    meter.note_wait("asr", Urgency.FINAL, 0.020)
    meter.note_wait("asr", Urgency.FINAL, 0.040)
    record = meter.take(at_s=NOW_S, sessions=2)
    assert (record.sessions, record.lag_ms) == (2, 4)
    assert [(q.worker, q.urgency, q.jobs, q.mean_ms, q.longest_ms) for q in record.queues] == [
        ("asr", "final", 2, 30, 40),
        ("tts", "first_clause", 1, 10, 10),
    ]
    after = meter.take(at_s=NOW_S + 1, sessions=0)
    assert (after.lag_ms, after.queues) == (None, [])


def test_the_engines_queue_is_what_came_to_it_since_the_last_time() -> None:
    metrics = [
        EngineMetrics(queued=10, queue_ms=500.0),
        EngineMetrics(queued=12, queue_ms=530.0),
        EngineMetrics(queued=12, queue_ms=530.0),
    ]
    meter = LoadMeter(iter(metrics).__next__)
    queues = [meter.take(at_s=NOW_S, sessions=1).queues for _ in metrics]
    assert [[(q.worker, q.jobs, q.mean_ms) for q in each] for each in queues] == [
        [],
        [("llm", 2, 15)],
        [],
    ]
