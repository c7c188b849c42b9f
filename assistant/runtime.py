"""Carries out what the dialogue core asks for: the only place where a session touches the world.

One `SessionRuntime` owns one core.  Audio and commands enter through one queue, so that they are
handled in the order in which the client sent them; results of the stages are fed in as they come.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import numpy as np

from assistant.attempts import Attempts
from assistant.effects import (
    Confirm,
    Generate,
    Hasten,
    JudgeTurnEnd,
    Notice,
    Prefill,
    StopWork,
    Synthesise,
    Transcribe,
)
from assistant.errors import AssistantError, AudioBufferFull
from assistant.events import (
    INPUT_RATE_HZ,
    AudioAnalysed,
    AudioSynthesised,
    ChunkFailed,
    ChunkPlanned,
    ClearAudio,
    Command,
    CommitAudio,
    Event,
    Samples,
    TextFailed,
    TextFinished,
    TextGenerated,
    TimePassed,
    TurnEndJudged,
    WordTime,
)
from assistant.failures import failure_of
from assistant.language import Commitment, Ending
from assistant.microphone import MicrophoneBuffer
from assistant.session import Session
from assistant.settings import Settings
from assistant.stages import Stages
from assistant.workers import Urgency
from dspark import DSparkError

logger = logging.getLogger(__name__)

HEARING_STEP = INPUT_RATE_HZ // 2
"""Audio is analysed in steps of at most this many samples: one session's burst of audio must not
keep the others' from being heard."""
MOST_WAITING = 256
"""Pieces of audio and commands that wait; whoever sends more waits too."""


