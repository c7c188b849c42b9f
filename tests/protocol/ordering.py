"""The legal orders of server events, as a machine that is shown one event after another.

It knows nothing of how the server works: only what a client may conclude from what came before.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]

BYTES_PER_MS = {"audio/pcm": 48, "audio/pcmu": 8, "audio/pcma": 8}
TRANSCRIPTION = "conversation.item.input_audio_transcription"

# The life of a response: each step may follow the ones named after it.
_DELTAS = ("content_part.added", "delta")
_AUDIO_STEPS = {
    "created": (),
    "output_item.added": ("created",),
    "item.added": ("output_item.added",),
    "content_part.added": ("item.added",),
    "delta": _DELTAS,
    "output_audio.done": _DELTAS,
    "output_audio_transcript.done": ("output_audio.done",),
    "content_part.done": ("output_audio_transcript.done",),
    "output_item.done": ("content_part.done",),
    "item.done": ("output_item.done",),
    "done": ("item.done",),
}
_TEXT_STEPS = {
    **{step: before for step, before in _AUDIO_STEPS.items() if "audio" not in step},
    "output_text.done": _DELTAS,
    "content_part.done": ("output_text.done",),
}


class OutOfOrder(AssertionError):
    """An event came where no client could expect it."""


@dataclass
class _Response:
    response_id: str
    spoken: bool
    step: str = "created"
    item_id: str | None = None
    text: str = ""
    sound_bytes: int = 0
    bytes_per_ms: int = 48
    item: Event | None = None


@dataclass
class _Item:
    spoken_by_user: bool
    done: bool = False
    transcript: str = ""
    transcribed: bool = False


@dataclass
class Ordering:
    """The client's picture of one session."""

    session: Event | None = None
    seen: int = 0
    _event_ids: set[str] = field(default_factory=set)
    _items: dict[str, _Item] = field(default_factory=dict)
    _deleted: set[str] = field(default_factory=set)
    _speaking: str | None = None
    _speech_start_ms: int = 0
    _committed: set[str] = field(default_factory=set)
    _response: _Response | None = None
    _response_ids: set[str] = field(default_factory=set)
    _cleared_generation: int = -1
    _stable: dict[str, str] = field(default_factory=dict)

    @property
    def responding(self) -> bool:
        """Whether a response is open."""
        return self._response is not None

    @property
    def item_ids(self) -> list[str]:
        """The items of the conversation, as far as the client knows."""
        return [item_id for item_id in self._items if item_id not in self._deleted]

    def feed(self, event: Event) -> None:
        """Take the next event; raise `OutOfOrder` if it is not legal here."""
        name, event_id = event["type"], event["event_id"]
        self._expect(event_id not in self._event_ids, f"event_id {event_id} was used before")
        self._event_ids.add(event_id)
        self.seen += 1
        first = name == "session.created"
        self._expect((self.session is None) == first, f"{name} as event number {self.seen}")
        if name.startswith("response."):
            self._on_response(name, event)
        elif name.startswith("conversation.item."):
            self._on_item(name, event)
        elif name.startswith("input_audio_buffer."):
            self._on_input(name.removeprefix("input_audio_buffer."), event)
        elif name in ("session.created", "session.updated"):
            self._on_session(event["session"])
        elif name == "x.playback.clear":
            self._cleared_generation = max(self._cleared_generation, event["generation"])
        elif name == "x.turn.discarded":
            if self._speaking == event["item_id"]:
                self._speaking = None
        elif name == "x.transcript.partial":
            self._on_partial(event)
        else:
            known = name in ("error", "x.turn.timeline", "x.stage.failed")
            self._expect(known, f"{name} is not an event of ours")

    def finish(self) -> None:
        """Raise `OutOfOrder` if the session could not end here."""
        self._expect(self._response is None, "a response never ended")
        for item_id, item in self._items.items():
            self._expect(item.done, f"{item_id} was never done")

    def _on_session(self, session: Event) -> None:
        """A new turn detection starts afresh: speech that was going on is forgotten."""
        before = self.session and self.session["audio"]["input"]["turn_detection"]
        if before != session["audio"]["input"]["turn_detection"]:
            self._speaking = None
        self.session = session

    # -- input --------------------------------------------------------------------------

    def _on_input(self, name: str, event: Event) -> None:
        item_id = event.get("item_id")
        if name == "speech_started":
            self._expect(self._speaking is None, "speech started twice")
            self._expect_new(item_id)
            self._speaking, self._speech_start_ms = item_id, event["audio_start_ms"]
        elif name == "speech_stopped":
            self._expect(self._speaking == item_id, "speech stopped that had not started")
            self._expect(
                event["audio_end_ms"] >= self._speech_start_ms, "speech ended before it began"
            )
            self._speaking = None
        elif name == "committed":
            self._expect(self._speaking != item_id, "committed while the speech went on")
            self._expect_new(item_id)
            self._expect_place(event)
            self._committed.add(event["item_id"])
        elif name == "timeout_triggered":
            self._expect(self._speaking is None, "a timeout while the user spoke")
            self._expect(self._response is None, "a timeout while an answer was made")
        elif name == "cleared":
            self._speaking = None
        else:
            self._expect(False, f"input_audio_buffer.{name} is not an event of ours")

    def _on_partial(self, event: Event) -> None:
        """Stable words are never taken back; tentative ones may be."""
        self._expect(self._speaking == event["item_id"], "words of somebody who does not speak")
        grown = event["stable"].startswith(self._stable.get(event["item_id"], ""))
        self._expect(grown, "stable words changed")
        self._stable[event["item_id"]] = event["stable"]

    # -- items --------------------------------------------------------------------------

    def _on_item(self, name: str, event: Event) -> None:
        if name.startswith(TRANSCRIPTION):
            self._on_transcription(name.removeprefix(f"{TRANSCRIPTION}."), event)
            return
        item_id = event.get("item_id") or event["item"]["id"]
        match name.removeprefix("conversation.item."):
            case "added":
                self._on_item_added(item_id, event)
            case "done":
                self._expect_item(item_id)
                self._expect(not self._items[item_id].done, f"{item_id} was done twice")
                self._items[item_id].done = True
                if self._response is not None and item_id == self._response.item_id:
                    self._step("item.done")
                    self._expect(event["item"] == self._response.item, "the item changed its mind")
            case "deleted":
                self._expect_item(item_id)
                self._deleted.add(item_id)
            case "retrieved" | "truncated":
                self._expect_item(item_id)
            case other:
                self._expect(False, f"conversation.item.{other} is not an event of ours")

    def _on_item_added(self, item_id: str, event: Event) -> None:
        item = event["item"]
        self._expect_new(item_id, committed=True)
        self._expect_place(event)
        spoken = any(part["type"] == "input_audio" for part in item["content"])
        if spoken:
            self._expect(item_id in self._committed, f"{item_id} was spoken but not committed")
        if item["role"] == "assistant" and item["status"] == "in_progress":
            self._expect(self._response is not None, "an answer's item without its response")
            assert self._response is not None
            self._expect(self._response.item_id == item_id, "an item of another response")
            self._step("item.added")
        self._items[item_id] = _Item(spoken_by_user=spoken)

    def _on_transcription(self, name: str, event: Event) -> None:
        self._expect_item(event["item_id"])
        item = self._items[event["item_id"]]
        self._expect(item.done, "a transcript of an item that is not whole")
        self._expect(self._transcribes, "a transcript that nobody asked for")
        self._expect(item.spoken_by_user, "a transcript of what was not spoken")
        self._expect(not item.transcribed, "more of a transcript that was complete")
        if name == "delta":
            item.transcript += event["delta"]
            return
        item.transcribed = True
        if name == "completed":
            same = item.transcript == event["transcript"]
            self._expect(same, "the transcript is not what its deltas say")

    # -- responses ----------------------------------------------------------------------

    def _on_response(self, name: str, event: Event) -> None:
        step = name.removeprefix("response.")
        if step == "created":
            self._on_created(event["response"])
            return
        response = self._response
        self._expect(response is not None, f"{name} without a response")
        assert response is not None
        response_id = event.get("response_id") or event["response"]["id"]
        self._expect(response_id == response.response_id, f"{name} of another response")
        if "item_id" in event:
            self._expect(event["item_id"] == response.item_id, f"{name} of another item")
        if step.endswith(".delta"):
            self._on_delta(step.removesuffix(".delta"), event, response)
            return
        self._step(step)
        match step:
            case "output_item.added":
                response.item_id = event["item"]["id"]
                self._expect(event["item"]["content"] == [], "an item with content before it began")
            case "output_audio_transcript.done":
                self._expect(event["transcript"] == response.text, "not what the deltas say")
            case "output_text.done":
                self._expect(event["text"] == response.text, "not what the deltas say")
            case "content_part.done":
                part = event["part"]
                said = part.get("transcript") if response.spoken else part.get("text")
                self._expect(said == response.text, "the part is not what its deltas say")
            case "output_item.done":
                response.item = event["item"]
            case "done":
                self._on_done(event["response"], response)

    def _on_created(self, created: Event) -> None:
        self._expect(self._response is None, "two responses at a time")
        self._expect(created["id"] not in self._response_ids, "a response id was used twice")
        self._expect(created["status"] == "in_progress", "a response that begins ended")
        pending = [
            item_id
            for item_id, item in self._items.items()
            if item.spoken_by_user and not item.transcribed
        ]
        self._expect(not (pending and self._transcribes), f"an answer before the words: {pending}")
        self._response_ids.add(created["id"])
        spoken = created["output_modalities"] == ["audio"]
        audio = created["audio"]["output"]["format"]["type"] if spoken else "audio/pcm"
        self._response = _Response(created["id"], spoken, bytes_per_ms=BYTES_PER_MS[audio])

    def _on_delta(self, kind: str, event: Event, response: _Response) -> None:
        kinds = ("output_audio", "output_audio_transcript") if response.spoken else ("output_text",)
        self._expect(kind in kinds, f"a delta of {kind} in a response of another modality")
        self._step("delta")
        if kind != "output_audio":
            response.text += event["delta"]
            return
        if "x_generation" in event:
            self._expect(event["x_generation"] > self._cleared_generation, "voided sound was sent")
            expected_ms = response.sound_bytes / response.bytes_per_ms
            self._expect(abs(event["x_start_ms"] - expected_ms) < 0.01, "sound is out of place")
        response.sound_bytes += len(base64.b64decode(event["delta"], validate=True))

    def _on_done(self, done: Event, response: _Response) -> None:
        self._expect(done["output"] == [response.item], "the response changed its mind")
        status, item_status = done["status"], done["output"][0]["status"]
        ends = ("completed", "cancelled", "incomplete", "failed")
        self._expect(status in ends, f"a response that ended as {status}")
        whole = "completed" if status == "completed" else "incomplete"
        self._expect(item_status == whole, f"a {status} response with a {item_status} item")
        details = done["status_details"]
        self._expect((details is None) == (status == "completed"), "no word on why it ended")
        self._expect(done["usage"] is not None, "no usage")
        self._response = None

    def _step(self, step: str) -> None:
        response = self._response
        assert response is not None
        steps = _AUDIO_STEPS if response.spoken else _TEXT_STEPS
        self._expect(step in steps, f"{step} in a response of another modality")
        self._expect(response.step in steps[step], f"{step} after {response.step}")
        response.step = step

    # -- small things -------------------------------------------------------------------

    @property
    def _transcribes(self) -> bool:
        assert self.session is not None
        return self.session["audio"]["input"]["transcription"] is not None

    def _expect_new(self, item_id: str | None, *, committed: bool = False) -> None:
        used = item_id in self._items or (item_id in self._committed and not committed)
        self._expect(not used, f"{item_id} is the name of another item")

    def _expect_item(self, item_id: str) -> None:
        here = item_id in self._items and item_id not in self._deleted
        self._expect(here, f"there is no item {item_id}")

    def _expect_place(self, event: Event) -> None:
        previous = event["previous_item_id"]
        if previous is not None:
            self._expect_item(previous)

    def _expect(self, holds: bool, complaint: str) -> None:
        if not holds:
            raise OutOfOrder(complaint)
