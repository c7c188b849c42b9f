"""From the events that a server sends during a turn to what was understood, said and heard.

A pure collector: it is fed events and says when nothing more is to come, whoever carries them.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from assistant.errors import AnswerFailed, RequestRefused

OUTPUT_RATE_HZ = 24_000
_BYTES_PER_MS = OUTPUT_RATE_HZ * 2 // 1000

# An event is JSON from another process: its shape is known by its type, not by Python's.
WireEvent = Mapping[str, Any]
Status = Literal["completed", "cancelled", "incomplete"]
TimelineMilliseconds = Mapping[str, float | str | bool | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer, whole or cut off.

    `audio` is PCM16, mono, 24 kHz.  `heard` is the part of `text` that was played to its end, and
    `heard_ms` how much of the audio was; `timeline` has the moments of the turn in milliseconds
    (see `assistant.timeline.Timeline`).  `status` "incomplete" was cut at the length limit.
    """

    text: str = ""
    audio: bytes = b""
    heard: str = ""
    heard_ms: float = 0.0
    status: Status = "completed"
    timeline: TimelineMilliseconds = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn(Reply):
    """What was said to the assistant, and its answer.

    `transcript` is everything recognised in the audio.  Where that is nothing there is no answer,
    and `rejection` says why ("no_speech", "repetition", …).
    """

    transcript: str = ""
    rejection: str | None = None


@dataclass(slots=True)
class _Answer:
    """An answer on its way."""

    text: list[str] = field(default_factory=list)
    audio: bytearray = field(default_factory=bytearray)
    status: str = "in_progress"
    failure: str | None = None
    heard: str | None = None
    heard_ms: float | None = None
    """Where the loudspeaker was last said to be; without one, all that came counts as heard."""
    timeline: TimelineMilliseconds = field(default_factory=dict)
    timed: bool = False


class TurnCollector:
    """Follows the turns that begin after it was made; older ones are none of its business."""

    def __init__(self) -> None:
        self._speaking: set[str] = set()
        self._recognising: set[str] = set()
        self._transcripts: dict[str, str] = {}
        self._rejection: str | None = None
        self._answers: dict[str, _Answer] = {}
        self._last_timeline: TimelineMilliseconds = {}
        self._requests: set[str] = set()
        self._over = False
        self._refusal: str | None = None

    @property
    def refused(self) -> bool:
        """Whether an expected request was refused, so that there is nothing to wait for."""
        return self._refusal is not None

    @property
    def speaking(self) -> bool:
        """Whether the server takes the user to be still speaking."""
        return bool(self._speaking)

    @property
    def answers_begun(self) -> int:
        """How many answers have begun."""
        return len(self._answers)

    @property
    def settled(self) -> bool:
        """Whether everything that has begun has also ended."""
        answers = self._answers.values()
        ended = all(answer.status != "in_progress" and answer.timed for answer in answers)
        return ended and not self._speaking and not self._recognising

    @property
    def over(self) -> bool:
        """Whether all had ended when the server last confirmed an update of the session.

        It does so in order: nothing that was sent before the update can have any effect after it.
        """
        return self._over

    def expect(self, request_id: str) -> None:
        """Take an error about this request as the failure of the turn."""
        self._requests.add(request_id)

    def played(self, response_id: str, position_ms: float) -> None:
        """Note how far the loudspeaker is in an answer."""
        if answer := self._answers.get(response_id):
            answer.heard_ms = position_ms

    def feed(self, event: WireEvent) -> None:
        """Take the next event."""
        match event["type"]:
            case "input_audio_buffer.speech_started":
                self._speaking.add(event["item_id"])
            case "input_audio_buffer.committed":
                self._speaking.discard(event["item_id"])
                self._recognising.add(event["item_id"])
            case "conversation.item.input_audio_transcription.completed":
                self._recognising.discard(event["item_id"])
                self._transcripts[event["item_id"]] = event["transcript"]
            case "conversation.item.input_audio_transcription.failed":
                self._recognising.discard(event["item_id"])
            case "x.turn.discarded":
                self._speaking.discard(event["item_id"])
                self._recognising.discard(event["item_id"])
                self._rejection = event["reason"]
            case "response.created":
                self._answers[event["response"]["id"]] = _Answer()
            case "response.output_audio_transcript.delta" | "response.output_text.delta":
                if answer := self._answers.get(event["response_id"]):
                    answer.text.append(event["delta"])
            case "response.output_audio.delta":
                if answer := self._answers.get(event["response_id"]):
                    answer.audio += base64.b64decode(event["delta"])
            case "response.done":
                self._end_answer(event["response"])
            case "x.turn.timeline":
                self._time_turn(event)
            case "session.updated":
                self._over = self.settled
            case "error":
                self._refuse(event["error"])

    def check_accepted(self) -> None:
        """Raise `RequestRefused`, in the server's words, if an expected request was refused."""
        if self._refusal is not None:
            raise RequestRefused(self._refusal)

    def reply(self) -> Reply:
        """Return the last answer.

        Raises `RequestRefused`, or `AnswerFailed` when a stage failed while it was made.
        """
        return Reply(**self._last_answer())

    def turn(self) -> Turn:
        """Return what was understood and the last answer to it.

        Raises `RequestRefused`, or `AnswerFailed` when a stage failed while it was made.
        """
        transcript = " ".join(filter(None, self._transcripts.values()))
        rejection = None if transcript else self._rejection or "no_speech"
        return Turn(transcript=transcript, rejection=rejection, **self._last_answer())

    def _last_answer(self) -> dict[str, Any]:  # the fields of a Reply
        self.check_accepted()
        if not self._answers:
            return {"timeline": self._last_timeline}
        answer = list(self._answers.values())[-1]
        if answer.failure is not None:
            raise AnswerFailed(answer.failure)
        text, audio = "".join(answer.text), bytes(answer.audio)
        received_ms = len(audio) / _BYTES_PER_MS
        return {
            "text": text,
            "audio": audio,
            "heard": text if answer.heard is None else answer.heard,
            "heard_ms": received_ms if answer.heard_ms is None else answer.heard_ms,
            "status": answer.status,
            "timeline": answer.timeline,
        }

    def _end_answer(self, response: WireEvent) -> None:
        answer = self._answers.get(response["id"])
        if answer is None:
            return
        answer.status = response["status"]
        if answer.status == "failed":
            error = (response.get("status_details") or {}).get("error") or {}
            answer.failure = error.get("message") or error.get("code") or "The answer failed."

    def _time_turn(self, event: WireEvent) -> None:
        self._last_timeline = event["timeline"]
        answer = self._answers.get(event["response_id"] or "")
        if answer is not None:
            answer.heard = event["heard"]
            answer.timeline = event["timeline"]
            answer.timed = True

    def _refuse(self, error: WireEvent) -> None:
        if self._refusal is None and error.get("event_id") in self._requests:
            self._refusal = error["message"]
