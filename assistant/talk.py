"""A conversation through this machine's own microphone and loudspeaker.

The devices run on threads of the audio library, which must never wait: they only move bytes.
"""

from __future__ import annotations

import asyncio
import base64
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from assistant.client import INPUT_RATE_HZ, Dialogue
from assistant.errors import AudioDeviceError
from assistant.event_stream import EventStream
from assistant.replies import OUTPUT_RATE_HZ

LEAD_MS = 400
"""How far ahead of the loudspeaker answers are sent: what an interruption throws away."""
BLOCK_MS = 20
ACKNOWLEDGE_MS = 100
MICROPHONE_BACKLOG = 500
"""Blocks (10 s) that may wait to be sent; older ones are dropped, as nobody wants to hear them."""

_BYTES_PER_MS = OUTPUT_RATE_HZ * 2 // 1000


@dataclass(frozen=True, slots=True)
class Piece:
    """Sound of an answer, and the generation that an interruption takes it back by."""

    response_id: str
    generation: int
    pcm: bytes


class Loudspeaker:
    """The sound waiting to be played, and how far each answer has come. Safe across threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Piece] = deque()
        self._played_bytes: dict[str, int] = {}
        self._cleared_through = -1

    def add(self, piece: Piece) -> None:
        """Queue the next sound of an answer, unless it was taken back before it came."""
        with self._lock:
            if piece.generation > self._cleared_through:
                self._played_bytes.setdefault(piece.response_id, 0)
                self._waiting.append(piece)

    def clear_through(self, generation: int) -> None:
        """Drop at once what belongs to `generation` or an older one."""
        with self._lock:
            self._cleared_through = max(self._cleared_through, generation)
            kept = [piece for piece in self._waiting if piece.generation > self._cleared_through]
            self._waiting = deque(kept)

    def render(self, size: int) -> bytes:
        """Return the next `size` bytes for the device; silence where nothing waits."""
        sound = bytearray()
        with self._lock:
            while self._waiting and len(sound) < size:
                piece = self._waiting.popleft()
                taken, rest = piece.pcm[: size - len(sound)], piece.pcm[size - len(sound) :]
                if rest:
                    self._waiting.appendleft(replace(piece, pcm=rest))
                self._played_bytes[piece.response_id] += len(taken)
                sound += taken
        return bytes(sound.ljust(size, b"\0"))

    def take_positions_ms(self) -> dict[str, float]:
        """Return how much of each answer was played; one that is over is told for the last time.

        Answers come one after the other: all but the last are over once nothing of them waits.
        """
        with self._lock:
            positions = {name: n / _BYTES_PER_MS for name, n in self._played_bytes.items()}
            unfinished = {piece.response_id for piece in self._waiting}
            unfinished |= set(list(self._played_bytes)[-1:])
            self._played_bytes = {
                name: n for name, n in self._played_bytes.items() if name in unfinished
            }
            return positions


@dataclass(frozen=True, slots=True)
class Devices:
    """What the microphone hears, in blocks of PCM16 at 24 kHz, and what the loudspeaker says."""

    microphone: asyncio.Queue[bytes] = field(
        default_factory=lambda: asyncio.Queue(MICROPHONE_BACKLOG)
    )
    loudspeaker: Loudspeaker = field(default_factory=Loudspeaker)

    def hear(self, pcm: bytes) -> None:
        """Take a block of the microphone; the oldest makes room if nobody takes them."""
        if self.microphone.full():
            self.microphone.get_nowait()
        self.microphone.put_nowait(pcm)

    def forget_heard(self) -> None:
        """Drop what the microphone heard so far: nobody had begun to listen."""
        while not self.microphone.empty():
            self.microphone.get_nowait()


@contextmanager
def open_devices() -> Iterator[Devices]:
    """Open the default microphone and loudspeaker; to be called on the event loop.

    Raises `AudioDeviceError` when there are none, or the `sounddevice` library is missing.
    """
    try:
        import sounddevice
    except ImportError:
        raise AudioDeviceError(
            "Talking here needs the sounddevice library: pip install sounddevice"
        ) from None
    except OSError as error:
        raise AudioDeviceError(
            f"The sounddevice library cannot find PortAudio ({error}): install it, "
            "on Debian with apt install libportaudio2"
        ) from None
    loop = asyncio.get_running_loop()
    devices = Devices()

    # The audio library hands over buffers of its own kind, times and flags; only bytes are used.
    def on_input(block: bytes, frames: int, time: object, status: object) -> None:
        loop.call_soon_threadsafe(devices.hear, bytes(block))

    def on_output(block: bytearray, frames: int, time: object, status: object) -> None:
        block[:] = devices.loudspeaker.render(len(block))

    shape = {"channels": 1, "dtype": "int16"}
    block_size = INPUT_RATE_HZ * BLOCK_MS // 1000
    try:
        with (
            sounddevice.RawInputStream(INPUT_RATE_HZ, block_size, callback=on_input, **shape),
            sounddevice.RawOutputStream(OUTPUT_RATE_HZ, block_size, callback=on_output, **shape),
        ):
            yield devices
    except sounddevice.PortAudioError as error:
        raise AudioDeviceError(
            f"The microphone or the loudspeaker cannot be used ({error}): see what there is with "
            "python -m sounddevice, or use the web page of `assistant serve`."
        ) from error


async def converse(dialogue: Dialogue, devices: Devices, show: Callable[[str], None]) -> None:
    """Let the devices talk to the dialogue until it ends; `show` gets what was said, by line.

    What the microphone heard before is not sent.  Raises `DialogueEnded` when the server ends it.
    """
    devices.forget_heard()
    events = dialogue.events()
    parts = [
        asyncio.create_task(_hear(dialogue, devices)),
        asyncio.create_task(_acknowledge(dialogue, devices.loudspeaker)),
        asyncio.create_task(_speak(events, devices.loudspeaker, show)),
    ]
    try:
        over, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        for part in over:
            part.result()
    finally:
        for part in parts:
            part.cancel()
        await asyncio.gather(*parts, return_exceptions=True)


async def _hear(dialogue: Dialogue, devices: Devices) -> None:
    while True:
        await dialogue.append(await devices.microphone.get())


async def _acknowledge(dialogue: Dialogue, loudspeaker: Loudspeaker) -> None:
    acknowledged: dict[str, float] = {}
    while True:
        await asyncio.sleep(ACKNOWLEDGE_MS / 1000)
        positions_ms = loudspeaker.take_positions_ms()
        for response_id, position_ms in positions_ms.items():
            if acknowledged.get(response_id) != position_ms:
                await dialogue.played(response_id, position_ms)
        acknowledged = positions_ms


async def _speak(
    events: EventStream, loudspeaker: Loudspeaker, show: Callable[[str], None]
) -> None:
    async for event in events:
        match event["type"]:
            case "response.output_audio.delta":
                pcm = base64.b64decode(event["delta"])
                loudspeaker.add(Piece(event["response_id"], event["x_generation"], pcm))
            case "x.playback.clear":
                loudspeaker.clear_through(event["generation"])
            case "conversation.item.input_audio_transcription.completed":
                show(f"You: {event['transcript']}")
            case "response.output_audio_transcript.done":
                show(f"Assistant: {event['transcript']}")
