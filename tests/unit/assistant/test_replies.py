"""What a turn's events add up to."""

from __future__ import annotations

import base64
from collections.abc import Iterable

import pytest

from assistant.errors import AnswerFailed, RequestRefused
from assistant.replies import OUTPUT_RATE_HZ, TurnCollector, WireEvent

ONE_SECOND = bytes(2 * OUTPUT_RATE_HZ)


def started(item: str) -> WireEvent:
    return {"type": "input_audio_buffer.speech_started", "item_id": item}


def committed(item: str) -> WireEvent:
    return {"type": "input_audio_buffer.committed", "item_id": item}


def recognised(item: str, words: str) -> WireEvent:
    return {
        "type": "conversation.item.input_audio_transcription.completed",
        "item_id": item,
        "transcript": words,
    }


def discarded(item: str, reason: str) -> WireEvent:
    return {"type": "x.turn.discarded", "item_id": item, "reason": reason}


def created(answer: str) -> WireEvent:
    return {"type": "response.created", "response": {"id": answer}}


def said(answer: str, words: str) -> WireEvent:
    return {
        "type": "response.output_audio_transcript.delta",
        "response_id": answer,
        "delta": words,
    }


def sounded(answer: str, pcm: bytes) -> WireEvent:
    delta = base64.b64encode(pcm).decode()
    return {"type": "response.output_audio.delta", "response_id": answer, "delta": delta}


def done(answer: str, status: str = "completed", problem: str | None = None) -> WireEvent:
    details = {"error": {"message": problem}} if problem else None
    response = {"id": answer, "status": status, "status_details": details}
    return {"type": "response.done", "response": response}


def timed(answer: str | None, heard: str | None, ttfa_ms: float = 0.0) -> WireEvent:
    return {
        "type": "x.turn.timeline",
        "response_id": answer,
        "heard": heard,
        "timeline": {"server_ttfa_ms": ttfa_ms},
    }


def answered(answer: str, words: str, pcm: bytes = b"") -> list[WireEvent]:
    return [
        created(answer),
        said(answer, words),
        sounded(answer, pcm),
        done(answer),
        timed(answer, words),
    ]


def after(events: Iterable[WireEvent]) -> TurnCollector:
    collector = TurnCollector()
    for event in events:
        collector.feed(event)
    return collector


def test_an_answer_is_its_words_its_sound_and_its_times() -> None:
    reply = after(
        [
            created("a"),
            said("a", "Par"),
            sounded("a", ONE_SECOND),
            said("a", "is."),
            sounded("a", ONE_SECOND),
            done("a"),
            timed("a", "Paris.", ttfa_ms=312.0),
        ]
    ).reply()
    assert (reply.text, reply.heard) == ("Paris.", "Paris.")
    assert reply.audio == 2 * ONE_SECOND
    assert reply.heard_ms == 2000.0
    assert reply.status == "completed"
    assert reply.timeline == {"server_ttfa_ms": 312.0}


def test_an_answer_is_not_whole_before_its_times_are_known() -> None:
    collector = after([created("a"), done("a")])
    assert not collector.settled
    collector.feed(timed("a", ""))
    assert collector.settled


@pytest.mark.parametrize(
    "so_far",
    [
        [started("u")],
        [started("u"), committed("u")],
        [started("u"), committed("u"), recognised("u", "hello"), created("a")],
        [started("u"), committed("u"), recognised("u", "hello"), created("a"), said("a", "Hi.")],
    ],
    ids=["speaking", "recognising", "answer begun", "answering"],
)
def test_a_spoken_turn_is_not_over_while_something_is_under_way(so_far: list[WireEvent]) -> None:
    assert not after(so_far).settled


def test_the_user_is_speaking_until_the_turn_is_committed_or_discarded() -> None:
    assert after([started("u")]).speaking
    assert not after([started("u"), committed("u")]).speaking
    assert not after([started("u"), discarded("u", "silence")]).speaking


def test_a_spoken_turn_has_the_words_understood_and_the_answer() -> None:
    heard = [started("u"), committed("u"), recognised("u", "the capital of France")]
    collector = after([*heard, *answered("a", "Paris.")])
    turn = collector.turn()
    assert collector.settled
    assert (turn.transcript, turn.text, turn.rejection) == (
        "the capital of France",
        "Paris.",
        None,
    )


def test_words_after_a_pause_join_the_transcript_and_the_last_answer_counts() -> None:
    turn = after(
        [
            started("u1"),
            committed("u1"),
            recognised("u1", "the capital"),
            created("a1"),
            started("u2"),
            done("a1", "cancelled"),
            timed("a1", None),
            committed("u2"),
            recognised("u2", "of France"),
            *answered("a2", "Paris."),
        ]
    ).turn()
    assert (turn.transcript, turn.text) == ("the capital of France", "Paris.")


def test_sound_without_words_has_no_answer_and_says_why() -> None:
    collector = after(
        [started("u"), committed("u"), discarded("u", "repetition"), timed(None, None)]
    )
    turn = collector.turn()
    assert collector.settled
    assert (turn.transcript, turn.text, turn.audio) == ("", "", b"")
    assert turn.rejection == "repetition"


def test_silence_is_rejected_as_no_speech() -> None:
    assert TurnCollector().turn().rejection == "no_speech"


def test_noise_after_the_words_does_not_take_them_back() -> None:
    heard = [started("u"), committed("u"), recognised("u", "hello")]
    noise = [started("n"), committed("n"), discarded("n", "no_speech"), timed(None, None)]
    turn = after([*heard, *answered("a", "Hi."), *noise]).turn()
    assert (turn.transcript, turn.rejection, turn.text) == ("hello", None, "Hi.")


def test_of_a_cancelled_answer_only_what_was_played_counts_as_heard() -> None:
    collector = after([created("a"), said("a", "One two three."), sounded("a", ONE_SECOND)])
    collector.played("a", 400.0)
    collector.feed(done("a", "cancelled"))
    collector.feed(timed("a", "One"))
    reply = collector.reply()
    assert (reply.status, reply.heard, reply.heard_ms) == ("cancelled", "One", 400.0)


def test_a_turn_is_over_if_all_had_ended_when_the_server_confirmed_an_update() -> None:
    updated = {"type": "session.updated"}
    answer = answered("a", "Paris.")
    assert after([*answer, updated]).over
    assert not after([answer[0], updated, *answer[1:]]).over


def test_a_failed_answer_raises_with_the_servers_reason() -> None:
    collector = after([created("a"), done("a", "failed", "The model ran out."), timed("a", "")])
    with pytest.raises(AnswerFailed, match="The model ran out"):
        collector.reply()


def test_an_error_about_an_own_request_is_a_refusal() -> None:
    collector = TurnCollector()
    collector.expect("request_1")
    collector.feed({"type": "error", "error": {"event_id": "request_1", "message": "Too long."}})
    assert collector.refused
    with pytest.raises(RequestRefused, match="Too long"):
        collector.reply()


def test_an_error_about_something_else_is_not() -> None:
    collector = TurnCollector()
    collector.expect("request_1")
    collector.feed({"type": "error", "error": {"event_id": None, "message": "Not yours."}})
    assert not collector.refused


def test_answers_that_began_earlier_are_ignored() -> None:
    earlier = [said("old", "Stale."), sounded("old", ONE_SECOND), done("old"), timed("old", "")]
    reply = after([*earlier, *answered("new", "Fresh.")]).reply()
    assert (reply.text, reply.audio) == ("Fresh.", b"")
