"""One client's conversation in the protocol, without a transport: client events in, server
events out."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Protocol, Self

from assistant.effects import Notice, PlaybackCleared, SettingsChanged
from assistant.errors import AssistantError
from assistant.events import ClearAudio, Command, CommitAudio, Samples, UpdateSettings
from assistant.realtime.audio_stream import InputAudio
from assistant.realtime.client_events import (
    AppendAudio,
    ClearAudioBuffer,
    ClientEvent,
    CommitAudioBuffer,
    PlaybackReport,
    SessionUpdate,
    parse_event,
)
from assistant.realtime.errors import (
    SESSION_CLOSED,
    ConnectionEnded,
    ProtocolError,
    from_exception,
)
from assistant.realtime.outbox import Outbox, Outgoing
from assistant.realtime.server_events import ServerEvents
from assistant.realtime.session_config import Installed, WireSession
from assistant.realtime.wire import JsonObject, encoding
from assistant.runtime import SessionRuntime
from assistant.settings import Settings
from assistant.stages import Stages
from audio.errors import AudioError

DEFAULT_OUTBOX_LIMIT = 1024
DEFAULT_MESSAGE_LIMIT = 16 * 1024 * 1024
"""Length of the text of one client event."""
READ_PATIENCE_S = 10.0
"""How long a client that keeps asking may leave its answers unread."""
NOW = -1
"""In place of a sample count: everything appended so far."""


class Runtime(Protocol):
    """What the connection needs of the session's runtime."""

    async def append_audio(self, samples: Samples) -> None:
        """Take 16 kHz samples; waits while too many are unworked."""

    async def command(self, command: Command) -> None:
        """Take a command, in order with the audio."""


RuntimeFactory = Callable[
    [Stages, Settings, Callable[[Notice], None]], AbstractAsyncContextManager[Runtime]
]


