"""Talking to the assistant from Python: one `Dialogue`, whether it runs here or on a server.

async with Assistant.open() as assistant, assistant.dialogue() as dialogue:
    reply = await dialogue.ask("What is the capital of France?")

async with connect("ws://127.0.0.1:8765") as dialogue:
    turn = await dialogue.listen(pcm_chunks)
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self
from weakref import WeakSet

from assistant.config import Config, load_config
from assistant.errors import (
    AnswerTimeout,
    AssistantError,
    DialogueEnded,
    ServerNotReady,
    UsageError,
)
from assistant.event_stream import EventStream
from assistant.replies import Reply, Turn, TurnCollector
from assistant.transport import OPEN_TIMEOUT_S, Transport, open_local, open_websocket
from audio.pcm import Encoding, PcmDecoder, PcmEncoder

if TYPE_CHECKING:
    from assistant.stages import StageProgress, Stages

__all__ = ["Assistant", "Dialogue", "Reply", "Turn", "connect"]

Pcm = bytes | bytearray | memoryview
PcmChunks = Pcm | Iterable[Pcm] | AsyncIterable[Pcm]

INPUT_RATE_HZ = 24_000
ANSWER_TIMEOUT_S = 60.0
"""How long an answer may take, from the moment that everything was said."""
APPEND_MS = 200
"""Audio is sent in pieces of at most this length."""
SILENCE_STEP_MS = 100

_BYTES_PER_MS = INPUT_RATE_HZ * 2 // 1000
_FILE_HEADS = (b"RIFF", b"fLaC", b"OggS")
"""What WAV, FLAC and Ogg files begin with; as sound it would be a crack."""


class Assistant:
    """The whole assistant in this process: its models loaded once, for any number of dialogues."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        config: Config | Path | str | None = None,
        on_progress: Callable[[StageProgress], None] | None = None,
    ) -> AsyncIterator[Self]:
        """Load and warm the models of a configuration (or of its file; or the default ones).

        Raises `ConfigError`, `ModelMissing`, or the typed error of the stage that cannot be loaded.
        """
        if not isinstance(config, Config):
            config = load_config(config)
        from assistant.stages import open_stages  # brings the models' libraries: slow to import

        async with open_stages(config, on_progress) as stages:
            yield cls(stages)

    def dialogue(
        self, *, instructions: str | None = None, playback_lead_ms: int | None = None
    ) -> AbstractAsyncContextManager[Dialogue]:
        """Open a conversation of its own; see `Dialogue` for the arguments."""
        return _dialogue(open_local(self._stages), instructions, playback_lead_ms)


def connect(
    url: str,
    api_key: str | None = None,
    *,
    instructions: str | None = None,
    playback_lead_ms: int | None = None,
) -> AbstractAsyncContextManager[Dialogue]:
    """Open a conversation with a server, such as `ws://127.0.0.1:8765`; closed, it is forgotten.

    Raises `ServerUnreachable`, `AccessDenied` or `ServerNotReady`.
    """
    return _dialogue(open_websocket(url, api_key), instructions, playback_lead_ms)


@asynccontextmanager
async def _dialogue(
    opening: AbstractAsyncContextManager[Transport],
    instructions: str | None,
    playback_lead_ms: int | None,
) -> AsyncIterator[Dialogue]:
    async with (
        opening as transport,
        Dialogue(
            transport, instructions=instructions, playback_lead_ms=playback_lead_ms
        ) as dialogue,
    ):
        yield dialogue


