"""One turn at a time, in virtual time: what is said when, and what is kept of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assistant.effects import (
    ItemAdded,
    ItemTruncated,
    PlaybackCleared,
    Refused,
    ResponseAudio,
    ResponseFinished,
    ResponseStarted,
    ResponseText,
    SpeechStarted,
    SpeechStopped,
    StageFailed,
    TranscriptCompleted,
    TranscriptSoFar,
    UtteranceDiscarded,
)
from assistant.events import (
    CancelResponse,
    ClearPlayback,
    CommitAudio,
    CreateItem,
    CreateResponse,
    TruncateItem,
)
from assistant.items import ItemStatus, ResponseStatus, Role
from assistant.session import Limits
from assistant.settings import Settings, TurnDetection
from tests.timing.world import (
    RATE_HZ,
    WINDOW_S,
    WORD_S,
    Pace,
    Speech,
    World,
    acknowledged,
    finished,
)

HELLO = Speech(1.0, 2.0, "hello there")
REPLY = "Good morning to you, dear user. How can I help you today?"


def test_a_spoken_turn_goes_from_the_first_word_to_the_last_sound() -> None:
    world = World(acknowledged(), speeches=(HELLO,), replies=(REPLY,))
    world.run(until_s=10)
    several = ResponseAudio | ResponseText | TranscriptSoFar
    order = [type(n) for _, n in world.notices if not isinstance(n, several)]
    assert order[:2] == [SpeechStarted, SpeechStopped]
    assert order.index(TranscriptCompleted) < order.index(ResponseStarted)
    assert [r.response.status for r in finished(world)] == [ResponseStatus.COMPLETED]
    assert world.said == [("user", "hello there"), ("assistant", REPLY)]
    assert [turn.outcome for turn in world.turns] == ["done"]
    assert world.turns[0].heard == REPLY
    assert world.session.turns == []


def test_the_four_latencies_of_a_turn_follow_from_its_moments() -> None:
    pace = Pace(transcript_s=0.2, first_text_s=0.1, text_s=0.0, encode_s=0.1, window_s=0.1)
    world = World(acknowledged(), speeches=(HELLO,), replies=(REPLY,), pace=pace)
    world.run(until_s=10)
    timeline = world.turns[0].timeline
    timeline.check_order()
    # The endpoint falls on the window that completes 500 ms of silence.
    assert timeline.endpoint_wait_ms == pytest.approx(500, abs=WINDOW_S * 1000)
    # The work behind it takes its time, but it began with the first window of silence.
    pause_ms = timeline.as_milliseconds()["pause_ms"]
    assert pause_ms == pytest.approx(64, abs=WINDOW_S * 1000)
    assert timeline.added_latency_ms == pytest.approx(32 + (200 + 100 + 100 + 100) - 512, abs=1)
    assert timeline.server_ttfa_ms == pytest.approx(
        timeline.endpoint_wait_ms + timeline.added_latency_ms, abs=0.2
    )
    assert timeline.client_ttfa_ms is not None
    assert timeline.client_ttfa_ms >= timeline.server_ttfa_ms


def test_a_turn_tells_how_the_model_came_to_its_answer() -> None:
    world = World(acknowledged(), speeches=(HELLO,), replies=(REPLY,))
    world.run(until_s=10)
    [turn] = world.turns
    assert "".join(token for step in turn.steps for token in step.committed) == REPLY


def test_audio_leaves_at_most_its_lead_ahead_of_the_loudspeaker() -> None:
    world = World(acknowledged(), speeches=(HELLO,), replies=(REPLY * 3,))
    world.run(until_s=4)
    assert world.loudspeaker.received - world.loudspeaker.played <= 0.4 * RATE_HZ
    assert world.loudspeaker.received > 0
    world.run(until_s=30)
    assert world.turns[0].heard == REPLY * 3


def test_an_interruption_keeps_exactly_the_words_that_were_heard() -> None:
    interruption = Speech(4.0, 5.0, "stop please")
    world = World(acknowledged(), speeches=(HELLO, interruption), replies=(REPLY, "All right."))
    world.run(until_s=12)
    first, second = finished(world)
    assert first.response.status is ResponseStatus.CANCELLED
    assert first.response.reason == "turn_detected"
    item = world.item(first.response.item_id)
    words_played = int((world.loudspeaker.sounding and _played_of_first(world)) / WORD_S + 1e-6)
    assert item.heard is not None
    assert item.heard.split() == REPLY.split()[:words_played]
    assert 0 < words_played < len(REPLY.split())
    assert world.said[1] == ("assistant", item.heard)
    assert second.response.status is ResponseStatus.COMPLETED
    assert [turn.outcome for turn in world.turns] == ["interrupted", "done"]


def _played_of_first(world: World) -> float:
    generations = [generation for _, _, generation in world.loudspeaker.sounding]
    first = generations[0]
    return sum(end - start for start, end, g in world.loudspeaker.sounding if g == first)


def test_sound_stops_as_soon_as_speech_is_established() -> None:
    interruption = Speech(4.0, 5.0, "stop please")
    world = World(acknowledged(), speeches=(HELLO, interruption), replies=(REPLY,))
    world.run(until_s=4.5)
    last_sound_s = max(end for _, end, _ in world.loudspeaker.sounding)
    assert 4.0 < last_sound_s <= 4.0 + 0.090 + 2 * WINDOW_S  # the gate's least speech, in windows
    cleared = world.when(PlaybackCleared)[0]
    assert all(moment <= cleared for moment in world.when(ResponseAudio))


def test_an_answer_nobody_heard_leaves_no_trace_in_the_prompt() -> None:
    again = Speech(2.75, 3.5, "and goodbye")
    world = World(acknowledged(), speeches=(HELLO, again), replies=(REPLY, "Bye."))
    world.run(until_s=10)
    assert world.said == [("user", "hello there and goodbye"), ("assistant", "Bye.")]


def test_a_cough_before_the_answer_does_not_leave_the_user_in_silence() -> None:
    cough = Speech(2.75, 3.0, "")
    world = World(acknowledged(), speeches=(HELLO, cough), replies=(REPLY,))
    world.run(until_s=12)
    assert len(world.of(UtteranceDiscarded)) == 1
    assert world.said == [("user", "hello there"), ("assistant", REPLY)]


def test_noise_makes_no_turn_and_no_item() -> None:
    world = World(acknowledged(), speeches=(Speech(1.0, 1.6, ""),))
    world.run(until_s=6)
    assert world.of(ItemAdded, ResponseStarted) == []
    assert [turn.outcome for turn in world.turns] == ["discarded"]
    assert list(world.session.history) == []


def test_a_microphone_that_goes_dead_ends_the_utterance() -> None:
    long = Speech(1.0, 9.0, "hello you all my dear and patient friends")
    world = World(acknowledged(), speeches=(long,), microphone_until_s=2.0)
    world.run(until_s=10)
    assert world.when(SpeechStopped) == [pytest.approx(3.0, abs=2 * WINDOW_S)]
    assert world.turns[0].outcome == "done"


def test_a_client_without_acknowledgements_is_taken_to_play_what_it_is_sent() -> None:
    interruption = Speech(4.0, 5.0, "stop please")
    world = World(Settings(), speeches=(HELLO, interruption), replies=(REPLY, "All right."))
    world.acknowledges = False
    world.run(until_s=12)
    heard = world.item(finished(world)[0].response.item_id).heard
    assert heard is not None
    assert 0 < len(heard) < len(REPLY)
    assert REPLY.startswith(heard)


def test_an_unpaced_client_gets_everything_at_once() -> None:
    settings = replace(Settings(), playback_lead_ms=None)
    world = World(settings, speeches=(HELLO,), replies=(REPLY,))
    world.acknowledges = False
    world.run(until_s=6)
    assert world.turns[0].outcome == "done"
    assert world.turns[0].heard == REPLY
    finished_s = world.turns[0].timeline.finished_s
    spoken_s = len(REPLY.split()) * WORD_S
    assert finished_s is not None and finished_s < world.when(ResponseStarted)[0] + spoken_s


# -- written turns and manual mode ------------------------------------------------------------

MANUAL = Settings(turn_detection=None, modality="text")


def test_a_written_question_gets_a_written_answer() -> None:
    world = World(MANUAL, replies=(REPLY,))
    world.at(1.0, CreateItem(role=Role.USER, text="how are you"))
    world.at(1.0, CreateResponse())
    world.run(until_s=5)
    assert world.said == [("user", "how are you"), ("assistant", REPLY)]
    assert world.of(ResponseAudio) == []
    assert world.turns[0].timeline.kind == "written"


def test_in_manual_mode_the_answer_waits_for_the_committed_words() -> None:
    world = World(replace(MANUAL, modality="audio"), speeches=(HELLO,), replies=(REPLY,))
    world.at(2.5, CommitAudio(end_sample=40_000))
    world.at(2.51, CreateResponse())
    world.run(until_s=12)
    assert world.when(ResponseStarted) >= world.when(TranscriptCompleted)
    assert len(world.turns) == 1
    assert world.turns[0].transcript == "hello there"
    assert world.said[-1] == ("assistant", REPLY)


def test_an_empty_commit_is_refused() -> None:
    world = World(MANUAL)
    world.at(1.0, CommitAudio(end_sample=100, command_id="c1"))
    world.run(until_s=2)
    (refused,) = world.of(Refused)
    assert isinstance(refused, Refused)
    assert (refused.command_id, refused.code) == ("c1", "input_audio_buffer_commit_empty")


def test_a_second_answer_at_the_same_time_is_refused() -> None:
    world = World(MANUAL, replies=(REPLY,))
    world.at(1.0, CreateItem(role=Role.USER, text="how are you"))
    world.at(1.0, CreateResponse())
    world.at(1.15, CreateResponse(command_id="c2"))
    world.run(until_s=5)
    (refused,) = world.of(Refused)
    assert isinstance(refused, Refused)
    assert refused.code == "conversation_already_has_active_response"
    assert len(finished(world)) == 1


def test_cancel_then_create_at_once_works() -> None:
    world = World(MANUAL, replies=(REPLY, "Second."))
    world.at(1.0, CreateItem(role=Role.USER, text="how are you"))
    world.at(1.0, CreateResponse())
    world.at(1.2, CancelResponse())
    world.at(1.2, CreateResponse())
    world.run(until_s=5)
    assert [r.response.status for r in finished(world)] == [
        ResponseStatus.CANCELLED,
        ResponseStatus.COMPLETED,
    ]
    assert world.of(Refused) == []


def test_stopping_the_tail_of_a_finished_answer_is_no_error() -> None:
    world = World(acknowledged(), speeches=(HELLO,), replies=("One two three four.",))
    world.run(until_s=3.4)
    assert finished(world) and world.session.turns
    world.at(3.4, ClearPlayback())
    world.run(until_s=4)
    assert world.of(Refused) == []
    assert world.session.turns == []
    heard = world.item(finished(world)[0].response.item_id).heard
    assert heard is not None and heard != "One two three four."


def test_cancelling_when_nothing_is_made_is_refused_and_changes_nothing() -> None:
    world = World(acknowledged(), speeches=(HELLO,), replies=("One two three four.",))
    world.run(until_s=3.4)
    world.at(3.4, CancelResponse(command_id="c3"))
    world.run(until_s=8)
    (refused,) = world.of(Refused)
    assert isinstance(refused, Refused) and refused.code == "response_cancel_not_active"
    assert world.turns[0].heard == "One two three four."


@pytest.mark.parametrize(
    ("audio_end_ms", "heard"),
    [(0, ""), (249, ""), (250, "One"), (999, "One two three"), (99_000, "One two three four.")],
)
def test_a_truncation_cuts_at_the_last_word_heard_and_clamps(audio_end_ms: int, heard: str) -> None:
    world = World(acknowledged(), speeches=(HELLO,), replies=("One two three four.",))
    world.run(until_s=8)
    item_id = finished(world)[0].response.item_id
    world.at(8.0, TruncateItem(item_id=item_id, audio_end_ms=audio_end_ms))
    world.run(until_s=9)
    assert world.item(item_id).heard == heard
    (truncated,) = world.of(ItemTruncated)
    assert isinstance(truncated, ItemTruncated)
    assert truncated.audio_end_ms == min(audio_end_ms, 1000)


def test_without_automatic_answers_the_words_are_kept_and_nothing_is_said() -> None:
    settings = Settings(turn_detection=TurnDetection(create_response=False))
    world = World(settings, speeches=(HELLO,))
    world.run(until_s=6)
    assert world.said == [("user", "hello there")]
    assert world.of(ResponseStarted) == []
    assert world.turns[0].outcome == "done"


def test_speech_that_may_not_interrupt_is_answered_afterwards() -> None:
    settings = acknowledged(Settings(turn_detection=TurnDetection(interrupt_response=False)))
    second = Speech(3.2, 4.0, "one more thing")
    world = World(settings, speeches=(HELLO, second), replies=(REPLY, "Yes?"))
    world.run(until_s=15)
    assert [r.response.status for r in finished(world)] == [ResponseStatus.COMPLETED] * 2
    assert world.of(PlaybackCleared) == []
    assert world.said[-1] == ("assistant", "Yes?")


def test_a_silent_user_is_asked_after_the_idle_time() -> None:
    settings = acknowledged(Settings(turn_detection=TurnDetection(idle_timeout_ms=5000)))
    world = World(settings, speeches=(HELLO,), replies=("Good morning.", "Still there?"))
    world.run(until_s=5)
    heard_s = world.turns[0].timeline.finished_s
    world.run(until_s=9.5)
    assert heard_s is not None
    assert world.when(ResponseStarted)[1] == pytest.approx(heard_s + 5.0, abs=0.01)


# -- failures ---------------------------------------------------------------------------------


def test_a_failed_model_apologises_and_the_session_goes_on() -> None:
    world = World(acknowledged(), speeches=(HELLO,), broken=frozenset({"llm"}))
    world.run(until_s=10)
    (response,) = finished(world)
    assert response.response.status is ResponseStatus.FAILED
    assert response.item.text == Limits().apology
    assert [turn.outcome for turn in world.turns] == ["failed"]
    assert world.loudspeaker.played > 0
    assert world.session.turns == []


def test_a_failed_recognition_apologises() -> None:
    world = World(acknowledged(), speeches=(HELLO,), broken=frozenset({"asr"}))
    world.run(until_s=10)
    assert world.turns[0].outcome == "failed"
    assert world.loudspeaker.played > 0


def test_a_recogniser_that_never_answers_is_given_up() -> None:
    world = World(acknowledged(), speeches=(HELLO,), broken=frozenset({"asr_hangs"}))
    world.run(until_s=2.6 + Limits().transcript_deadline_s)
    assert world.when(StageFailed)
    world.run(until_s=30)
    assert world.session.turns == []


def test_a_voice_that_fails_still_delivers_the_text() -> None:
    world = World(acknowledged(), speeches=(HELLO,), replies=(REPLY,), broken=frozenset({"tts"}))
    world.run(until_s=10)
    (response,) = finished(world)
    assert response.item.text == REPLY
    assert response.item.status is ItemStatus.COMPLETED
    assert world.session.turns == []


def test_a_client_that_never_plays_does_not_hold_the_turn_for_ever() -> None:
    world = World(acknowledged(), speeches=(HELLO,), replies=(REPLY,), microphone_until_s=3.0)
    world.acknowledges = False
    world.run(until_s=10 + 2 * Limits().answer_deadline_s)
    assert world.session.turns == []
    assert world.of(ResponseFinished)


def test_the_token_limit_ends_an_answer_as_incomplete() -> None:
    world = World(replace(MANUAL, max_output_tokens=3), replies=(REPLY,))
    world.at(1.0, CreateItem(role=Role.USER, text="how are you"))
    world.at(1.0, CreateResponse())
    world.run(until_s=5)
    (response,) = finished(world)
    assert response.response.status is ResponseStatus.INCOMPLETE
    assert response.response.reason == "max_output_tokens"
