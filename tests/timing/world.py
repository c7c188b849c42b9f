"""A dialogue in virtual time: the real core, scripted stages, and a client with a loudspeaker.

Nothing sleeps and nothing runs in parallel: what happens is a heap of moments.  A world made from
the same script and seed plays out the same way every time.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from assistant.effects import (
    Confirm,
    Effect,
    Generate,
    Hasten,
    JudgeTurnEnd,
    Notice,
    PlaybackCleared,
    Prefill,
    ResponseAudio,
    ResponseFinished,
    ResponseStarted,
    SpeechStarted,
    StopWork,
    Synthesise,
    Transcribe,
    TurnFinished,
)
from assistant.events import (
    INPUT_RATE_HZ,
    AudioAnalysed,
    AudioSynthesised,
    ChunkFailed,
    ChunkPlanned,
    Event,
    Played,
    TextFailed,
    TextFinished,
    TextGenerated,
    TimePassed,
    TranscriptFailed,
    TranscriptReady,
    TruncateItem,
    TurnEndJudged,
    WordTime,
)
from assistant.items import AnswerStep, Failure, Item, Usage
from assistant.session import Limits, Session
from assistant.settings import Settings
from audio.streaming import Segment

WINDOW = 512
WINDOW_S = WINDOW / INPUT_RATE_HZ
RATE_HZ = 1_000
"""The fake voice's sample rate: low, so that positions are easy to read."""
WORDS_IN_A_SEGMENT = 8
GUESSED_S = 0.101
"""The fake recogniser knows a word without hearing so much of its end."""
WORD_S = 0.25
"""The fake voice takes this long for every word."""
FAILED = Failure("broken", "The stage is broken.")


@dataclass(frozen=True)
class Pace:
    """How long the fake stages take; `jitter` stretches each duration by up to that factor."""

    transcript_s: float = 0.2
    judgement_s: float = 0.03
    first_text_s: float = 0.1
    text_s: float = 0.03
    encode_s: float = 0.08
    window_s: float = 0.02
    jitter: float = 0.0


@dataclass(frozen=True)
class Speech:
    """The user says `text` from `start_s` to `end_s`; an empty text is a noise.

    In the last `fade_s` the speech probability is low, but not yet as low as in silence.
    """

    start_s: float
    end_s: float
    text: str
    fade_s: float = 0.0
    breath_s: float = 0.0
    """How long the voice sounds on after the last word."""

    def words(self) -> Iterator[tuple[str, float]]:
        """The words, each with the moment at which it has been said."""
        words = self.text.split()
        word_s = (self.end_s - self.breath_s - self.start_s) / max(1, len(words))
        for index, word in enumerate(words):
            yield word, self.start_s + (index + 1) * word_s

    def probability(self, start_s: float, end_s: float) -> float:
        """How likely a window is held to be speech."""
        if self.start_s >= end_s - 1e-9 or self.end_s <= start_s + 1e-9:
            return 0.02
        fading = self.fade_s and end_s > self.end_s - self.fade_s + 1e-9
        return 0.5 if fading else 0.95


@dataclass
class Loudspeaker:
    """The client's player: what it was given, and how far it has played it."""

    response_id: str | None = None
    item_id: str | None = None
    received: int = 0
    played: int = 0
    moved_s: float = 0.0
    whole: bool = False
    """All that will come has been received."""
    sounding: list[tuple[float, float, int]] = field(default_factory=list)
    """Stretches of sound: from, until, generation."""

    def advance(self, now: float, generation: int) -> None:
        """Play what there is up to `now`."""
        step = min(self.received - self.played, round((now - self.moved_s) * RATE_HZ))
        if step > 0:
            self.sounding.append((self.moved_s, self.moved_s + step / RATE_HZ, generation))
            self.played += step
        self.moved_s = now