class Dialogue:
    """A conversation, one turn after the other.

    `instructions` replace the configured ones.  Without `playback_lead_ms` answers come as fast as
    they are made, and what has come counts as heard.  With it they come that much ahead of a
    loudspeaker, whose position is to be reported with `played`.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        instructions: str | None = None,
        playback_lead_ms: int | None = None,
    ) -> None:
        self._transport = transport
        self._instructions = instructions
        self._playback_lead_ms = playback_lead_ms
        self._one_turn = asyncio.Lock()
        self._turn = TurnCollector()
        self._news = asyncio.Event()
        self._streams: WeakSet[EventStream] = WeakSet()
        self._ended: AssistantError | None = None
        self._requests = 0
        self._updates_sent = 0
        self._updates_seen = 0

    async def __aenter__(self) -> Self:
        self._reader = asyncio.create_task(self._read(), name="dialogue reader")
        try:
            await self._introduce()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop reading, and tell whoever waits.  (Who opened the transport closes it.)"""
        self._reader.cancel()
        with suppress(asyncio.CancelledError):
            await self._reader
        self._end(DialogueEnded("This dialogue is closed: open a new one."), expected=True)

    # -- turns --------------------------------------------------------------------------

    async def ask(self, text: str, *, timeout_s: float = ANSWER_TIMEOUT_S) -> Reply:
        """Say something in writing and return the answer, whole (or cut by `cancel`).

        Raises `AnswerTimeout`, `AnswerFailed`, `RequestRefused`, or `DialogueEnded`.
        """
        async with self._taking_turns() as turn, _deadline(timeout_s):
            content = [{"type": "input_text", "text": text}]
            item = {"type": "message", "role": "user", "content": content}
            await self._request("conversation.item.create", item=item)
            await self._request("response.create")
            await self._until(lambda: turn.refused or (turn.answers_begun > 0 and turn.settled))
            return turn.reply()

    async def listen(
        self,
        pcm_chunks: PcmChunks,
        sample_rate_hz: int = INPUT_RATE_HZ,
        *,
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> Turn:
        """Say something in sound and return what was understood, and the answer, whole.

        `pcm_chunks` are PCM16, mono, cut anywhere (or not at all: one `bytes` is a chunk); they are
        sent as they come, and then silence until the turn is over.  Sound without words gives a
        `Turn` with an empty transcript and the reason.  When the speaker pauses long enough to be
        answered, and then goes on, the transcript is everything said and the answer the last one.
        `timeout_s` counts from the end of the sound.  Raises as `ask` does, and `UsageError` for
        what is not PCM16 in bytes.
        """
        async with self._taking_turns() as turn:
            async for chunk in _as_wire_audio(pcm_chunks, sample_rate_hz):
                await self.append(chunk)
            async with _deadline(timeout_s):
                await self._fall_silent(turn)
                while not (turn.refused or turn.over):
                    await self._until(lambda: turn.refused or turn.settled)
                    await self._synchronise()  # an end may be the beginning of something else
            return turn.turn()

    async def cancel(self) -> None:
        """Stop the answer being made or played; a waiting `ask` or `listen` returns it cut off."""
        await self._send("response.cancel")

    # -- for those who have a microphone and a loudspeaker ------------------------------------

    async def append(self, pcm: Pcm) -> None:
        """Send the next sound of the microphone: PCM16, mono, 24 kHz.

        Raises `UsageError` for what is not bytes.
        """
        audio = base64.b64encode(_as_bytes(pcm)).decode()
        await self._request("input_audio_buffer.append", audio=audio)

    async def played(self, response_id: str, position_ms: float) -> None:
        """Report how far the loudspeaker is in an answer's audio, from its beginning."""
        self._turn.played(response_id, position_ms)
        await self._send("x.playback", response_id=response_id, position_ms=position_ms)

    def events(self) -> EventStream:
        """Return every event from now on, as the server sends it, until the dialogue is closed.

        Iterating raises `DialogueEnded` when the server ends it, and `EventsMissed` when too many
        were left unread.
        """
        stream = EventStream()
        if self._ended is not None:
            stream.end(self._ended)
        self._streams.add(stream)
        return stream

    # -- within -------------------------------------------------------------------------

    async def _introduce(self) -> None:
        """Ask for the extension, without which a turn's end cannot be told."""
        session: dict[str, object] = {
            "x": {
                "events": True,
                "acknowledge_playback": self._playback_lead_ms is not None,
                "playback_lead_ms": self._playback_lead_ms,
            }
        }
        if self._instructions is not None:
            session["instructions"] = self._instructions
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                await self._synchronise(session)
        except TimeoutError:
            raise ServerNotReady("The server accepted the dialogue but does not answer.") from None
        self._turn.check_accepted()

    @asynccontextmanager
    async def _taking_turns(self) -> AsyncIterator[TurnCollector]:
        """Follow one turn at a time; one that is given up is cancelled, and leaves nothing."""
        async with self._one_turn:
            self._turn = TurnCollector()
            try:
                yield self._turn
            except BaseException:
                with suppress(AssistantError):
                    await self._send("input_audio_buffer.clear")
                    await self._send("response.cancel")
                raise

    async def _fall_silent(self, turn: TurnCollector) -> None:
        """Send silence, as fast as it would be heard, until the server takes it for an end."""
        clock = asyncio.get_running_loop()
        begin_s, steps = clock.time(), 0
        while steps == 0 or (turn.speaking and not turn.refused):
            await self.append(bytes(SILENCE_STEP_MS * _BYTES_PER_MS))
            steps += 1
            await asyncio.sleep(begin_s + steps * SILENCE_STEP_MS / 1000 - clock.time())
            if steps == 1:  # by now it is known whether there was any speech
                await self._synchronise()

    async def _synchronise(self, session: Mapping[str, object] | None = None) -> None:
        """Return once the server has taken in all that was sent so far."""
        self._updates_sent += 1
        number = self._updates_sent
        await self._request("session.update", session={"type": "realtime", **(session or {})})
        await self._until(lambda: self._turn.refused or self._updates_seen >= number)

    async def _request(self, kind: str, **fields: object) -> None:
        """Send something without which the turn cannot go on."""
        self._requests += 1
        request_id = f"request_{self._requests}"
        self._turn.expect(request_id)
        await self._send(kind, event_id=request_id, **fields)

    async def _send(self, kind: str, **fields: object) -> None:
        if self._ended is not None:
            raise self._ended
        await self._transport.send({"type": kind, **fields})

    async def _until(self, met: Callable[[], bool]) -> None:
        while not met():
            if self._ended is not None:
                raise self._ended
            self._news.clear()
            await self._news.wait()

    async def _read(self) -> None:
        try:
            while True:
                event = await self._transport.receive()
                if event["type"] == "session.updated":
                    self._updates_seen += 1
                self._turn.feed(event)
                for stream in self._streams:
                    stream.put(event)
                self._news.set()
        except AssistantError as error:
            self._end(error)

    def _end(self, error: AssistantError, expected: bool = False) -> None:
        self._ended = self._ended or error
        for stream in self._streams:
            stream.end(None if expected else error)
        self._news.set()


@asynccontextmanager
async def _deadline(timeout_s: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise AnswerTimeout(
            f"No whole answer came within {timeout_s:g} s, and it was cancelled: ask again, or "
            "give it more time (timeout_s)."
        ) from None


async def _as_wire_audio(pcm_chunks: PcmChunks, sample_rate_hz: int) -> AsyncIterator[bytes]:
    """Cut into pieces for the wire, at its rate, whole samples each."""
    decoder = PcmDecoder(Encoding.PCM16, sample_rate_hz, INPUT_RATE_HZ)
    encoder = PcmEncoder(Encoding.PCM16, INPUT_RATE_HZ, INPUT_RATE_HZ)
    piece_bytes = 2 * (sample_rate_hz * APPEND_MS // 1000)
    async for chunk in _asynchronous(pcm_chunks):
        for start in range(0, len(chunk), piece_bytes):
            samples = decoder.feed(chunk[start : start + piece_bytes])
            if len(samples):
                yield encoder.feed(samples)
    if len(tail := decoder.flush()):
        yield encoder.feed(tail)


async def _asynchronous(chunks: PcmChunks) -> AsyncIterator[bytes]:
    """Yield the chunks as bytes; raise `UsageError` at the first that cannot be PCM16."""
    first = True
    async for chunk in _each(chunks):
        pcm = _as_bytes(chunk)
        if first and pcm.startswith(_FILE_HEADS):
            raise UsageError(
                "These are the bytes of a sound file, not bare PCM16: open it with "
                "audio.pcm.read_audio, and pass to_pcm16(samples).tobytes() and the rate."
            )
        first = False
        yield pcm


async def _each(chunks: PcmChunks) -> AsyncIterator[Pcm]:
    if isinstance(chunks, bytes | bytearray | memoryview):
        yield chunks
    elif isinstance(chunks, AsyncIterable):
        async for chunk in chunks:
            yield chunk
    elif isinstance(chunks, Iterable):
        for chunk in chunks:
            yield chunk
    else:
        raise _not_pcm(chunks)


def _as_bytes(chunk: Pcm) -> bytes:
    if isinstance(chunk, bytes):
        return chunk
    if isinstance(chunk, bytearray | memoryview):
        return bytes(chunk)
    raise _not_pcm(chunk)


def _not_pcm(given: object) -> UsageError:
    return UsageError(
        f"Sound is passed as PCM16 in bytes, or as an iterable of such; this is a "
        f"{type(given).__name__}. From float samples, audio.pcm.to_pcm16(samples).tobytes() makes "
        "it; from a file, audio.pcm.read_audio the samples."
    )
