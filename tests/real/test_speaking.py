"""The embedded voice, heard by the embedded recogniser and measured against itself."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from assistant.workers import ThreadWorker, Urgency
from audio.voice import Piper, Samples, load_piper, window_bounds
from audio.words import normalise, word_errors
from tests.real.word_judges import (
    AUDIBLE,
    HISSING,
    SENTENCES,
    Heard,
    Judge,
    around_pauses,
    at_hisses,
    compare,
    load_whisper_judge,
    whole,
)

pytestmark = pytest.mark.real

SHORT = (
    "Yes. No. Of course. Not at all. Good morning. Good night. You're welcome. Thank you so much. "
    "I don't know. Let me see. One moment, please. It is half past nine. Twenty degrees. Paris. "
    "The timer is set. The lights are off. Sure thing. That is right. Not yet. Maybe tomorrow. "
    "Here you are. In the kitchen. Turn right. Seventeen. Could you repeat that? Almost there. "
    "I am listening. Go on. All done. Why not? Wait. Eleven. Good idea. Right away. It is open. "
    "Nobody knows. Five apples. Very well. On the left. Ten to six. Try again. See you soon."
)
TWELVE_SECONDS = (
    "The railway that crosses the mountains was built more than a hundred years ago by thousands "
    "of workers, who cut tunnels through solid rock, laid bridges across deep valleys, and kept "
    "the trains running through storms, floods and long winters."
)

HEARD_MS = 80


@pytest.fixture(scope="module")
def voice(piper_model: Path) -> Piper:
    piper = load_piper(piper_model)
    piper.warm_up()
    return piper


@pytest.fixture(scope="module")
def whisper(whisper_folder: Path) -> Judge:
    judge = load_whisper_judge(whisper_folder)
    known: dict[str, list[Heard]] = {}

    def remember(text: str, samples: Samples, rate_hz: int) -> list[Heard]:
        if text not in known:  # the voice says the same text in the same way
            known[text] = judge(text, samples, rate_hz)
        return known[text]

    return remember


def test_what_is_said_is_understood(voice: Piper, whisper: Judge) -> None:
    wrong = total = 0
    for sentence in [
        *SENTENCES[:8],
        "Dr. Smith paid $3.50 at 10:00 a.m. for 1/2 a pie in 1999.",
    ]:
        words = whisper(sentence, whole(voice.speak(sentence)), voice.sample_rate_hz)
        heard = "".join(word.text for word in words)
        wrong += word_errors(normalise(sentence), normalise(heard))
        total += len(normalise(sentence))
    assert wrong / total <= 0.1


def test_around_a_pause_words_begin_and_end_with_their_sound(voice: Piper) -> None:
    starts, ends = around_pauses(voice, ["Apples, oranges, eggs, iron, acorns, and oil."])
    assert len(starts) == 5
    assert np.median(np.abs(starts)) <= 25
    assert np.median(np.abs(ends)) <= 40  # the last sound fades, longer or shorter


def test_words_in_one_breath_begin_and_end_with_their_sound(voice: Piper) -> None:
    late_ms = at_hisses(voice, HISSING)
    assert len(late_ms) > 20
    assert abs(np.median(late_ms)) <= 15
    assert np.max(np.abs(late_ms)) <= 40


def test_every_word_is_heard_in_its_place(voice: Piper, whisper: Judge) -> None:
    """By a judge of all kinds of sounds, though a rough one.

    Each Whisper is late or early by a constant of its own (see `docs/voice.md`), which is taken
    away; the ruler is the sound itself, above.
    """
    starts, ends, left_out = compare(voice, SENTENCES, whisper)
    assert left_out <= 5
    for errors in (starts, ends):
        apart = np.abs(np.array(errors) - np.median(errors))
        assert np.median(apart) <= HEARD_MS
        assert np.mean(apart <= HEARD_MS) >= 0.65


def test_windows_are_the_sound_of_the_whole(voice: Piper) -> None:
    texts = [*SENTENCES[:7], *re.split(r"(?<=[.?]) ", SHORT), TWELVE_SECONDS]
    assert len(texts) == 50
    for text in texts:
        latent, *_ = voice._encode(voice._phonemes(text), 1.0)
        frames = latent.shape[2]
        in_one_go = voice.decode_window(latent, 0, frames)
        bounds = window_bounds(0, frames)
        in_windows = np.concatenate([voice.decode_window(latent, *each) for each in bounds])
        assert np.abs(in_windows - in_one_go).max() < 1e-4, text


def test_a_cancel_takes_effect_within_one_window(
    voice: Piper, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []

    def decode_window(latent: Samples, start: int, end: int) -> Samples:
        begun.append(start)
        return Piper.decode_window(voice, latent, start, end)

    monkeypatch.setattr(voice, "decode_window", decode_window)

    async def interrupt() -> int:
        worker = ThreadWorker("tts")
        windows = voice.speak(TWELVE_SECONDS).windows()
        sounded = asyncio.Event()

        async def speak() -> None:
            while await worker.run(Urgency.FIRST_CLAUSE, next, windows, None) is not None:
                sounded.set()

        speaking = asyncio.create_task(speak())
        await sounded.wait()
        speaking.cancel()
        before = len(begun)
        await worker.run(Urgency.LATER_CLAUSE, len, "what is said next")
        worker.close()
        return len(begun) - before

    assert asyncio.run(interrupt()) <= 1


def test_the_first_sound_takes_a_third_of_the_work(voice: Piper) -> None:
    def seconds(work: Callable[[], object]) -> float:
        spent = []
        for _ in range(3):
            begin = time.thread_time()  # this thread's work, whatever else the machine does
            work()
            spent.append(time.thread_time() - begin)
        return min(spent)

    def in_one_go() -> None:
        latent, *_ = voice._encode(voice._phonemes(TWELVE_SECONDS), 1.0)
        voice.decode_window(latent, 0, latent.shape[2])

    first = seconds(lambda: next(voice.speak(TWELVE_SECONDS).windows()))
    assert first < 0.35 * seconds(in_one_go)


@pytest.mark.parametrize("sentence", SENTENCES[:8])
def test_a_chunk_begins_soon_and_is_neither_quiet_nor_clipped(voice: Piper, sentence: str) -> None:
    samples = np.abs(whole(voice.speak(sentence)))
    lead_ms = np.flatnonzero(samples > AUDIBLE)[0] * 1000 / voice.sample_rate_hz
    assert lead_ms < 60
    assert 0.3 < samples.max() < 1.0
    assert (samples >= 1.0).sum() == 0
