"""Several sessions share the stages: what a turn that is over waits for, and what it never does."""

from __future__ import annotations

import asyncio

import numpy as np

from assistant.effects import TurnFinished
from assistant.events import Samples
from assistant.settings import Settings, TurnDetection
from assistant.stages import Stages
from tests.fakes import (
    ScriptedLanguageModel,
    ScriptedTranscriber,
    ToneVoice,
    fake_stages,
    silence,
    speech,
)
from tests.timing.test_runtime import Talk
from tests.virtual_time import run_in_virtual_time

SILENCE_S = 0.32
ASR_S = 0.1
SPOKEN = speech(2.15)
"""Words are asked for after 2.1 s without any sign of the end, which is too near to hold more."""


def talk_over(stages: Stages) -> Talk:
    detection = TurnDetection(silence_ms=round(SILENCE_S * 1000), pause_ms=64)
    return Talk(stages, Settings(turn_detection=detection))


def finished(talk: Talk) -> TurnFinished:
    """The only turn of a session."""
    (turn,) = talk.of(TurnFinished)
    assert isinstance(turn, TurnFinished)
    return turn


async def converse(talk: Talk, said: Samples, starts_s: float = 0.0) -> None:
    """Speak after `starts_s`, and wait until everything has been answered."""
    async with talk.runtime:
        await talk.hear(np.concatenate((silence(starts_s), said, silence(2.0))))
        await asyncio.sleep(30)


def test_words_asked_for_in_time_do_not_wait_for_the_answers_of_others() -> None:
    """An attempt may wait while the user speaks; once it turns out to hold all words, it may not.

    Another session's answer goes on being written from before the end of the speech until long
    after.
    """
    transcriber = ScriptedTranscriber()

    async def script() -> Talk:
        stages = fake_stages(transcriber=transcriber, asr_s=ASR_S)
        talk = talk_over(stages)
        async with talk.runtime:
            with stages.certain_work.of("somebody else"):
                await talk.hear(SPOKEN)
                assert transcriber.heard == []
                await talk.hear(silence(3.0))
            await asyncio.sleep(10)
        return talk

    turn = finished(run_in_virtual_time(script()))
    assert len(transcriber.heard) == 1
    assert transcriber.heard[0] < len(SPOKEN), "it was to be asked for while the user spoke"
    timeline = turn.timeline
    assert timeline.transcript_s is not None and timeline.endpoint_s is not None
    assert timeline.transcript_s < timeline.endpoint_s


def test_a_clause_that_becomes_certain_while_it_waits_goes_before_later_clauses() -> None:
    """Others' long sentences are being spoken when the turn's end confirms the guess."""
    opening, long = "Yes, I can tell you that.", " ".join(["word"] * 40)
    window_s = 0.1

    async def script() -> tuple[Talk, Talk, Talk]:
        language = ScriptedLanguageModel(lines=(f"{opening} {long}.",), first_s=0.05, word_s=0.0)
        stages = fake_stages(language=language, asr_s=0.02, tts_s=window_s)
        one, other, last = talk_over(stages), talk_over(stages), talk_over(stages)
        await asyncio.gather(
            converse(one, speech(0.9)),
            converse(other, speech(1.0)),
            converse(last, speech(1.0), starts_s=2.0),
        )
        return one, other, last

    one, other, last = map(finished, run_in_virtual_time(script()))
    assert last.speculation == "hit"
    assert last.timeline.first_chunk_s is not None and last.timeline.endpoint_s is not None
    assert last.timeline.first_chunk_s < last.timeline.endpoint_s
    for turn in (one, other):
        assert turn.timeline.first_audio_s is not None
        assert turn.timeline.first_audio_s < last.timeline.first_chunk_s
    # The window in hand, what is made once for the clause, its first window, and no more.
    assert last.timeline.added_latency_ms is not None
    assert last.timeline.added_latency_ms <= 4 * 1000 * window_s


def test_four_at_once_are_all_answered_from_their_guesses() -> None:
    async def script() -> list[Talk]:
        stages = fake_stages(asr_s=0.02)
        talks = [talk_over(stages) for _ in range(4)]
        await asyncio.gather(*(converse(talk, speech(1.0)) for talk in talks))
        return talks

    turns = [finished(talk) for talk in run_in_virtual_time(script())]
    assert [turn.speculation for turn in turns] == ["hit"] * 4
    assert [turn.outcome for turn in turns] == ["done"] * 4


def test_a_guess_begins_when_nothing_certain_goes_on_for_others() -> None:
    """Its text and its sound; the turn's own words hold up nothing."""
    transcriber, language, voice = ScriptedTranscriber(), ScriptedLanguageModel(), ToneVoice()

    async def script() -> Talk:
        stages = fake_stages(transcriber=transcriber, language=language, voice=voice, asr_s=0.02)
        talk = talk_over(stages)
        async with talk.runtime:
            with stages.certain_work.of("somebody else"):
                await talk.hear(np.concatenate((speech(1.0), silence(0.15))))
                assert transcriber.heard and language.prompts == []
            await talk.hear(silence(0.01))
            assert len(language.prompts) == 1
            with stages.certain_work.of("somebody else"):
                await talk.hear(silence(SILENCE_S - 0.15 - 0.05))
                assert voice.said == []
                await talk.hear(silence(1.0))
            await asyncio.sleep(10)
        return talk

    turn = finished(run_in_virtual_time(script()))
    assert turn.speculation == "hit"
    assert turn.timeline.added_latency_ms is not None
    assert turn.timeline.added_latency_ms < 100
