"""One answer on its way: verified text becomes clauses, clauses become sound, sound is played."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import replace

from assistant.effects import Synthesise
from assistant.events import AudioSynthesised, ChunkPlanned
from assistant.items import AnswerStep, Failure, Response, Usage
from assistant.playback import Playback
from audio.chunker import ClauseChunker
from audio.speakable import Speakable, SpeakableStream

SYNTHESIS_LEAD_S = 3.0
"""No further clause is synthesised while this much audio waits: an interruption wastes it."""


class Answer:
    """The text, the clauses and the audio of one response.

    Chunks are synthesised one after the other, so a chunk's audio starts where the audio so far
    ends.  `generation` marks all work done for it.
    """

    def __init__(
        self, response: Response, generation: int, playback: Playback, speed: float, *, rate_hz: int
    ) -> None:
        self.response = response
        self.generation = generation
        self.playback = playback
        self.text = ""
        self.text_whole = False
        self.steps: list[AnswerStep] = []
        """How the language model came to the text."""
        self._rate_hz = rate_hz
        self._speed = speed
        self._speakable = SpeakableStream()
        self._chunker = ClauseChunker()
        self._waiting: deque[Speakable] = deque()
        self._chunk: Speakable | None = None
        self._chunk_number = -1
        self._chunk_start = 0
        self._word_ends: list[int] = []
        """Output sample at which each spoken word ends …"""
        self._word_sources: list[int] = []
        """… and how much of the text has been said by then."""

    @property
    def spoken(self) -> bool:
        """Whether this answer is audio (else it is text alone)."""
        return self.response.modality == "audio"

    def add_text(self, delta: str, tokens: int, step: AnswerStep | None = None) -> None:
        """Take more of the text."""
        self.text += delta
        if step is not None:
            self.steps.append(step)
        usage = self.response.usage
        usage = replace(usage, output_tokens=usage.output_tokens + tokens)
        self.response = replace(self.response, usage=usage)
        if self.spoken:
            self._waiting += self._chunker.feed(self._speakable.feed(delta))

    def finish_text(self, reason: str, usage: Usage | None = None) -> None:
        """Note that the text is whole, or (`"length"`) as long as it may be."""
        self.text_whole = True
        if usage is not None:
            self.response = replace(self.response, usage=usage)
        if reason == "length":
            self.response = replace(self.response, reason="max_output_tokens")
        if self.spoken:
            self._waiting += self._chunker.feed(self._speakable.flush())
            self._waiting += self._chunker.flush()
            self._close_if_spoken_out()

    def fail(self, failure: Failure, apology: str) -> str:
        """End the text after a failure; an empty answer says `apology`.  Return what was added."""
        self.response = replace(self.response, error=failure)
        added = "" if self.text else apology
        if added:
            self.add_text(added, 0)
        self.finish_text("stop")
        return added

    def next_synthesis(self, *, speculative: bool = False) -> Synthesise | None:
        """Return the next clause to be spoken, if it is time for it; of a guess only the first."""
        if self._chunk is not None or not self._waiting:
            return None
        if speculative and self._chunk_number >= 0:
            return None
        if self.playback.unsent_s() > SYNTHESIS_LEAD_S:
            return None
        self._chunk = self._waiting.popleft()
        self._chunk_number += 1
        self._chunk_start = self.playback.total
        text, number = self._chunk.text, self._chunk_number
        return Synthesise(self.generation, number, text, self._speed)

    def plan(self, planned: ChunkPlanned) -> None:
        """Note when each word of the chunk in hand will have been said."""
        if not self._in_hand(planned.chunk):
            return
        assert self._chunk is not None
        for word in planned.words:
            self._word_ends.append(self._chunk_start + word.end_sample)
            self._word_sources.append(self._chunk.source_ends[word.end_char - 1])

    def add_audio(self, audio: AudioSynthesised) -> None:
        """Take the next samples of the chunk in hand."""
        if not self._in_hand(audio.chunk):
            return
        self.playback.append(audio.samples)
        if audio.last:
            self._end_chunk()

    def skip_chunk(self, chunk: int) -> None:
        """Go on without the chunk in hand: its synthesis failed."""
        if self._in_hand(chunk):
            spoken = self.playback.total
            keep = bisect_right(self._word_ends, spoken)
            del self._word_ends[keep:], self._word_sources[keep:]
            self._end_chunk()

    @property
    def delivered(self) -> bool:
        """Whether all text and audio of the answer has left."""
        return self.text_whole and (not self.spoken or self.playback.all_sent())

    def heard_text(self, now: float) -> str:
        """Return what the user has taken in by `now`: the words heard to their end."""
        if not self.spoken:
            return self.text
        return self.heard_until(self.playback.position(now))

    def heard_until(self, position: int) -> str:
        """Return the text whose last word ends at or before output sample `position`."""
        if self.playback.whole and self.playback.total and position >= self.playback.total:
            return self.text
        words = bisect_right(self._word_ends, position)
        return self.text[: self._word_sources[words - 1]] if words else ""

    def samples(self, milliseconds: float) -> int:
        """Convert a client's position to output samples."""
        return round(milliseconds * self._rate_hz / 1000)

    def milliseconds(self, samples: int) -> int:
        """Convert output samples to the client's milliseconds."""
        return round(samples * 1000 / self._rate_hz)

    def _in_hand(self, chunk: int) -> bool:
        return self._chunk is not None and chunk == self._chunk_number

    def _end_chunk(self) -> None:
        self._chunk = None
        self._close_if_spoken_out()

    def _close_if_spoken_out(self) -> None:
        if self.text_whole and self._chunk is None and not self._waiting:
            self.playback.whole = True
