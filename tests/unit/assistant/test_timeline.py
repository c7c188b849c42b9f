"""Four latencies, never mixed."""

from __future__ import annotations

import pytest

from assistant.timeline import Timeline


def spoken() -> Timeline:
    return Timeline(
        kind="spoken",
        speech_start_s=10.0,
        speech_end_s=12.0,
        endpoint_s=12.5,
        transcript_s=12.7,
        first_text_s=12.8,
        first_chunk_s=12.85,
        first_audio_s=13.0,
        first_sent_s=13.0,
        first_heard_s=13.1,
        finished_s=15.0,
    )


def test_the_latencies_count_from_the_last_voiced_sample() -> None:
    timeline = spoken()
    assert timeline.endpoint_wait_ms == 500
    assert timeline.server_ttfa_ms == 1000
    assert timeline.client_ttfa_ms == 1100
    assert timeline.added_latency_ms == 500
    assert timeline.as_milliseconds()["speech_start_ms"] == -2000


def test_a_written_turn_counts_from_the_request() -> None:
    timeline = Timeline(kind="written", endpoint_s=5.0, first_sent_s=5.3)
    assert timeline.server_ttfa_ms == 300
    assert timeline.endpoint_wait_ms is None


def test_an_answer_that_cut_in_has_no_latency() -> None:
    timeline = spoken()
    timeline.first_sent_s = 11.0
    assert timeline.cut_in
    assert timeline.server_ttfa_ms is None
    assert timeline.added_latency_ms is None


def test_disorder_is_noticed() -> None:
    timeline = spoken()
    timeline.check_order()
    timeline.transcript_s = 12.9
    with pytest.raises(AssertionError, match="transcript_s came after first_text_s"):
        timeline.check_order()
    timeline = spoken()
    timeline.endpoint_s = 13.05
    with pytest.raises(AssertionError, match="endpoint_s came after first_sent_s"):
        timeline.check_order()


def test_work_may_be_done_before_the_endpoint() -> None:
    timeline = spoken()
    timeline.transcript_s, timeline.first_text_s, timeline.first_chunk_s = 12.2, 12.3, 12.35
    timeline.check_order()
