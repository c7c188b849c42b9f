"""What a turn adds to the metrics."""

from __future__ import annotations

import asyncio
from typing import Literal

from assistant.effects import StageFailed, TurnFinished, UtteranceDiscarded
from assistant.items import AnswerStep, DraftToken, Failure
from assistant.metrics import Metrics
from assistant.timeline import Timeline
from assistant.workers import Urgency

# Speech ended at 10 s, the endpoint came 0.5 s later, the first audio left 0.25 s after that.
TIMELINE = Timeline(
    "spoken", speech_start_s=9.0, speech_end_s=10.0, endpoint_s=10.5, first_sent_s=10.75
)
CUT_IN = Timeline(
    "spoken", speech_start_s=9.0, speech_end_s=10.0, endpoint_s=10.5, first_sent_s=9.9
)

GOOD, BAD = DraftToken("a", "accepted"), DraftToken("b", "rejected")
LEFT_OUT = DraftToken("c", "unverified")


def value(metrics: Metrics, line: str) -> float:
    async def on_a_loop() -> bytes:
        return metrics.exposition()

    for row in asyncio.run(on_a_loop()).decode().splitlines():
        name, _, number = row.rpartition(" ")
        if name == line:
            return float(number)
    return 0.0


def turn(
    timeline: Timeline = TIMELINE,
    outcome: Literal["done", "interrupted", "failed", "discarded"] = "done",
) -> TurnFinished:
    return TurnFinished(
        1,
        outcome,
        timeline,
        "resp",
        "words",
        "words",
        steps=(
            AnswerStep(("a",) * 4, (GOOD, GOOD, GOOD, BAD, LEFT_OUT)),
            AnswerStep(("a",) * 3, (GOOD, GOOD, BAD)),
        ),
        speculation="hit",
        wasted_tokens=3,
    )


def test_a_turn_is_counted_with_its_latencies_and_its_speculation() -> None:
    metrics = Metrics()
    metrics.observe(turn())
    assert value(metrics, 'assistant_turns_total{kind="spoken",outcome="done"}') == 1
    assert value(metrics, 'assistant_endpoint_wait_seconds_sum{kind="spoken"}') == 0.5
    assert value(metrics, 'assistant_server_ttfa_seconds_sum{kind="spoken"}') == 0.75
    assert value(metrics, 'assistant_added_latency_seconds_sum{kind="spoken"}') == 0.25
    assert value(metrics, 'assistant_client_ttfa_seconds_count{kind="spoken"}') == 0
    assert value(metrics, "assistant_drafted_tokens_total") == 8
    assert value(metrics, "assistant_accepted_tokens_total") == 5
    assert value(metrics, 'assistant_speculated_turns_total{outcome="hit"}') == 1
    assert value(metrics, "assistant_wasted_tokens_total") == 3
    assert value(metrics, "assistant_barge_ins_total") == 0


def test_a_cut_in_is_no_low_latency() -> None:
    metrics = Metrics()
    metrics.observe(turn(CUT_IN))
    assert value(metrics, "assistant_cut_ins_total") == 1
    assert value(metrics, 'assistant_server_ttfa_seconds_count{kind="spoken"}') == 0


def test_speaking_into_an_answer_is_a_barge_in() -> None:
    metrics = Metrics()
    metrics.observe(turn(outcome="interrupted"))
    assert value(metrics, "assistant_barge_ins_total") == 1


def test_an_answer_given_up_before_it_was_audible_is_none() -> None:
    metrics = Metrics()
    unheard = Timeline("spoken", speech_start_s=9.0, speech_end_s=10.0, endpoint_s=10.5)
    metrics.observe(turn(unheard, outcome="interrupted"))
    assert value(metrics, "assistant_barge_ins_total") == 0


def test_noises_and_failures_are_counted() -> None:
    metrics = Metrics()
    metrics.observe(UtteranceDiscarded("item", "no_speech"))
    metrics.observe(StageFailed("tts", Failure("broken", "It is broken.")))
    assert value(metrics, "assistant_discarded_utterances_total") == 1
    assert value(metrics, 'assistant_stage_failures_total{stage="tts"}') == 1


def test_sessions_come_and_go() -> None:
    metrics = Metrics()
    metrics.session_opened()
    metrics.session_opened()
    metrics.session_closed("client_left", voided_frames=3)
    assert value(metrics, "assistant_sessions") == 1
    assert value(metrics, 'assistant_session_ends_total{reason="client_left"}') == 1
    assert value(metrics, "assistant_voided_frames_total") == 3


def test_a_wait_for_a_worker_is_counted_by_what_waited() -> None:
    metrics = Metrics()
    metrics.observe_wait("asr", Urgency.FINAL, 0.25)
    assert value(metrics, 'assistant_queue_seconds_sum{urgency="final",worker="asr"}') == 0.25
