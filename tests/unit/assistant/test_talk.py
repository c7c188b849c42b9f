"""A conversation through devices: what is played, what counts as played, what is sent."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assistant.client import Dialogue
from assistant.errors import AudioDeviceError, DialogueEnded
from assistant.talk import (
    MICROPHONE_BACKLOG,
    Devices,
    Loudspeaker,
    Piece,
    converse,
    open_devices,
)
from tests.unit.assistant.scripted_server import ANSWER_AUDIO, ScriptedServer

MS = 48  # bytes
VOICE = b"\x00\x10" * 10 * MS
SILENCE = bytes(20 * MS)
PATIENCE_S = 20


def test_the_loudspeaker_plays_what_waits_and_then_silence() -> None:
    loudspeaker = Loudspeaker()
    loudspeaker.add(Piece("a", 0, b"\x01" * 10 * MS))
    assert loudspeaker.render(15 * MS) == b"\x01" * 10 * MS + bytes(5 * MS)


@given(
    pieces=st.lists(st.integers(1, 50), max_size=10),
    blocks=st.lists(st.integers(1, 40), max_size=20),
)
def test_sound_is_played_once_in_order_whatever_the_blocks(
    pieces: list[int], blocks: list[int]
) -> None:
    sound = bytes(1 + number % 255 for number in range(2 * sum(pieces)))
    loudspeaker, start = Loudspeaker(), 0
    for size in pieces:
        loudspeaker.add(Piece("a", 0, sound[start : start + 2 * size]))
        start += 2 * size
    played = b"".join(loudspeaker.render(2 * size) for size in blocks)
    assert played.rstrip(b"\0") == sound[: len(played)]
    position_ms = loudspeaker.take_positions_ms().get("a", 0.0)
    assert round(position_ms * MS) == min(len(played), len(sound))


def test_silence_does_not_count_as_played() -> None:
    loudspeaker = Loudspeaker()
    loudspeaker.add(Piece("a", 0, b"\x01" * 10 * MS))
    loudspeaker.render(100 * MS)
    assert loudspeaker.take_positions_ms() == {"a": 10.0}


def test_each_answer_has_a_position_of_its_own() -> None:
    loudspeaker = Loudspeaker()
    loudspeaker.add(Piece("a", 0, b"\x01" * 10 * MS))
    loudspeaker.add(Piece("b", 0, b"\x02" * 10 * MS))
    loudspeaker.render(12 * MS)
    assert loudspeaker.take_positions_ms() == {"a": 10.0, "b": 2.0}


def test_cleared_the_loudspeaker_is_silent_at_once_and_stays_where_it_was() -> None:
    loudspeaker = Loudspeaker()
    loudspeaker.add(Piece("a", 0, b"\x01" * 10 * MS))
    loudspeaker.render(4 * MS)
    loudspeaker.clear_through(0)
    assert not any(loudspeaker.render(4 * MS))
    assert loudspeaker.take_positions_ms() == {"a": 4.0}


def test_an_interruption_takes_back_its_generation_and_older_ones_and_no_newer() -> None:
    loudspeaker = Loudspeaker()
    for generation, name in enumerate("abc"):
        loudspeaker.add(Piece(name, generation, bytes([1 + generation]) * MS))
    loudspeaker.clear_through(1)
    assert loudspeaker.render(2 * MS) == b"\x03" * MS + bytes(MS)


def test_sound_that_comes_after_it_was_taken_back_is_not_played() -> None:
    loudspeaker = Loudspeaker()
    loudspeaker.clear_through(1)
    loudspeaker.add(Piece("a", 1, b"\x01" * MS))
    assert not any(loudspeaker.render(MS))
    loudspeaker.add(Piece("b", 2, b"\x02" * MS))
    assert loudspeaker.render(MS) == b"\x02" * MS


def test_a_past_answer_is_told_to_its_end_and_then_forgotten() -> None:
    loudspeaker = Loudspeaker()
    for generation in range(3):
        loudspeaker.add(Piece(f"answer {generation}", generation, b"\x01" * 10 * MS))
    loudspeaker.render(15 * MS)
    assert loudspeaker.take_positions_ms() == {"answer 0": 10.0, "answer 1": 5.0, "answer 2": 0.0}
    loudspeaker.render(100 * MS)
    assert loudspeaker.take_positions_ms() == {"answer 1": 10.0, "answer 2": 10.0}
    assert loudspeaker.take_positions_ms() == {"answer 2": 10.0}


def test_the_last_answer_goes_on_where_it_ran_dry() -> None:
    loudspeaker = Loudspeaker()
    for played_ms in (10.0, 20.0):
        loudspeaker.add(Piece("a", 0, b"\x01" * 10 * MS))
        loudspeaker.render(50 * MS)
        assert loudspeaker.take_positions_ms() == {"a": played_ms}


def test_what_was_said_before_the_conversation_began_is_not_sent() -> None:
    async def talk() -> None:
        server, devices = ScriptedServer(), Devices()
        for _ in range(10):  # while the models were loading
            devices.hear(VOICE)
        async with conversation(server, devices, []):
            devices.hear(SILENCE)
            await server.receives("input_audio_buffer.append")
            assert server.heard == SILENCE

    asyncio.run(talk())


def test_a_microphone_that_nobody_listens_to_drops_the_oldest() -> None:
    async def hear() -> None:
        devices = Devices()
        for number in range(MICROPHONE_BACKLOG + 1):
            devices.hear(number.to_bytes(2, "big"))
        assert devices.microphone.qsize() == MICROPHONE_BACKLOG
        assert devices.microphone.get_nowait() == (1).to_bytes(2, "big")

    asyncio.run(hear())


class NotingLoudspeaker(Loudspeaker):
    """Tells when something happens to it."""

    def __init__(self) -> None:
        super().__init__()
        self.added = asyncio.Event()
        self.cleared = asyncio.Event()

    def add(self, piece: Piece) -> None:
        super().add(piece)
        self.added.set()

    def clear_through(self, generation: int) -> None:
        super().clear_through(generation)
        self.cleared.set()


@asynccontextmanager
async def conversation(
    server: ScriptedServer, devices: Devices, shown: list[str]
) -> AsyncIterator[None]:
    async with asyncio.timeout(PATIENCE_S), Dialogue(server, playback_lead_ms=400) as dialogue:
        talking = asyncio.create_task(converse(dialogue, devices, shown.append))
        await asyncio.sleep(0)  # what is heard before it begins is not sent
        yield
        talking.cancel()


def test_what_the_microphone_hears_is_answered_by_the_loudspeaker() -> None:
    async def talk() -> None:
        loudspeaker = NotingLoudspeaker()
        server, devices, shown = ScriptedServer(), Devices(loudspeaker=loudspeaker), list[str]()
        async with conversation(server, devices, shown):
            devices.hear(VOICE)
            devices.hear(SILENCE)
            await loudspeaker.added.wait()
            assert loudspeaker.render(len(ANSWER_AUDIO)) == ANSWER_AUDIO
            assert (await server.receives("x.playback"))["position_ms"] == 100.0
        assert shown == ["You: hello"]

    asyncio.run(talk())


def test_an_interrupted_answer_falls_silent() -> None:
    async def talk() -> None:
        loudspeaker = NotingLoudspeaker()
        server, devices = ScriptedServer(), Devices(loudspeaker=loudspeaker)
        async with conversation(server, devices, []):
            devices.hear(VOICE)
            devices.hear(SILENCE)
            await loudspeaker.added.wait()
            server.emit({"type": "x.playback.clear", "response_id": "answer_2", "generation": 2})
            await loudspeaker.cleared.wait()
            assert not any(loudspeaker.render(len(ANSWER_AUDIO)))

    asyncio.run(talk())


class FakeStream:
    """A stream of a sound library whose buffers the test hands over itself."""

    opened: ClassVar[list[FakeStream]] = []

    def __init__(self, rate_hz: int, block_size: int, **options: Any) -> None:
        self.rate_hz, self.block_size, self.options = rate_hz, block_size, options
        self.opened.append(self)

    def __enter__(self) -> FakeStream:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class PortAudioError(Exception):
    pass


def sound_library(stream: Callable[..., FakeStream]) -> ModuleType:
    library = ModuleType("sounddevice")
    library.__dict__.update(
        RawInputStream=stream, RawOutputStream=stream, PortAudioError=PortAudioError
    )
    return library


def test_the_devices_move_bytes_between_their_threads_and_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(FakeStream, "opened", [])
    monkeypatch.setitem(sys.modules, "sounddevice", sound_library(FakeStream))

    async def talk() -> None:
        with open_devices() as devices:
            microphone, loudspeaker = FakeStream.opened
            await asyncio.to_thread(microphone.options["callback"], VOICE, 480, None, None)
            assert await devices.microphone.get() == VOICE

            devices.loudspeaker.add(Piece("a", 0, VOICE))
            buffer = bytearray(len(VOICE))
            await asyncio.to_thread(loudspeaker.options["callback"], buffer, 480, None, None)
            assert buffer == VOICE

    asyncio.run(talk())


def test_without_devices_the_error_says_what_to_try(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_device(*_: object, **__: object) -> FakeStream:
        raise PortAudioError("Error querying device -1")

    monkeypatch.setitem(sys.modules, "sounddevice", sound_library(no_device))

    async def talk() -> None:
        with open_devices():
            pass

    with pytest.raises(AudioDeviceError, match=r"device -1.*assistant serve"):
        asyncio.run(talk())


def test_the_conversation_ends_with_the_server() -> None:
    async def talk() -> None:
        server = ScriptedServer()
        async with Dialogue(server) as dialogue:
            server.vanish(DialogueEnded("Gone."))
            with pytest.raises(DialogueEnded, match="Gone"):
                await converse(dialogue, Devices(), show=print)

    asyncio.run(talk())
