"""The runtime around the core, on a loop whose clock jumps: order, waiting, cancelling, leaving."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from assistant.config import Config, LimitsConfig
from assistant.effects import (
    Notice,
    PlaybackCleared,
    ResponseAudio,
    ResponseFinished,
    StageFailed,
    TranscriptCompleted,
    TurnFinished,
)
from assistant.errors import AudioBufferFull
from assistant.events import CommitAudio, CreateItem, CreateResponse, Samples
from assistant.items import Message, ResponseStatus, Role
from assistant.language import Commitment, Ending, Piece
from assistant.runtime import SessionRuntime
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
from tests.virtual_time import run_in_virtual_time

FRAME = 320
"""20 ms, as a client sends them."""


class Talk:
    """A running session and what it has delivered."""

    def __init__(self, stages: Stages, settings: Settings | None = None) -> None:
        self.notices: list[Notice] = []
        self.runtime = SessionRuntime(
            stages, settings or stages.default_settings(), self.notices.append, id_prefix=""
        )

    async def hear(self, samples: Samples) -> None:
        """Let the microphone pick this up in real time."""
        for start in range(0, len(samples), FRAME):
            await self.runtime.append_audio(samples[start : start + FRAME])
            await asyncio.sleep(FRAME / 16_000)

    def of(self, *kinds: type) -> list[Notice]:
        return [notice for notice in self.notices if isinstance(notice, kinds)]


def played(script: Callable[[], Awaitable[Talk]]) -> Talk:
    """Run a script in virtual time and return its session."""

    async def main() -> Talk:
        return await script()

    return run_in_virtual_time(main())


def test_a_spoken_question_is_answered_in_sound() -> None:
    async def script() -> Talk:
        talk = Talk(fake_stages())
        async with talk.runtime:
            await talk.hear(np.concatenate((silence(0.5), speech(1.0), silence(1.0))))
            await asyncio.sleep(10)
        return talk

    talk = played(script)
    (turn,) = talk.of(TurnFinished)
    assert isinstance(turn, TurnFinished)
    assert turn.outcome == "done"
    assert turn.heard == "The capital of France is Paris. It lies on the Seine."
    turn.timeline.check_order()


def test_the_recogniser_gets_the_utterance_with_its_lead_in() -> None:
    transcriber = ScriptedTranscriber()

    async def script() -> Talk:
        talk = Talk(fake_stages(transcriber=transcriber))
        async with talk.runtime:
            await talk.hear(np.concatenate((silence(3.0), speech(1.0), silence(1.0))))
        return talk

    played(script)
    # 500 ms before the speech, the second of speech, and the first of the silence behind it, in
    # windows of 32 ms.
    assert transcriber.heard == [pytest.approx(1.55 * 16_000, abs=2 * 512)]


def test_a_burst_of_audio_is_heard_like_a_stream() -> None:
    async def script() -> Talk:
        talk = Talk(fake_stages())
        async with talk.runtime:
            burst = np.concatenate((silence(0.5), speech(1.0), silence(1.0)))
            await talk.runtime.append_audio(burst)
            await asyncio.sleep(10)
        return talk

    talk = played(script)
    (turn,) = talk.of(TurnFinished)
    assert isinstance(turn, TurnFinished)
    assert turn.outcome == "done"
    assert turn.timeline.endpoint_wait_ms == pytest.approx(500, abs=33)


def test_a_commit_takes_its_place_behind_the_audio_sent_before_it() -> None:
    transcriber = ScriptedTranscriber()

    async def script() -> Talk:
        talk = Talk(fake_stages(transcriber=transcriber), Settings(turn_detection=None))
        async with talk.runtime:
            await talk.runtime.append_audio(speech(1.0))
            await talk.runtime.command(CommitAudio(end_sample=-1))
            await talk.runtime.append_audio(speech(0.5))
            await asyncio.sleep(1)
        return talk

    talk = played(script)
    assert transcriber.heard == [16_000]
    assert len(talk.of(TranscriptCompleted)) == 1


def test_an_interruption_stops_the_model_and_the_voice() -> None:
    language = ScriptedLanguageModel(lines=("word " * 200,), word_s=0.05)
    running: list[int] = []

    async def script() -> Talk:
        talk = Talk(fake_stages(language=language))
        async with talk.runtime:
            await talk.hear(np.concatenate((speech(1.0), silence(2.0))))
            running.append(language.running)
            await talk.hear(speech(0.5))
            running.append(language.running)
        return talk

    talk = played(script)
    assert running == [1, 0]
    cleared = talk.notices.index(talk.of(PlaybackCleared)[0])
    assert not any(isinstance(notice, ResponseAudio) for notice in talk.notices[cleared:])


@pytest.mark.parametrize("stage", ["asr", "llm", "tts"])
def test_a_failing_stage_ends_its_turn_and_not_the_session(stage: str) -> None:
    broken = RuntimeError("out of order")
    transcriber = ScriptedTranscriber(fails=broken if stage == "asr" else None)
    language = ScriptedLanguageModel(fails=broken if stage == "llm" else None)
    voice = ToneVoice(fails=broken if stage == "tts" else None)

    async def script() -> Talk:
        talk = Talk(fake_stages(transcriber=transcriber, language=language, voice=voice))
        async with talk.runtime:
            await talk.hear(np.concatenate((speech(1.0), silence(8.0))))
            transcriber.fails = language.fails = voice.fails = None
            await talk.hear(np.concatenate((speech(1.0), silence(8.0))))
        return talk

    talk = played(script)
    failed = talk.of(StageFailed)[0]
    assert isinstance(failed, StageFailed)
    assert failed.stage == stage
    assert "out of order" not in failed.failure.message  # for the log, not for the client
    last = talk.of(ResponseFinished)[-1]
    assert isinstance(last, ResponseFinished)
    assert last.response.status is ResponseStatus.COMPLETED


def test_a_sender_that_is_too_fast_is_slowed_down() -> None:
    config = Config(limits=LimitsConfig(buffered_audio_s=1.0))

    async def script() -> Talk:
        stages = replace(fake_stages(config=config))
        stages.hearing_worker.seconds = 0.25  # type: ignore[attr-defined]  # the fake's
        talk = Talk(stages)
        async with talk.runtime:
            for _ in range(8):
                await talk.runtime.append_audio(silence(1.0))
            # Each half second takes 0.25 s to analyse; one second may wait besides the one that
            # is let in, so the sender was held back for the other six.
            assert asyncio.get_running_loop().time() >= 6 * 2 * 0.25
        return talk

    played(script)


def test_an_endless_manual_utterance_is_refused() -> None:
    config = Config(limits=LimitsConfig(max_utterance_s=2.0))

    async def script() -> Talk:
        talk = Talk(fake_stages(config=config), Settings(turn_detection=None))
        async with talk.runtime:
            await talk.runtime.append_audio(speech(2.5))
            with pytest.raises(AudioBufferFull, match="commit or clear"):
                await talk.runtime.append_audio(speech(0.1))
        return talk

    played(script)


def test_leaving_ends_all_work() -> None:
    language = ScriptedLanguageModel(lines=("word " * 200,), word_s=0.05)

    async def script() -> Talk:
        talk = Talk(fake_stages(language=language), Settings(turn_detection=None))
        async with talk.runtime:
            await talk.runtime.command(CreateItem(role=Role.USER, text="hello"))
            await talk.runtime.command(CreateResponse())
            await asyncio.sleep(1)
            assert language.running == 1
        assert language.running == 0
        assert len(asyncio.all_tasks()) == 1
        return talk

    played(script)


def test_the_error_of_a_caller_passes_as_it_is() -> None:
    async def script() -> Talk:
        talk = Talk(fake_stages())
        with pytest.raises(LookupError):
            async with talk.runtime:
                raise LookupError("the caller's own")
        assert len(asyncio.all_tasks()) == 1
        return talk

    played(script)


def test_an_error_of_the_session_ends_it_for_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script() -> Talk:
        talk = Talk(fake_stages())
        monkeypatch.setattr(talk.runtime.session, "feed", lambda *_: 1 // 0)
        with pytest.raises(ExceptionGroup) as failed:
            async with talk.runtime:
                await talk.runtime.command(CreateResponse())
                await asyncio.sleep(60)
        assert failed.value.subgroup(ZeroDivisionError) is not None
        return talk

    played(script)


def test_of_a_guess_no_more_is_wanted_than_its_first_clause() -> None:
    class Suspended(ScriptedLanguageModel):
        async def answer(
            self, messages: Sequence[Message], max_output_tokens: int | None, commitment: Commitment
        ) -> AsyncGenerator[Piece | Ending, None]:
            going_on = asyncio.Event()
            going_on.set()
            commitment.when_sufficient(going_on.clear)
            commitment.when_confirmed(going_on.set)
            async for piece in super().answer(messages, max_output_tokens, commitment):
                await going_on.wait()
                written.append(asyncio.get_running_loop().time())
                yield piece

    written: list[float] = []
    clause, rest = "I can tell you that,", "as I know it very well and so does everybody else here."

    async def script() -> Talk:
        stages = fake_stages(language=Suspended(lines=[f"{clause} {rest}"]))
        talk = Talk(stages, Settings(turn_detection=TurnDetection(silence_ms=500)))
        async with talk.runtime:
            await talk.hear(np.concatenate((silence(0.5), speech(1.0), silence(1.0))))
            await asyncio.sleep(10)
        return talk

    talk = played(script)
    (turn,) = talk.of(TurnFinished)
    assert isinstance(turn, TurnFinished) and turn.timeline.endpoint_s is not None
    assert turn.speculation == "hit"
    assert turn.heard == f"{clause} {rest}"
    before = [at_s for at_s in written if at_s < turn.timeline.endpoint_s]
    next_word = 1  # shows that the clause has ended
    assert len(before) == len(clause.split()) + next_word
