"""How a session's attempts at words share the recogniser, in virtual time."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from assistant.effects import TranscriptCompleted, TranscriptSoFar
from assistant.events import Samples
from assistant.settings import Settings, TurnDetection
from tests.fakes import (
    PatientWorker,
    ScriptedLanguageModel,
    ScriptedTranscriber,
    fake_stages,
    silence,
    speech,
)
from tests.timing.test_runtime import Talk, played

LINES = ("one two", "one two three", "one two three four")


def listening(transcriber: ScriptedTranscriber, asr_s: float, sound: Samples) -> Talk:
    async def script() -> Talk:
        talk = Talk(fake_stages(transcriber=transcriber, asr_s=asr_s))
        async with talk.runtime:
            await talk.hear(sound)
            await asyncio.sleep(2)
        return talk

    return played(script)


def test_words_are_known_while_somebody_speaks() -> None:
    transcriber = ScriptedTranscriber(lines=LINES)
    talk = listening(transcriber, 0.1, speech(5.0))
    shown = [n for n in talk.of(TranscriptSoFar) if isinstance(n, TranscriptSoFar)]
    assert [notice.stable for notice in shown[:2]] == ["", "one two"]


def test_an_attempt_that_has_not_begun_is_overtaken() -> None:
    """The recogniser serves somebody else first; then it hears the newest sound, once."""
    transcriber = ScriptedTranscriber(lines=LINES)

    async def script() -> Talk:
        talk = Talk(fake_stages(transcriber=transcriber, asr_s=0.0))
        recogniser = talk.runtime._stages.asr_worker
        assert isinstance(recogniser, PatientWorker)
        async with talk.runtime:
            async with recogniser.held():
                await talk.hear(np.concatenate((speech(3.0), silence(0.3))))
            await asyncio.sleep(2)
        return talk

    talk = played(script)
    assert len(transcriber.heard) == 1
    assert transcriber.heard[0] > 3.0 * 16_000
    assert len(talk.of(TranscriptCompleted)) == 1


def test_partials_wait_for_work_that_is_certain() -> None:
    """Somebody else's turn is over; until it is answered, only what may be a turn's end goes on."""
    transcriber = ScriptedTranscriber(lines=LINES)

    async def script() -> Talk:
        stages = fake_stages(transcriber=transcriber)
        talk = Talk(stages)
        async with talk.runtime:
            with stages.certain_work.of("somebody else"):
                await talk.hear(speech(4.0))
                assert transcriber.heard == []
                await talk.hear(silence(0.3))
                assert len(transcriber.heard) == 1
        return talk

    played(script)


@pytest.mark.parametrize("words", [4, 100])
def test_work_is_certain_from_the_end_of_the_turn_to_the_end_of_the_text(words: int) -> None:
    """Whether the text was whole before the turn was over, or goes on behind it."""
    language = ScriptedLanguageModel(lines=("word " * words,), first_s=0.02)

    async def script() -> Talk:
        stages = fake_stages(language=language)
        talk = Talk(stages, Settings(turn_detection=TurnDetection(silence_ms=500)))
        async with talk.runtime:
            await talk.hear(np.concatenate((speech(1.0), silence(0.45))))
            assert language.prompts and not stages.certain_work.going_on()
            await talk.hear(silence(0.2))
            assert stages.certain_work.going_on() == (words > 4)
            await asyncio.sleep(10)
            assert not stages.certain_work.going_on()
        return talk

    played(script)
    assert language.prefilled, "nothing was prefilled while the user spoke"


def test_sound_is_kept_until_its_words_are_known() -> None:
    """The attempt that would have known them fails after the endpoint: all is recognised anew."""
    transcriber = ScriptedTranscriber(fails=RuntimeError("out of order"))

    async def script() -> Talk:
        talk = Talk(fake_stages(transcriber=transcriber, asr_s=0.8))
        async with talk.runtime:
            await talk.hear(np.concatenate((speech(1.0), silence(0.6))))
            transcriber.fails = None
            await talk.hear(silence(2.0))
        return talk

    talk = played(script)
    assert len(talk.of(TranscriptCompleted)) == 1
    assert transcriber.heard == [pytest.approx(1.25 * 16_000, abs=2 * 512)]