class RealtimeConnection:
    """The protocol state of one client over one session.

    `receive` takes a client event and never raises for a bad one: an `error` event goes out.
    `next_event` gives the next server event, and raises `ConnectionEnded` when the transport must
    be closed.  Both may be awaited at the same time, each by one task.
    """

    def __init__(
        self,
        stages: Stages,
        *,
        session: JsonObject | None = None,
        outbox_limit: int = DEFAULT_OUTBOX_LIMIT,
        message_limit: int = DEFAULT_MESSAGE_LIMIT,
        observe: Callable[[Notice], None] | None = None,
        open_runtime: RuntimeFactory = SessionRuntime,
    ) -> None:
        """`session` is laid over the default session object; raises `ProtocolError` for a wrong
        one.  `observe` is shown every notice of the core, before the client is."""
        self.session_id = uuid.uuid4().hex[:16]
        self._session = _first_session(stages, session)
        self._message_limit = message_limit
        self._updates: deque[WireSession] = deque()
        """Updates that the core has not acknowledged."""
        self._events = ServerEvents(self.session_id, self._session, stages.voice_rate_hz)
        self._outbox = Outbox(outbox_limit)
        self._input = self._new_input()
        self._observe = observe
        self._opened = open_runtime(stages, self._session.settings, self._deliver)
        self._runtime: Runtime
        self._loop_time: Callable[[], float]
        self.active_s = 0.0
        """When either side last said something, on the event loop's clock.  Sound that holds no
        speech says nothing."""

    async def __aenter__(self) -> Self:
        self._loop_time = asyncio.get_running_loop().time
        self._touch()
        self._outbox.put(Outgoing(self._events.session_created()))
        self._runtime = await self._opened.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        self.end(ConnectionEnded(*SESSION_CLOSED))
        return await self._opened.__aexit__(kind, error, traceback)

    @staticmethod
    def session_preview(stages: Stages, session: JsonObject) -> JsonObject:
        """Return the session object that a connection opened with `session` would have.

        Raises `ProtocolError` for one that would be refused.
        """
        return _first_session(stages, session).describe()

    @property
    def waiting_events(self) -> int:
        """How many events `next_event` would give without waiting."""
        return len(self._outbox)

    @property
    def voided_frames(self) -> int:
        """How many pieces of sound were dropped because the user interrupted them."""
        return self._outbox.dropped

    def end(self, ended: ConnectionEnded) -> None:
        """Let `next_event` raise `ended`; nothing more leaves."""
        self._outbox.end(ended)

    async def next_event(self) -> JsonObject:
        """Wait for the next server event.

        Raises `ConnectionEnded` when there will be none.
        """
        return await self._outbox.take()

    async def wait_ended(self) -> ConnectionEnded:
        """Wait until the connection ends, even while the transport takes no event."""
        return await self._outbox.wait_ended()

    async def receive(self, message: str | bytes | JsonObject) -> None:
        """Carry out one client event, given as its text or decoded.

        Waits while the session or the client itself can not keep up.
        """
        await self._outbox.wait_for_room(READ_PATIENCE_S)
        event_id: str | None = None
        try:
            if isinstance(message, bytes):
                raise ProtocolError(
                    "unsupported_message", "send events as JSON in text messages, not in binary"
                )
            if isinstance(message, str) and len(message) > self._message_limit:
                raise ProtocolError(
                    "message_too_long",
                    f"the message is longer than {self._message_limit} characters; "
                    "send the audio in smaller pieces",
                )
            event = parse_event(message)
            event_id = event.event_id
            await self._carry_out(event)
            # The core answers before the next event is taken, so that its answers count as waiting.
            await asyncio.sleep(0)
        except (AssistantError, AudioError) as error:
            refusal = from_exception(error)
            refusal.event_id = refusal.event_id or event_id
            self._outbox.put(Outgoing(self._events.error(refusal)))

    async def _carry_out(self, event: ClientEvent) -> None:
        if not isinstance(event, AppendAudio):
            self._touch()
        match event:
            case AppendAudio():
                await self._append(self._input.decode(event.audio))
            case SessionUpdate():
                await self._update(event)
            case CommitAudioBuffer():
                await self._runtime.append_audio(self._input.finish())
                await self._runtime.command(CommitAudio(end_sample=NOW, command_id=event.event_id))
            case ClearAudioBuffer():
                await self._runtime.command(ClearAudio(end_sample=NOW, command_id=event.event_id))
            case PlaybackReport() if not self._session.settings.playback_acknowledged:
                raise ProtocolError(
                    "extension_not_enabled",
                    "set session.x.acknowledge_playback before reporting what was played",
                    param="type",
                )
            case _:
                await self._runtime.command(event.command())

    async def _append(self, slices: Iterator[Samples]) -> None:
        for samples in slices:
            await self._runtime.append_audio(samples)
            await asyncio.sleep(0)  # a long append must not hold up the other sessions

    async def _update(self, event: SessionUpdate) -> None:
        before = self._session
        self._session = self._events.session = before.updated(event.session)
        if before.config.audio.input.format != self._session.config.audio.input.format:
            await self._runtime.append_audio(self._input.finish())
            self._input = self._new_input()
        self._updates.append(self._session)
        await self._runtime.command(
            UpdateSettings(settings=self._session.settings, command_id=event.event_id)
        )

    def _deliver(self, notice: Notice) -> None:
        """Take a notice of the core; called on the event loop, must not wait."""
        if self._observe is not None:
            self._observe(notice)
        self._touch()
        if isinstance(notice, PlaybackCleared):
            self._outbox.void(notice.generation)
        if isinstance(notice, SettingsChanged):
            if self._updates:
                acknowledged = self._events.session_updated(self._updates.popleft())
                self._outbox.put(Outgoing(acknowledged))
            return
        for outgoing in self._events.translate(notice):
            self._outbox.put(outgoing)

    def _new_input(self) -> InputAudio:
        return InputAudio(*encoding(self._session.config.audio.input.format))

    def _touch(self) -> None:
        self.active_s = self._loop_time()


def _first_session(stages: Stages, session: JsonObject | None) -> WireSession:
    config = stages.config
    installed = Installed(
        model=config.llm.model,
        transcriber=config.asr.model,
        language=config.asr.language,
        voice=config.voice.model,
    )
    first = WireSession.initial(stages.default_settings(), installed)
    return first.updated(session) if session else first
