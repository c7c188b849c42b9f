"""A real-time voice assistant: microphone to loudspeaker, streaming all the way.

from assistant import Assistant, connect
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assistant.client import Assistant, Dialogue, Reply, Turn, connect
    from assistant.config import Config, load_config
    from assistant.errors import AssistantError

__all__ = [
    "Assistant",
    "AssistantError",
    "Config",
    "Dialogue",
    "Reply",
    "Turn",
    "connect",
    "load_config",
]

_HOMES = {"Config": "config", "load_config": "config", "AssistantError": "errors"}


def __getattr__(name: str) -> object:
    # On first use: the command line and the registry of models need not wait for the client.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'client')}"), name)
