"""Whole turns as a client sees them: spoken, manual, written, interrupted, cut short, failed."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from assistant.effects import PlaybackCleared
from tests.protocol.client import CheckingClient, of, silence, tone, types
from tests.protocol.instant import REPLY, WORDS
from tests.protocol.scenario import play

USER_ITEM = [
    "input_audio_buffer.committed",
    "conversation.item.added",
    "conversation.item.done",
]
TRANSCRIPT = [
    "conversation.item.input_audio_transcription.delta",
    "conversation.item.input_audio_transcription.completed",
]
ANSWER_BEGINS = [
    "response.created",
    "response.output_item.added",
    "conversation.item.added",
    "response.content_part.added",
]
SPOKEN_ENDS = [
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "response.output_item.done",
    "conversation.item.done",
    "response.done",
]
WRITTEN_ENDS = ["response.output_text.done", *SPOKEN_ENDS[2:]]
SPOKEN_ANSWER = [
    *ANSWER_BEGINS,
    "response.output_audio_transcript.delta",
    "response.output_audio.delta",
    *SPOKEN_ENDS,
]
WRITTEN_ANSWER = [*ANSWER_BEGINS, "response.output_text.delta", *WRITTEN_ENDS]
LONG_ENOUGH_S = 60.0


def test_a_spoken_turn() -> None:
    async def scenario(client: CheckingClient) -> None:
        events = await client.say(0.6) + await client.pass_time(LONG_ENOUGH_S)
        assert types(events) == [
            "input_audio_buffer.speech_started",
            "input_audio_buffer.speech_stopped",
            *USER_ITEM,
            *TRANSCRIPT,
            *SPOKEN_ANSWER,
        ]
        (done,) = of(events, "response.done")
        assert done["response"]["status"] == "completed"
        assert done["response"]["output"][0]["content"][0]["transcript"] == REPLY
        client.ordering.finish()

    play(scenario)


def test_the_answer_sounds_as_long_as_the_voice_spoke() -> None:
    """Fourteen words of the fake voice, resampled and held back nowhere."""

    async def scenario(client: CheckingClient) -> None:
        await client.say(0.6)
        await client.pass_time(LONG_ENOUGH_S)
        deltas = of(client.events, "response.output_audio.delta")
        pcm = b"".join(base64.b64decode(delta["delta"]) for delta in deltas)
        words = len(REPLY.split())
        assert len(pcm) / 2 / 24_000 == pytest.approx(words * 0.2, abs=0.001)
        assert np.abs(np.frombuffer(pcm, "<i2")).max() > 9_000  # the fake voice's tone, at 0.3

    play(scenario)


def test_the_transcript_of_what_the_user_said_precedes_the_answer() -> None:
    async def scenario(client: CheckingClient) -> None:
        client.runtime.hold = True
        before = await client.say(0.6)
        assert types(before)[-1] == "input_audio_buffer.speech_stopped"
        client.runtime.work()
        events = await client.collect()
        (completed,) = of(events, TRANSCRIPT[1])
        assert completed["transcript"] == WORDS
        assert completed["usage"]["seconds"] > 0.6
        assert types(events).index(TRANSCRIPT[1]) < types(events).index("response.created")

    play(scenario)


def test_a_client_that_wants_no_transcript_gets_none() -> None:
    async def scenario(client: CheckingClient) -> None:
        await client.update(audio={"input": {"transcription": None}})
        events = await client.say(0.6) + await client.pass_time(LONG_ENOUGH_S)
        assert not [name for name in types(events) if "transcription" in name]
        assert "response.done" in types(events)

    play(scenario)


def test_a_manual_turn() -> None:
    async def scenario(client: CheckingClient) -> None:
        await client.update(audio={"input": {"turn_detection": None}})
        assert await client.append(tone(0.6)) == []
        committed = await client.send({"type": "input_audio_buffer.commit"})
        assert types(committed) == [*USER_ITEM, *TRANSCRIPT]
        events = await client.send({"type": "response.create"})
        events += await client.pass_time(LONG_ENOUGH_S)
        assert types(events) == SPOKEN_ANSWER
        client.ordering.finish()

    play(scenario)


def test_an_answer_asked_for_right_after_the_commit_waits_for_the_words() -> None:
    async def scenario(client: CheckingClient) -> None:
        await client.update(audio={"input": {"turn_detection": None}})
        await client.append(tone(0.6))
        client.runtime.hold = True
        await client.send({"type": "input_audio_buffer.commit"})
        assert await client.send({"type": "response.create"}) == []
        client.runtime.work()
        events = await client.collect()
        assert types(events)[:3] == [*TRANSCRIPT, "response.created"]

    play(scenario)


def test_a_written_turn() -> None:
    async def scenario(client: CheckingClient) -> None:
        item = {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "Good evening."}],
        }
        created = await client.send({"type": "conversation.item.create", "item": item})
        assert types(created) == ["conversation.item.added", "conversation.item.done"]
        assert created[0]["item"]["content"] == item["content"]
        response = {"output_modalities": ["text"], "metadata": {"topic": "evening"}}
        events = await client.send({"type": "response.create", "response": response})
        assert types(events) == WRITTEN_ANSWER
        done = events[-1]["response"]
        assert done["metadata"] == {"topic": "evening"}
        assert done["output"][0]["content"] == [{"type": "output_text", "text": REPLY}]
        assert done["audio"] is None

    play(scenario)


def test_the_user_interrupts() -> None:
    async def scenario(client: CheckingClient) -> None:
        await client.update(x={"events": True})
        await client.say(0.6)
        playing = await client.pass_time(1.0)
        assert types(playing) == ["response.output_audio.delta"]
        events = await client.append(tone(0.3))
        assert types(events) == [
            "response.output_audio.delta",  # until the speech is established
            "input_audio_buffer.speech_started",
            "x.playback.clear",
            *SPOKEN_ENDS,
            "x.turn.timeline",
        ]
        done = of(events, "response.done")[0]["response"]
        assert done["status"] == "cancelled"
        assert done["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
        assert done["output"][0]["status"] == "incomplete"
        client.ordering.finish()

    play(scenario)


def test_a_truncated_answer_says_what_was_heard() -> None:
    async def scenario(client: CheckingClient) -> None:
        await client.say(0.6)
        await client.pass_time(1.0)
        item_id = of(client.events, "response.output_item.added")[0]["item"]["id"]
        cut = {"type": "conversation.item.truncate", "item_id": item_id, "content_index": 0}
        # The fake voice takes 200 ms a word: two whole words and half of the third.
        events = await client.send({**cut, "audio_end_ms": 500})
        (truncated,) = of(events, "conversation.item.truncated")
        assert truncated["audio_end_ms"] == 500
        retrieve = {"type": "conversation.item.retrieve", "item_id": item_id}
        (retrieved,) = await client.send(retrieve)
        content = retrieved["item"]["content"]
        assert content == [{"type": "output_audio", "transcript": "Here is"}]

    play(scenario)


def test_the_client_cancels() -> None:
    async def scenario(client: CheckingClient) -> None:
        await client.say(0.6)
        events = await client.send({"type": "response.cancel"})
        assert types(events) == SPOKEN_ENDS
        details = events[-1]["response"]["status_details"]
        assert details == {"type": "cancelled", "reason": "client_cancelled"}
        (error,) = await client.send({"type": "response.cancel", "event_id": "again"})
        assert error["error"]["code"] == "response_cancel_not_active"
        assert error["error"]["event_id"] == "again"

    play(scenario)


def test_the_player_is_flushed_after_the_answer_was_sent() -> None:
    """Nothing is active any more, but the tail still plays: clearing it is no mistake."""

    async def scenario(client: CheckingClient) -> None:
        await client.update(x={"events": True, "playback_lead_ms": 10_000})
        await client.say(0.6)
        assert types(client.events)[-1] == "response.done"
        events = await client.send({"type": "output_audio_buffer.clear"})
        assert types(events) == ["x.playback.clear", "x.turn.timeline"]

    play(scenario)


def test_an_answer_that_reaches_its_limit_is_incomplete() -> None:
    async def scenario(client: CheckingClient) -> None:
        await client.update(max_output_tokens=3)
        await client.say(0.6)
        await client.pass_time(LONG_ENOUGH_S)
        done = client.events[-1]["response"]
        assert done["status"] == "incomplete"
        assert done["status_details"] == {"type": "incomplete", "reason": "max_output_tokens"}
        assert done["max_output_tokens"] == 3
        assert done["usage"]["output_tokens"] == 3

    play(scenario)


def test_usage_counts_what_was_read_written_and_remembered() -> None:
    async def scenario(client: CheckingClient) -> None:
        await client.say(0.6)
        await client.pass_time(LONG_ENOUGH_S)
        usage = client.events[-1]["response"]["usage"]
        assert usage["input_tokens"] == 40  # as the fake model says
        assert usage["input_token_details"]["cached_tokens"] == 32
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]

    play(scenario)


@pytest.mark.parametrize("stage", ["asr", "llm"])
def test_a_failed_stage_fails_the_answer_and_the_session_goes_on(stage: str) -> None:
    async def scenario(client: CheckingClient) -> None:
        await client.update(x={"events": True})
        client.runtime.broken = {stage}
        events = await client.say(0.6) + await client.pass_time(LONG_ENOUGH_S)
        *_, failed = of(events, "x.stage.failed")  # a guess is tried again
        assert failed["stage"] == stage
        (done,) = of(events, "response.done")
        assert done["response"]["status"] == "failed"
        assert done["response"]["status_details"]["error"]["code"] == "broken"
        client.runtime.broken = set()
        again = await client.say(0.6) + await client.pass_time(LONG_ENOUGH_S)
        assert of(again, "response.done")[0]["response"]["status"] == "completed"

    play(scenario)


def test_a_clause_that_cannot_be_spoken_is_skipped() -> None:
    async def scenario(client: CheckingClient) -> None:
        await client.update(x={"events": True})
        client.runtime.broken = {"tts"}
        events = await client.say(0.6) + await client.pass_time(LONG_ENOUGH_S)
        assert of(events, "x.stage.failed")
        (done,) = of(events, "response.done")
        assert done["response"]["output"][0]["content"][0]["transcript"] == REPLY

    play(scenario)


def test_a_noise_makes_no_item() -> None:
    async def scenario(client: CheckingClient) -> None:
        await client.update(x={"events": True})
        client.runtime.words = ""
        events = await client.say(0.6)
        assert types(events) == [
            "input_audio_buffer.speech_started",
            "input_audio_buffer.speech_stopped",
            "x.turn.discarded",
            "x.turn.timeline",
        ]
        assert of(events, "x.turn.discarded")[0]["reason"] == "no_speech"

    play(scenario)


def test_a_silent_user_is_asked() -> None:
    async def scenario(client: CheckingClient) -> None:
        detection = {"type": "server_vad", "idle_timeout_ms": 5_000}
        await client.update(audio={"input": {"turn_detection": detection}})
        await client.say(0.6)
        events = await client.pass_time(LONG_ENOUGH_S)
        assert "input_audio_buffer.timeout_triggered" in types(events)

    play(scenario)


def test_only_a_client_that_asked_hears_of_the_extension() -> None:
    async def scenario(client: CheckingClient) -> None:
        await client.say(0.6)
        await client.pass_time(1.0)
        await client.append(tone(0.3))
        assert not [name for name in types(client.events) if name.startswith("x.")]
        for event in client.events:
            assert not [name for name in event if name.startswith("x_")]

    play(scenario)


def test_voided_sound_never_leaves_even_if_it_was_waiting() -> None:
    async def scenario(client: CheckingClient) -> None:
        await client.update(x={"events": True, "playback_lead_ms": None})
        audio = base64.b64encode(tone(0.6) + silence(1.0)).decode()
        append = {"type": "input_audio_buffer.append", "audio": audio}
        await client.connection.receive(append)
        assert client.connection.waiting_events > 10
        client.runtime.announce(PlaybackCleared("resp", generation=1))
        events = await client.collect()
        assert not of(events, "response.output_audio.delta")
        assert client.connection.voided_frames > 0
        assert of(events, "response.output_audio_transcript.delta"), "only the sound is void"

    play(scenario)


@pytest.mark.parametrize("audio_format", ["audio/pcmu", "audio/pcma"])
def test_telephone_formats_both_ways(audio_format: str) -> None:
    async def scenario(client: CheckingClient) -> None:
        formats = {"format": {"type": audio_format}}
        await client.update(audio={"input": formats, "output": formats})
        events = []
        for sound in (
            tone(0.6)[::6],
            bytes([0xFF if audio_format == "audio/pcmu" else 0xD5]) * 8_000,
        ):
            audio = base64.b64encode(sound).decode()
            events += await client.send({"type": "input_audio_buffer.append", "audio": audio})
        events += await client.pass_time(LONG_ENOUGH_S)
        (done,) = of(events, "response.done")
        assert done["response"]["audio"]["output"]["format"] == {"type": audio_format}
        sound_s = (
            sum(
                len(base64.b64decode(e["delta"])) for e in of(events, "response.output_audio.delta")
            )
            / 8_000
        )
        assert sound_s == pytest.approx(len(REPLY.split()) * 0.2, abs=0.002)

    play(scenario)
