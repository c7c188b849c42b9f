"""The OpenAI Realtime protocol, translated to and from the dialogue core.

A client of the hosted service works here with another address, within these bounds:

- one model, one recogniser and one voice are installed; other names are accepted, and the session
  says what is really in force;
- tools, stored prompts, image and audio items, answers outside the conversation and log
  probabilities are refused, each by an error that names the parameter;
- turns end by what was said (`semantic_vad`) unless the client asks for a silence (`server_vad`);
  `eagerness` auto is as the server is configured;
- `output_audio_buffer.clear`, which the service knows on WebRTC only, stops the playing answer;
- whole appends are limited to 15 MiB of base64 text; WAV files and binary messages are refused.

`session.x` asks for what goes beyond the protocol: the `x.` events, the place of each piece of
sound, and playback positions reported by the client.
"""

from assistant.realtime.connection import RealtimeConnection
from assistant.realtime.errors import ConnectionEnded, ProtocolError

__all__ = ["ConnectionEnded", "ProtocolError", "RealtimeConnection"]
