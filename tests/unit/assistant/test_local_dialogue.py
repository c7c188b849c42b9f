"""A dialogue within this process: the real client, protocol, core and runtime, scripted stages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from assistant.client import SILENCE_STEP_MS, Assistant, Dialogue
from assistant.config import Config
from assistant.errors import AnswerFailed, DialogueEnded
from audio.pcm import Samples, to_pcm16
from tests.fakes import (
    ScriptedLanguageModel,
    ScriptedTranscriber,
    ToneVoice,
    fake_stages,
    silence,
    speech,
)
from tests.virtual_time import run_in_virtual_time

ANSWER = "The capital of France is Paris. It lies on the Seine."  # what the script says
SECONDS_A_WORD = 0.25


def pcm(*pieces: Samples) -> list[bytes]:
    return [to_pcm16(piece).tobytes() for piece in pieces]


def in_dialogue(
    conversation: Callable[[Dialogue], Awaitable[None]],
    *,
    transcriber: ScriptedTranscriber | None = None,
    language: ScriptedLanguageModel | None = None,
    voice: ToneVoice | None = None,
    playback_lead_ms: int | None = None,
) -> None:
    async def hold() -> None:
        stages = fake_stages(transcriber=transcriber, language=language, voice=voice)
        assistant = Assistant(stages)
        async with assistant.dialogue(playback_lead_ms=playback_lead_ms) as dialogue:
            await conversation(dialogue)

    run_in_virtual_time(hold())


def test_a_written_question_is_answered_in_words_and_sound() -> None:
    async def conversation(dialogue: Dialogue) -> None:
        reply = await dialogue.ask("What is the capital of France?")
        assert reply.text == reply.heard == ANSWER
        expected_ms = 1000 * SECONDS_A_WORD * len(ANSWER.split())
        assert reply.heard_ms == pytest.approx(expected_ms, rel=0.01)
        assert reply.timeline["kind"] == "written"

    in_dialogue(conversation)


def test_a_spoken_question_is_understood_and_answered() -> None:
    async def conversation(dialogue: Dialogue) -> None:
        turn = await dialogue.listen(pcm(speech(1.0)), sample_rate_hz=16_000)
        assert turn.transcript == "What is the capital of France?"
        assert turn.text == ANSWER
        assert turn.timeline["kind"] == "spoken"

    in_dialogue(conversation)


def test_the_end_of_the_sound_is_heard_as_silence_and_not_as_a_lost_microphone() -> None:
    configured_ms = Config().endpoint.shortest_ms
    window_ms = 32

    async def conversation(dialogue: Dialogue) -> None:
        turn = await dialogue.listen(pcm(speech(1.0)), sample_rate_hz=16_000)
        waited_ms = turn.timeline["endpoint_wait_ms"]
        assert isinstance(waited_ms, float)
        assert configured_ms <= waited_ms <= configured_ms + window_ms + SILENCE_STEP_MS

    in_dialogue(conversation)


def test_a_question_with_a_long_pause_in_it_is_taken_whole() -> None:
    transcriber = ScriptedTranscriber(lines=("what is the capital", "of France"))

    async def conversation(dialogue: Dialogue) -> None:
        turn = await dialogue.listen(pcm(speech(1.0), silence(1.0), speech(1.0)), 16_000)
        assert turn.transcript == "what is the capital of France"
        assert turn.text == ANSWER

    in_dialogue(conversation, transcriber=transcriber)


def test_sound_without_words_is_not_answered() -> None:
    async def conversation(dialogue: Dialogue) -> None:
        turn = await dialogue.listen(pcm(speech(1.0)), 16_000)
        assert (turn.transcript, turn.rejection, turn.text) == ("", "no_speech", "")

    in_dialogue(conversation, transcriber=ScriptedTranscriber(lines=("",)))


def test_silence_is_not_answered() -> None:
    async def conversation(dialogue: Dialogue) -> None:
        turn = await dialogue.listen(pcm(silence(2.0)), 16_000)
        assert (turn.transcript, turn.rejection) == ("", "no_speech")

    in_dialogue(conversation)


def test_later_questions_come_with_what_was_said_before() -> None:
    language = ScriptedLanguageModel(lines=("Paris.", "Two million."))

    async def conversation(dialogue: Dialogue) -> None:
        assert (await dialogue.ask("What is the capital of France?")).text == "Paris."
        assert (await dialogue.ask("How many people live there?")).text == "Two million."
        assert [message.text for message in language.prompts[-1]][-3:] == [
            "What is the capital of France?",
            "Paris.",
            "How many people live there?",
        ]

    in_dialogue(conversation, language=language)


def test_a_cancelled_answer_comes_back_as_far_as_it_came() -> None:
    async def conversation(dialogue: Dialogue) -> None:
        events = dialogue.events()
        asking = asyncio.create_task(dialogue.ask("What is the capital of France?"))
        async for event in events:
            if event["type"] == "response.output_audio.delta":
                break
        await dialogue.cancel()
        reply = await asking
        assert reply.status == "cancelled"
        assert ANSWER.startswith(reply.text)

    in_dialogue(conversation, language=ScriptedLanguageModel(word_s=1.0))


def test_with_a_loudspeaker_only_what_it_played_counts_as_heard() -> None:
    played_ms = 1000 * (3 * SECONDS_A_WORD + 0.1)  # the fourth word has only begun

    async def conversation(dialogue: Dialogue) -> None:
        events = dialogue.events()
        asking = asyncio.create_task(dialogue.ask("What is the capital of France?"))
        sent_ms = 0.0
        async for event in events:
            if event["type"] == "response.output_audio.delta":
                sent_ms = event["x_start_ms"]
                position_ms = min(sent_ms, played_ms)
                await dialogue.played(event["response_id"], position_ms)
                if position_ms == played_ms:
                    break
        await dialogue.cancel()
        reply = await asking
        assert reply.heard == "The capital of"
        assert reply.heard_ms == played_ms

    in_dialogue(conversation, playback_lead_ms=400)


def test_a_stage_that_fails_raises_and_the_dialogue_goes_on() -> None:
    language = ScriptedLanguageModel(fails=RuntimeError("out of memory"))

    async def conversation(dialogue: Dialogue) -> None:
        with pytest.raises(AnswerFailed):
            await dialogue.ask("What is the capital of France?")
        language.fails = None
        assert (await dialogue.ask("And now?")).text == ANSWER

    in_dialogue(conversation, language=language)


def test_a_caller_who_gives_up_leaves_the_dialogue_usable() -> None:
    async def conversation(dialogue: Dialogue) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await dialogue.ask("What is the capital of France?")
        assert (await dialogue.ask("And now?")).status == "completed"

    in_dialogue(conversation, language=ScriptedLanguageModel(word_s=0.2))


def test_an_error_of_the_callers_own_comes_out_as_it_was() -> None:
    async def conversation(dialogue: Dialogue) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        in_dialogue(conversation)


def test_a_closed_dialogue_says_so() -> None:
    async def hold() -> None:
        async with Assistant(fake_stages()).dialogue() as dialogue:
            pass
        with pytest.raises(DialogueEnded, match="closed"):
            await dialogue.ask("Hello?")

    run_in_virtual_time(hold())


def test_dialogues_of_one_assistant_know_nothing_of_each_other() -> None:
    language = ScriptedLanguageModel(lines=("Noted.",))

    async def hold() -> None:
        assistant = Assistant(fake_stages(language=language))
        async with assistant.dialogue() as one, assistant.dialogue() as other:
            await one.ask("My name is Ada.")
            await other.ask("What is my name?")
        assert not any("Ada" in message.text for message in language.prompts[-1])

    run_in_virtual_time(hold())
