"""The OpenAI Realtime protocol, translated to and from the dialogue core."""

from assistant.realtime.connection import RealtimeConnection
from assistant.realtime.errors import ConnectionEnded, ProtocolError

__all__ = ["ConnectionEnded", "ProtocolError", "RealtimeConnection"]