class SessionRuntime:
    """One running session.

    `deliver` is called on the event loop with every notice, in order; it must not block.  Use as an
    asynchronous context manager: leaving it ends all work of the session.
    """

    def __init__(
        self,
        stages: Stages,
        settings: Settings,
        deliver: Callable[[Notice], None],
        *,
        id_prefix: str | None = None,
    ) -> None:
        self._stages = stages
        self._deliver = deliver
        self._session = Session(
            settings,
            voice_rate_hz=stages.voice_rate_hz,
            limits=stages.limits(),
            id_prefix=secrets.token_hex(6) if id_prefix is None else id_prefix,
        )
        self._microphone = MicrophoneBuffer()
        self._voice_activity = stages.new_voice_activity()
        self._inbox: asyncio.Queue[Samples | Command] = asyncio.Queue(MOST_WAITING)
        self._backlog = asyncio.Condition()
        self._analysed_samples = 0
        self._tasks: asyncio.TaskGroup = asyncio.TaskGroup()
        self._owned: set[asyncio.Task[None]] = set()
        self._generations: dict[asyncio.Task[None], int] = {}
        self._guess: int | None = None
        """The generation of the answer that may turn out not to be wanted, if there is one."""
        self._commitment = Commitment()
        self._attempts = Attempts(stages, self._session, self._feed, self._spawn)
        self._prefilling: asyncio.Task[None] | None = None
        self._judging: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.appended_samples = 0
        """All input samples appended so far."""

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._spawn(self._take_in())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for task in self._owned:
            task.cancel()
        # A caller's own error passes as it is: the group would wrap it. Its own cancellation, when
        # a task of ours has failed, is the group's to undo.
        if isinstance(error, asyncio.CancelledError):
            await self._tasks.__aexit__(kind, error, traceback)
        else:
            await self._tasks.__aexit__(None, None, None)

    @property
    def session(self) -> Session:
        """The core, to be looked at only."""
        return self._session

    async def append_audio(self, samples: Samples) -> None:
        """Take the next microphone samples (`[n]`, float32, 16 kHz).

        Waits while too much audio is still to be analysed.  Raises `AudioBufferFull` in manual mode
        when one utterance would grow beyond `limits.max_utterance_s`.
        """
        limits = self._stages.config.limits
        async with self._backlog:
            room = round(limits.buffered_audio_s * INPUT_RATE_HZ)
            await self._backlog.wait_for(
                lambda: self.appended_samples - self._analysed_samples <= room
            )
        held_s = (self.appended_samples - self._session.audio_needed_from) / INPUT_RATE_HZ
        if self._session.settings.turn_detection is None and held_s > limits.max_utterance_s:
            raise AudioBufferFull(
                f"The buffer holds {held_s:.0f} s of audio, more than one utterance may have; "
                "commit or clear it."
            )
        self.appended_samples += len(samples)
        await self._inbox.put(samples)

    async def command(self, command: Command) -> None:
        """Take a client's command, in its place among the audio."""
        if isinstance(command, CommitAudio | ClearAudio) and command.end_sample < 0:
            command = replace(command, end_sample=self.appended_samples)
        await self._inbox.put(command)

    # -- in -----------------------------------------------------------------------------

    async def _take_in(self) -> None:
        while True:
            entry = await self._inbox.get()
            if isinstance(entry, Command):
                self._feed(entry)
                continue
            for start in range(0, len(entry), HEARING_STEP):
                await self._hear(entry[start : start + HEARING_STEP])

    async def _hear(self, samples: Samples) -> None:
        self._microphone.append(samples)
        worker = self._stages.hearing_worker
        frames = await worker.run(Urgency.HEARING, self._voice_activity.feed, samples)
        for frame in frames:
            self._feed(AudioAnalysed(frame.start_sample, frame.end_sample, frame.probability))
        self._microphone.release(self._session.audio_needed_from)
        async with self._backlog:
            self._analysed_samples += len(samples)
            self._backlog.notify_all()

    def _feed(self, event: Event) -> None:
        now = asyncio.get_running_loop().time()
        for effect in self._session.feed(event, now):
            match effect:
                case Transcribe():
                    # Taken now: the microphone lets go of it soon.
                    heard = self._microphone.slice(effect.start_sample, effect.end_sample)
                    self._attempts.begin(effect, heard)
                case Hasten():
                    self._attempts.hasten(effect)
                case Prefill():
                    self._begin_prefilling(effect)
                case JudgeTurnEnd():
                    self._begin_judging(effect)
                case Generate():
                    self._begin_generating(effect)
                case Synthesise():
                    if effect.generation == self._guess:
                        self._commitment.suffice()
                    self._spawn(self._synthesise(effect), effect.generation)
                case Confirm():
                    if self._guess == effect.generation:
                        self._guess = None
                        self._commitment.confirm()
                        self._stages.certain_work.look_again()
                case StopWork():
                    self._stop(effect.generation)
                case _:
                    self._deliver(effect)
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (deadline := self._session.deadline) is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(deadline, lambda: self._spawn(self._pass_time()))

    async def _pass_time(self) -> None:
        self._feed(TimePassed())

    # -- work ---------------------------------------------------------------------------

    def _begin_prefilling(self, work: Prefill) -> None:
        self._stop_prefilling()
        self._prefilling = self._spawn(self._prefill(work))

    def _stop_prefilling(self) -> None:
        """What has been computed by now stays in the cache."""
        if self._prefilling is not None:
            self._prefilling.cancel()

    async def _prefill(self, work: Prefill) -> None:
        certain = self._stages.certain_work
        await certain.until(lambda: not certain.going_on(besides=self._session))
        try:
            await self._stages.language.prefill(work.messages)
        except (AssistantError, DSparkError) as error:
            logger.debug("prefilling failed: %s", error)  # the answer will meet the same, and say

    def _begin_judging(self, work: JudgeTurnEnd) -> None:
        if self._judging is not None:
            self._judging.cancel()
        self._judging = self._spawn(self._judge(work))

    async def _judge(self, work: JudgeTurnEnd) -> None:
        probability = None
        try:
            probability = await self._stages.language.turn_end(work.messages)
        except Exception as error:
            failure_of("judging the turn's end", error)  # silence alone ends it
        self._feed(TurnEndJudged(work.turn_id, work.attempt, probability))

    def _begin_generating(self, work: Generate) -> None:
        commitment = Commitment(confirmed=not work.speculative)
        if work.speculative:
            self._guess, self._commitment = work.generation, commitment
        self._stop_prefilling()
        self._spawn(self._generate(work, commitment), work.generation)

    async def _generate(self, work: Generate, commitment: Commitment) -> None:
        generation = work.generation
        answer = self._stages.language.answer
        pieces = answer(work.messages, work.max_output_tokens, commitment)
        try:
            async with AsyncExitStack() as stack:
                certain = self._stages.certain_work
                stack.callback(commitment.forget)
                commitment.when_confirmed(lambda: stack.enter_context(certain.of(self._session)))
                await self._give_way(generation)
                stream = await stack.enter_async_context(aclosing(pieces))
                async for piece in stream:
                    if isinstance(piece, Ending):
                        self._feed(TextFinished(generation, piece.reason, piece.usage))
                        continue
                    self._feed(TextGenerated(generation, piece.text, piece.tokens, piece.step))
        except Exception as error:
            self._feed(TextFailed(generation, failure_of("llm", error)))

    async def _give_way(self, generation: int) -> None:
        """As long as this is a guess, wait for what is certain for other sessions."""
        certain = self._stages.certain_work
        await certain.until(
            lambda: generation != self._guess or not certain.going_on(besides=self._session)
        )

    async def _synthesise(self, work: Synthesise) -> None:
        generation, chunk = work.generation, work.chunk
        worker, voice = self._stages.tts_worker, self._stages.voice

        def urgency() -> Urgency:
            if generation == self._guess:
                return Urgency.GUESS
            return Urgency.FIRST_CLAUSE if chunk == 0 else Urgency.LATER_CLAUSE

        try:
            await self._give_way(generation)
            utterance = await worker.run(urgency, voice.speak, work.text, work.speed)
            words = tuple(
                WordTime(word.start_char, word.end_char, word.end_sample)
                for word in utterance.words
            )
            self._feed(ChunkPlanned(generation, chunk, words, utterance.sample_count))
            windows = utterance.windows()
            while (samples := await worker.run(urgency, next, windows, None)) is not None:
                self._feed(AudioSynthesised(generation, chunk, samples, last=False))
            self._feed(AudioSynthesised(generation, chunk, np.zeros(0, np.float32), last=True))
        except Exception as error:
            self._feed(ChunkFailed(generation, chunk, failure_of("tts", error)))

    def _spawn(
        self, work: Coroutine[Any, Any, None], generation: int | None = None
    ) -> asyncio.Task[None]:
        task = self._tasks.create_task(work)
        self._owned.add(task)
        task.add_done_callback(self._owned.discard)
        if generation is not None:
            self._generations[task] = generation
            task.add_done_callback(self._generations.pop)
        return task

    def _stop(self, generation: int) -> None:
        """Cancel the work for the answers up to `generation`."""
        for task, started in self._generations.items():
            if started <= generation:
                task.cancel()
