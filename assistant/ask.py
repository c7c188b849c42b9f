"""Asking one thing after the other, each in a dialogue of its own, from text or recordings."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from assistant.client import Dialogue
from assistant.errors import AssistantError, UsageError
from assistant.replies import OUTPUT_RATE_HZ, Reply, Turn
from audio.errors import AudioError
from audio.pcm import Samples, from_pcm16, read_audio, to_pcm16, write_wav

CHUNK_MS = 100

OpenDialogue = Callable[[], AbstractAsyncContextManager[Dialogue]]


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, in writing or (`wav`) in a recording, and where the spoken answer goes."""

    text: str = ""
    wav: Path | None = None
    out: Path | None = None

    @property
    def key(self) -> dict[str, str]:
        """What tells it from other questions in the output."""
        return {"text": self.text} if self.wav is None else {"wav": str(self.wav)}


@dataclass(frozen=True, slots=True)
class Outcome:
    """A question with its answer, or with the reason why there is none."""

    question: Question
    reply: Reply | None = None
    error: str | None = None

    def as_json(self) -> dict[str, object]:
        """Return the object that `--json` prints on a line."""
        if self.reply is None:
            return {**self.question.key, "error": self.error}
        heard = {}
        if isinstance(self.reply, Turn):
            heard = {"transcript": self.reply.transcript, "rejection": self.reply.rejection}
        return {
            **self.question.key,
            **heard,
            "reply": self.reply.text,
            "status": self.reply.status,
            "heard_ms": round(self.reply.heard_ms, 1),
            "out": str(self.question.out) if self.question.out and self.reply.audio else None,
            "timeline": dict(self.reply.timeline),
        }


def written(words: Sequence[str], out: Path | None) -> Question:
    """Return the question that the words make, answered into the file `out` if there is one.

    Raises `UsageError` if nothing can be written there.
    """
    _check_writable(out)
    if out is not None and not _is_file_name(out):
        out = out / "answer.wav"
    return Question(text=" ".join(words), out=out)


def recorded(files: Sequence[str], out: Path | None) -> list[Question]:
    """Return a question for each file.

    `out` is a file for the one answer if it is named `….wav`, and else a folder, in which the
    answer to `a.wav` is `a.answer.wav`.  Raises `UsageError` if several answers are to go into
    one file, or nothing can be written there.
    """
    _check_writable(out)
    paths = [Path(file) for file in files]
    if out is None:
        return [Question(wav=path) for path in paths]
    if _is_file_name(out):
        if len(paths) > 1:
            raise UsageError(
                f"The answers to {len(paths)} recordings do not go into one file, {out}: "
                "name a folder."
            )
        return [Question(wav=paths[0], out=out)]
    places: set[Path] = set()
    questions = []
    for path in paths:
        place, number = out / f"{path.stem}.answer.wav", 1
        while place in places:  # files of the same name, from different folders
            number += 1
            place = out / f"{path.stem}-{number}.answer.wav"
        places.add(place)
        questions.append(Question(wav=path, out=place))
    return questions


def without_sound(questions: Iterable[Question]) -> list[Outcome]:
    """Return the failures of those questions whose recording cannot be read."""
    failures = []
    for question in questions:
        try:
            if question.wav is not None:
                read_audio(question.wav)
        except AudioError as error:
            failures.append(Outcome(question, error=str(error)))
    return failures


def _check_writable(out: Path | None) -> None:
    """Refuse a place before an answer is made for it. One folder is made, not a whole path."""
    if out is None:
        return
    if not out.parent.is_dir():
        raise UsageError(
            f"--out {out}: there is no folder {out.parent}: make it, or name another place."
        )
    if out.is_file() and not _is_file_name(out):
        raise UsageError(f"--out {out}: is a file already: name a folder, or a file that is ….wav.")
    folder = out if out.is_dir() else out.parent
    if not os.access(folder, os.W_OK):
        raise UsageError(f"--out {out}: you may not write into {folder}: name another place.")


def _is_file_name(path: Path) -> bool:
    return path.suffix.lower() == ".wav" and not path.is_dir()


async def outcomes(
    questions: Iterable[Question], open_dialogue: OpenDialogue, *, realtime: bool = False
) -> AsyncIterator[Outcome]:
    """Ask each question in a dialogue of its own; one that fails does not stop the others.

    `realtime` sends recordings as fast as they would be spoken, so that the times are those that a
    speaker would meet.
    """
    for question in questions:
        try:
            sound = read_audio(question.wav) if question.wav else None
            async with open_dialogue() as dialogue:
                if sound is None:
                    reply: Reply = await dialogue.ask(question.text)
                else:
                    samples, rate_hz = sound
                    reply = await dialogue.listen(_chunks(samples, rate_hz, realtime), rate_hz)
            if question.out is not None and reply.audio:
                _write(question.out, reply.audio)
            yield Outcome(question, reply)
        except (AssistantError, AudioError, OSError) as error:
            yield Outcome(question, error=str(error))


async def _chunks(samples: Samples, rate_hz: int, realtime: bool) -> AsyncIterator[bytes]:
    pcm = to_pcm16(samples).astype("<i2").tobytes()
    clock = asyncio.get_running_loop()
    begin_s = clock.time()
    size = 2 * (rate_hz * CHUNK_MS // 1000)
    for number, start in enumerate(range(0, len(pcm), size), start=1):
        if realtime:  # a microphone hands over a chunk once it has been spoken
            await asyncio.sleep(begin_s + number * CHUNK_MS / 1000 - clock.time())
        yield pcm[start : start + size]


def _write(path: Path, pcm: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    write_wav(path, from_pcm16(np.frombuffer(pcm, "<i2")), OUTPUT_RATE_HZ)
