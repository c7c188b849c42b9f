"""A dialogue from the client's side, against a scripted server."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from assistant import client
from assistant.client import Dialogue
from assistant.errors import (
    AnswerTimeout,
    DialogueEnded,
    EventsMissed,
    RequestRefused,
    ServerNotReady,
    UsageError,
)
from assistant.event_stream import UNREAD_EVENTS, EventStream
from assistant.replies import WireEvent
from tests.unit.assistant.scripted_server import ANSWER_AUDIO, ScriptedServer

PATIENCE_S = 20
VOICE = b"\x00\x10" * 2400  # 100 ms at 24 kHz, not silent


def in_dialogue(
    server: Callable[[], ScriptedServer],
    conversation: Callable[[Dialogue, ScriptedServer], Awaitable[None]],
) -> None:
    """Hold a conversation with a fresh server (which wants a running event loop)."""

    async def hold() -> None:
        running = server()
        async with asyncio.timeout(PATIENCE_S), Dialogue(running) as dialogue:
            await conversation(dialogue, running)

    asyncio.run(hold())


def test_a_question_in_writing_gets_its_answer() -> None:
    async def conversation(dialogue: Dialogue, server: ScriptedServer) -> None:
        reply = await dialogue.ask("Anyone there?")
        assert (reply.text, reply.audio, reply.heard_ms) == ("Hi.", ANSWER_AUDIO, 100.0)
        assert reply.timeline["server_ttfa_ms"] == 1.0
        asked = [e for e in server.received if e["type"] == "conversation.item.create"]
        assert asked[0]["item"]["content"] == [{"type": "input_text", "text": "Anyone there?"}]

    in_dialogue(ScriptedServer, conversation)


def test_the_dialogue_asks_for_the_extension_first() -> None:
    async def conversation(dialogue: Dialogue, server: ScriptedServer) -> None:
        assert server.received[0]["type"] == "session.update"
        assert server.received[0]["session"]["x"] == {
            "events": True,
            "acknowledge_playback": False,
            "playback_lead_ms": None,
        }

    in_dialogue(ScriptedServer, conversation)


def test_with_a_loudspeaker_the_answers_are_paced_and_acknowledged() -> None:
    async def hold() -> None:
        server = ScriptedServer()
        async with Dialogue(server, instructions="Be brief.", playback_lead_ms=400) as dialogue:
            await dialogue.played("answer_1", 120.5)
        session = server.received[0]["session"]
        assert session["x"]["acknowledge_playback"] is True
        assert session["x"]["playback_lead_ms"] == 400
        assert session["instructions"] == "Be brief."
        assert server.received[-1] == {
            "type": "x.playback",
            "response_id": "answer_1",
            "position_ms": 120.5,
        }

    asyncio.run(hold())


@pytest.mark.parametrize("cut", [1, 2, 961, 4_800, 100_000], ids=lambda cut: f"{cut} bytes")
def test_what_was_said_arrives_whole_however_it_was_cut(cut: int) -> None:
    said = np.random.default_rng(0).integers(1, 1000, 12_000).astype("<i2").tobytes()

    async def conversation(dialogue: Dialogue, server: ScriptedServer) -> None:
        await dialogue.listen(said[start : start + cut] for start in range(0, len(said), cut))
        assert server.heard.startswith(said)
        assert not any(server.heard[len(said) :])

    in_dialogue(ScriptedServer, conversation)


def test_sound_at_another_rate_is_resampled() -> None:
    half_a_second = b"\x00\x10" * 4_000  # at 8 kHz

    async def conversation(dialogue: Dialogue, server: ScriptedServer) -> None:
        turn = await dialogue.listen([half_a_second], sample_rate_hz=8_000)
        assert turn.transcript == "hello"
        voiced = len(server.heard.rstrip(b"\0")) // 2
        assert voiced == pytest.approx(12_000, abs=100)  # half a second at 24 kHz, and its ringing

    in_dialogue(ScriptedServer, conversation)


@pytest.mark.parametrize("rate_hz", [8_000, 24_000, 48_000])
def test_sound_of_any_rate_is_sent_in_pieces_of_the_same_length(rate_hz: int) -> None:
    two_seconds = b"\x00\x10" * (2 * rate_hz)
    most_bytes = 2 * client.INPUT_RATE_HZ * client.APPEND_MS // 1000
    ringing_bytes = most_bytes // 4  # what the resampler hands over in the first call, or later

    async def conversation(dialogue: Dialogue, server: ScriptedServer) -> None:
        await dialogue.listen([two_seconds], sample_rate_hz=rate_hz)
        sizes = [
            len(base64.b64decode(event["audio"]))
            for event in server.received
            if event["type"] == "input_audio_buffer.append"
        ]
        assert max(sizes) <= most_bytes + ringing_bytes
        assert sorted(sizes)[len(sizes) // 2] >= most_bytes - ringing_bytes

    in_dialogue(ScriptedServer, conversation)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_sound_may_come_uncut(kind: type) -> None:
    async def conversation(dialogue: Dialogue, server: ScriptedServer) -> None:
        assert (await dialogue.listen(kind(VOICE))).transcript == "hello"
        assert server.heard.startswith(VOICE)

    in_dialogue(ScriptedServer, conversation)


@pytest.mark.parametrize(
    "given",
    [[0.1, 0.2], np.zeros(4, np.float32), [np.zeros(4, np.int16)], "question.wav", 7, [7], None],
    ids=lambda given: str(type(given).__name__),
)
def test_what_is_no_pcm_is_refused_with_what_to_pass(given: Any) -> None:
    async def conversation(dialogue: Dialogue, server: ScriptedServer) -> None:
        with pytest.raises(UsageError, match=r"PCM16 in bytes.*to_pcm16\(samples\)"):
            await dialogue.listen(given)
        assert not server.heard
        assert (await dialogue.listen([VOICE])).transcript == "hello"

    in_dialogue(ScriptedServer, conversation)


def test_what_is_no_pcm_is_refused_from_a_microphone_too() -> None:
    async def conversation(dialogue: Dialogue, server: ScriptedServer) -> None:
        with pytest.raises(UsageError, match="PCM16"):
            await dialogue.append([0.1])  # type: ignore[arg-type]

    in_dialogue(ScriptedServer, conversation)


@pytest.mark.parametrize("file_format", ["WAV", "FLAC", "OGG"])
def test_a_files_bytes_are_not_taken_for_sound(file_format: str, tmp_path: Path) -> None:
    path = tmp_path / "question"
    soundfile.write(path, np.zeros(2_400), 24_000, format=file_format)

    async def conversation(dialogue: Dialogue, server: ScriptedServer) -> None:
        with pytest.raises(UsageError, match="read_audio"):
            await dialogue.listen([path.read_bytes()])
        assert not server.heard

    in_dialogue(ScriptedServer, conversation)


def test_a_spoken_turn_needs_no_silence_of_the_speakers_own() -> None:
    async def conversation(dialogue: Dialogue, server: ScriptedServer) -> None:
        turn = await dialogue.listen([VOICE, VOICE])
        assert (turn.transcript, turn.text, turn.audio) == ("hello", "Hi.", ANSWER_AUDIO)

    in_dialogue(ScriptedServer, conversation)


def test_sound_may_come_as_it_is_recorded() -> None:
    async def microphone() -> AsyncIterator[bytes]:
        for _ in range(3):
            await asyncio.sleep(0)
            yield VOICE

    async def conversation(dialogue: Dialogue, server: ScriptedServer) -> None:
        assert (await dialogue.listen(microphone())).transcript == "hello"

    in_dialogue(ScriptedServer, conversation)


def test_a_pause_in_the_sound_does_not_end_the_listening() -> None:
    async def conversation(dialogue: Dialogue, server: ScriptedServer) -> None:
        turn = await dialogue.listen([VOICE, bytes(9_600), VOICE])
        assert turn.transcript == "hello hello"

    in_dialogue(ScriptedServer, conversation)


def test_an_answer_that_begins_where_another_ends_is_waited_for() -> None:
    async def conversation(dialogue: Dialogue, server: ScriptedServer) -> None:
        listening = asyncio.create_task(dialogue.listen([VOICE]))
        await server.receives("session.update", count=2)  # the first is the greeting
        server.end_answer("completed", heard="Hi.")
        server.unfinished, server.afterthought, server.answer = False, True, "And hi again."
        assert (await listening).text == "And hi again."

    in_dialogue(lambda: ScriptedServer(unfinished=True), conversation)


def test_sound_without_words_says_why_there_is_no_answer() -> None:
    async def conversation(dialogue: Dialogue, server: ScriptedServer) -> None:
        turn = await dialogue.listen([VOICE])
        assert (turn.transcript, turn.rejection, turn.text) == ("", "repetition", "")

    in_dialogue(lambda: ScriptedServer(words=""), conversation)


def test_silence_ends_without_an_answer() -> None:
    async def conversation(dialogue: Dialogue, server: ScriptedServer) -> None:
        turn = await dialogue.listen([bytes(4_800)])
        assert (turn.transcript, turn.rejection) == ("", "no_speech")

    in_dialogue(ScriptedServer, conversation)


def test_a_cancelled_answer_comes_back_cut_off() -> None:
    async def conversation(dialogue: Dialogue, server: ScriptedServer) -> None:
        events = dialogue.events()
        asking = asyncio.create_task(dialogue.ask("Go on for ever."))
        async for event in events:
            if event["type"] == "response.output_audio.delta":
                break
        await dialogue.cancel()
        assert (await asking).status == "cancelled"

    in_dialogue(lambda: ScriptedServer(unfinished=True), conversation)


def test_an_answer_that_does_not_end_in_time_is_cancelled() -> None:
    async def conversation(dialogue: Dialogue, server: ScriptedServer) -> None:
        with pytest.raises(AnswerTimeout, match="timeout_s"):
            await dialogue.ask("Go on for ever.", timeout_s=0.01)
        assert server.types_received()[-1] == "response.cancel"

    in_dialogue(lambda: ScriptedServer(unfinished=True), conversation)


def test_after_a_timeout_the_dialogue_goes_on() -> None:
    async def conversation(dialogue: Dialogue, server: ScriptedServer) -> None:
        with pytest.raises(AnswerTimeout):
            await dialogue.ask("Go on for ever.", timeout_s=0.01)
        server.unfinished = False
        assert (await dialogue.ask("And now?")).status == "completed"

    in_dialogue(lambda: ScriptedServer(unfinished=True), conversation)


def test_a_refused_request_raises_with_the_servers_words() -> None:
    async def conversation(dialogue: Dialogue, server: ScriptedServer) -> None:
        with pytest.raises(RequestRefused, match="Say something"):
            await dialogue.ask("")

    in_dialogue(ScriptedServer, conversation)


def test_two_questions_at_once_are_answered_one_after_the_other() -> None:
    async def conversation(dialogue: Dialogue, server: ScriptedServer) -> None:
        replies = await asyncio.gather(dialogue.ask("First?"), dialogue.ask("Second?"))
        assert [reply.text for reply in replies] == ["Hi.", "Hi."]

    in_dialogue(ScriptedServer, conversation)


def test_a_server_that_vanishes_fails_the_question_that_waits() -> None:
    async def conversation(dialogue: Dialogue, server: ScriptedServer) -> None:
        asking = asyncio.create_task(dialogue.ask("Still there?"))
        await asyncio.sleep(0)
        server.vanish(DialogueEnded("Gone."))
        with pytest.raises(DialogueEnded, match="Gone"):
            await asking
        with pytest.raises(DialogueEnded, match="Gone"):
            await dialogue.ask("Hello?")

    in_dialogue(lambda: ScriptedServer(unfinished=True), conversation)


def test_every_event_can_be_read_and_the_reading_ends_with_the_dialogue() -> None:
    async def hold() -> None:
        async with Dialogue(ScriptedServer()) as dialogue:
            events = dialogue.events()
            await dialogue.ask("Anyone there?")
        kinds = [event["type"] async for event in events]
        assert kinds[0] == "response.created"
        assert kinds[-1] == "x.turn.timeline"

    asyncio.run(hold())


def test_reading_events_of_a_server_that_vanished_raises() -> None:
    async def conversation(dialogue: Dialogue, server: ScriptedServer) -> None:
        events = dialogue.events()
        server.vanish(DialogueEnded("Gone."))
        with pytest.raises(DialogueEnded, match="Gone"):
            await anext(events)
        with pytest.raises(DialogueEnded, match="Gone"):
            await anext(dialogue.events())

    in_dialogue(ScriptedServer, conversation)


def test_events_that_nobody_reads_are_given_up_not_piled_up() -> None:
    async def read() -> None:
        stream = EventStream()
        event: WireEvent = {"type": "x"}
        for _ in range(UNREAD_EVENTS + 1):
            stream.put(event)
        with pytest.raises(EventsMissed):
            await anext(stream)

    asyncio.run(read())


def test_a_server_that_refuses_the_extension_is_told_apart_in_its_own_words() -> None:
    class Plain(ScriptedServer):
        async def send(self, event: Mapping[str, Any]) -> None:
            self.refuse(event, "Unknown parameter: session.x.")

    async def hold() -> None:
        with pytest.raises(RequestRefused, match=r"session\.x"):
            async with Dialogue(Plain()):
                pass

    asyncio.run(hold())


def test_a_server_that_greets_nobody_is_not_waited_for_forever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "OPEN_TIMEOUT_S", 0.01)

    async def hold() -> None:
        with pytest.raises(ServerNotReady):
            async with Dialogue(ScriptedServer(mute=True)):
                pass

    asyncio.run(hold())