class World:
    """A session with everything around it, and the record of all that happened."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        speeches: tuple[Speech, ...] = (),
        replies: tuple[str, ...] = ("The first clause, and then a second one. And a third.",),
        pace: Pace | None = None,
        limits: Limits | None = None,
        seed: int = 0,
        microphone_until_s: float = 20.0,
        broken: frozenset[str] = frozenset(),
        flaky: float = 0.0,
        window: int = WINDOW,
    ) -> None:
        self.session = Session(
            settings or Settings(), voice_rate_hz=RATE_HZ, limits=limits, id_prefix=""
        )
        self.now = 0.0
        self.effects: list[tuple[float, Effect]] = []
        """All that the core asked for and told."""
        self.notices: list[tuple[float, Notice]] = []
        self.prompts: list[Generate] = []
        self.prefills: list[Prefill] = []
        self.judged: list[JudgeTurnEnd] = []
        self.completeness: Callable[[str], float | None] = lambda words: 0.99
        """What the fake model thinks of the user's last message."""
        self.attempts: list[tuple[float, Transcribe]] = []
        """What the recogniser was asked for, and when."""
        self.spoken_chunks: list[int] = []
        self.stops_s: list[float] = []
        """When work was called off."""
        self.loudspeaker = Loudspeaker()
        self.acknowledges = True
        self.respell: Callable[[str], str] = str
        """How later attempts spell what the first one heard; nothing: the decoder loops."""
        self._speeches = speeches
        self._replies = itertools.cycle(replies)
        self._pace = pace or Pace()
        self._random = random.Random(seed)
        self._broken = set(broken)
        self._flaky = flaky
        """The share of the attempts at words that fail; others are lost when overtaken."""
        self._newest_attempt: dict[int, int] = {}
        self._window = window
        self._broken_once: set[str] = set()
        self._moments: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._stopped_generation = 0
        self._playing_generation = 0
        self._cleared_generation = 0
        self._timer_s: float | None = None
        for index in range(round(microphone_until_s * INPUT_RATE_HZ / window)):
            self.at((index + 1) * window / INPUT_RATE_HZ, self._hear(index))
        self.at(0.05, self._acknowledge)

    # -- the script ---------------------------------------------------------------------

    def at(self, moment_s: float, what: Callable[[], None] | Event) -> None:
        """Let something happen, or the session be fed an event, at a moment."""
        action = what if callable(what) else lambda: self.feed(what)
        heapq.heappush(self._moments, (moment_s, next(self._order), action))

    def fail_once(self, stage: str) -> None:
        """Let the next job of a stage fail."""
        self._broken_once.add(stage)

    def run(self, until_s: float) -> None:
        """Let everything happen up to `until_s`."""
        while self._moments and self._moments[0][0] <= until_s:
            moment_s, _, action = heapq.heappop(self._moments)
            self.now = max(self.now, moment_s)
            self.loudspeaker.advance(self.now, self._playing_generation)
            action()

    def feed(self, event: Event) -> None:
        """Feed the session now, and carry out what it asks for."""
        for effect in self.session.feed(event, self.now):
            self._carry_out(effect)
        self._set_timer()

    # -- what the tests look at ---------------------------------------------------------

    def of(self, *kinds: type) -> list[Notice]:
        """Return the notices of these kinds, in order."""
        return [notice for _, notice in self.notices if isinstance(notice, kinds)]

    def when(self, kind: type) -> list[float]:
        """Return the moments of the notices of this kind."""
        return [moment for moment, notice in self.notices if isinstance(notice, kind)]

    @property
    def turns(self) -> list[TurnFinished]:
        """The turns that have ended."""
        return [notice for notice in self.of(TurnFinished) if isinstance(notice, TurnFinished)]

    @property
    def said(self) -> list[tuple[str, str]]:
        """The prompt the model would get now, without instructions."""
        return [(str(m.role), m.text) for m in self.session.history.messages("")]

    def item(self, item_id: str) -> Item:
        """Return an item as it stands."""
        return self.session.history[item_id]

    # -- stages -------------------------------------------------------------------------

    def _carry_out(self, effect: Effect) -> None:
        self.effects.append((self.now, effect))
        match effect:
            case Transcribe():
                self._transcribe(effect)
            case Generate():
                self.prompts.append(effect)
                self._generate(effect)
            case Synthesise():
                self._synthesise(effect)
            case Prefill():
                self.prefills.append(effect)
            case JudgeTurnEnd():
                self._judge(effect)
            case Hasten():
                pass  # nobody else keeps the fake recogniser busy
            case Confirm():
                assert effect.generation > self._stopped_generation, "given up, then confirmed"
            case StopWork():
                self._stopped_generation = effect.generation
                self.stops_s.append(self.now)
            case _:
                self.notices.append((self.now, effect))
                self._client_hears_of(effect)

    def _transcribe(self, work: Transcribe) -> None:
        start_s, end_s = work.start_sample / INPUT_RATE_HZ, work.end_sample / INPUT_RATE_HZ
        self.attempts.append((self.now, work))
        said = [
            (word, said_s)
            for speech in self._speeches
            for word, said_s in speech.words()
            if start_s + 1e-3 < said_s <= end_s + GUESSED_S
        ]
        text = " ".join(word for word, _ in said)
        text = self.respell(text) if len(self.attempts) > 1 else text
        segments = tuple(
            Segment(" ".join(word for word, _ in sentence), round(sentence[-1][1] * INPUT_RATE_HZ))
            for start in range(0, len(said), WORDS_IN_A_SEGMENT)
            if (sentence := said[start : start + WORDS_IN_A_SEGMENT])
        )
        after_s = self._takes(self._pace.transcript_s)
        result: Event
        flaky = self._flaky and work.kind != "final" and self._random.random() < self._flaky
        if self._fails("asr") or flaky:
            result = TranscriptFailed(work.turn_id, work.attempt, FAILED)
        elif self._fails("asr_hangs"):
            return
        else:
            rejection = None if text else "repetition" if said else "no_speech"
            result = TranscriptReady(work.turn_id, work.attempt, text, rejection, segments)
        self._newest_attempt[work.turn_id] = work.attempt
        # An attempt that is overtaken before it has begun never comes back.
        lost_if_overtaken = self._flaky and self._random.random() < 0.5

        def deliver() -> None:
            if not lost_if_overtaken or self._newest_attempt[work.turn_id] == work.attempt:
                self.feed(result)

        self.at(self.now + after_s, deliver)

    def _judge(self, work: JudgeTurnEnd) -> None:
        self.judged.append(work)
        if not self._fails("judge_hangs"):
            probability = self.completeness(work.messages[-1].text)
            after_s = self._takes(self._pace.judgement_s)
            self._later(after_s, TurnEndJudged(work.turn_id, work.attempt, probability))

    def _generate(self, work: Generate) -> None:
        moment_s = self._takes(self._pace.first_text_s)
        if self._fails("llm"):
            self._later(moment_s, TextFailed(work.generation, FAILED), work.generation)
            return
        words = next(self._replies).split(" ")
        limit = work.max_output_tokens or len(words)
        for index, word in enumerate(words[:limit]):
            text = word if index == 0 else f" {word}"
            step = AnswerStep((text,))
            self._later(moment_s, TextGenerated(work.generation, text, 1, step), work.generation)
            moment_s += self._takes(self._pace.text_s)
        reason = "length" if limit < len(words) else "stop"
        usage = Usage(output_tokens=min(limit, len(words)))
        self._later(moment_s, TextFinished(work.generation, reason, usage), work.generation)

    def _synthesise(self, work: Synthesise) -> None:
        self.spoken_chunks.append(work.chunk)
        moment_s = self._takes(self._pace.encode_s)
        if self._fails("tts"):
            failed = ChunkFailed(work.generation, work.chunk, FAILED)
            self._later(moment_s, failed, work.generation)
            return
        words = []
        position = 0
        for number, word in enumerate(work.text.split()):
            position = work.text.index(word, position)
            end_sample = round((number + 1) * WORD_S * RATE_HZ)
            words.append(WordTime(position, position + len(word), end_sample))
            position += len(word)
        total = words[-1].end_sample if words else 0
        planned = ChunkPlanned(work.generation, work.chunk, tuple(words), total)
        self._later(moment_s, planned, work.generation)
        window = round(WORD_S * RATE_HZ)
        for start in range(0, total, window):
            moment_s += self._takes(self._pace.window_s)
            samples = np.ones(min(window, total - start), np.float32)
            sound = AudioSynthesised(work.generation, work.chunk, samples, start + window >= total)
            self._later(moment_s, sound, work.generation)

    def _later(self, after_s: float, event: Event, generation: int | None = None) -> None:
        """Feed the result of some work; a cancelled worker may deliver it all the same, or not."""
        lazy = self._random.random() < 0.5

        def deliver() -> None:
            stopped = generation is not None and generation <= self._stopped_generation
            if not stopped or lazy:
                self.feed(event)

        self.at(self.now + after_s, deliver)

    def _takes(self, seconds: float) -> float:
        return seconds * (1 + self._random.random() * self._pace.jitter)

    def _fails(self, stage: str) -> bool:
        if stage in self._broken_once:
            self._broken_once.remove(stage)
            return True
        return stage in self._broken

    # -- the client ---------------------------------------------------------------------

    def _client_hears_of(self, notice: Notice) -> None:
        speaker = self.loudspeaker
        match notice:
            case ResponseStarted():
                self._cut_off()
                self.loudspeaker = Loudspeaker(
                    notice.response.response_id,
                    notice.response.item_id,
                    moved_s=self.now,
                    sounding=speaker.sounding,
                )
            case ResponseAudio():
                assert notice.generation > self._cleared_generation, "stale audio was sent"
                assert notice.start_sample == speaker.received, "audio was lost or repeated"
                self._playing_generation = notice.generation
                speaker.received += len(notice.samples)
            case ResponseFinished():
                speaker.whole = True
            case PlaybackCleared():
                self._cleared_generation = notice.generation
                self._cut_off()
            case SpeechStarted() if self._truncates and speaker.item_id is not None:
                if speaker.played and not (speaker.whole and speaker.played == speaker.received):
                    self._cut_off()
                    position_ms = speaker.played * 1000 // RATE_HZ
                    truncate = TruncateItem(item_id=speaker.item_id, audio_end_ms=position_ms)
                    self.at(self.now + self._takes(0.02), truncate)

    @property
    def _truncates(self) -> bool:
        detection = self.session.settings.turn_detection
        return self.acknowledges and detection is not None and detection.interrupt_response

    def _cut_off(self) -> None:
        self.loudspeaker.received = self.loudspeaker.played

    def _acknowledge(self) -> None:
        speaker = self.loudspeaker
        if self.acknowledges and speaker.response_id is not None and speaker.played:
            position_ms = speaker.played * 1000 / RATE_HZ
            self.feed(Played(response_id=speaker.response_id, position_ms=position_ms))
        self.at(self.now + 0.05, self._acknowledge)

    # -- time ---------------------------------------------------------------------------

    def _hear(self, index: int) -> Callable[[], None]:
        start, end = index * self._window, (index + 1) * self._window
        start_s, end_s = start / INPUT_RATE_HZ, end / INPUT_RATE_HZ
        sounds = (speech.probability(start_s, end_s) for speech in self._speeches)
        frame = AudioAnalysed(start, end, max(sounds, default=0.02))
        return lambda: self.feed(frame)

    def _set_timer(self) -> None:
        deadline_s = self.session.deadline
        if deadline_s is None or deadline_s == self._timer_s:
            return
        self._timer_s = deadline_s

        def ring() -> None:
            if self._timer_s == deadline_s:
                self._timer_s = None
                self.feed(TimePassed())

        self.at(max(self.now, deadline_s), ring)


def acknowledged(settings: Settings | None = None) -> Settings:
    """Return settings under which the client reports its loudspeaker's position."""
    return replace(settings or Settings(), playback_acknowledged=True)


def finished(world: World) -> list[ResponseFinished]:
    """Return the answers that have ended."""
    return [notice for notice in world.of(ResponseFinished) if isinstance(notice, ResponseFinished)]
