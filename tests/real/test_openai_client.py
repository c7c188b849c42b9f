"""OpenAI's own Python client talks to the running server with the embedded models.

The user is the synthesiser itself: what it says, the recogniser must understand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from assistant.config import Config
from audio.pcm import Encoding, PcmEncoder
from audio.voice import load_piper
from tests.protocol.live_server import LiveServer, serving
from tests.protocol.official_client import (
    Conversation,
    interruption,
    manual_turn,
    spoken_turn,
)

pytestmark = pytest.mark.real

QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def server_url(models_folder: Path) -> Iterator[LiveServer]:
    """A server with the embedded models, every stage warm."""
    with serving(Config(), make_stages=None) as live:
        yield live


@pytest.fixture(scope="module")
def question(piper_model: Path) -> bytes:
    """The question, spoken: PCM16 at 24 kHz."""
    voice = load_piper(piper_model)
    samples = np.concatenate(list(voice.speak(QUESTION).windows()))
    encoder = PcmEncoder(Encoding.PCM16, voice.sample_rate_hz, 24_000)
    return encoder.feed(samples) + encoder.flush()


def check_turn(dialogue: Conversation) -> None:
    assert "capital of france" in dialogue.transcript().lower()
    (content,) = dialogue.events[-1]["response"]["output"][0]["content"]
    assert content["transcript"].strip()
    assert dialogue.audio_seconds() > 0.3


def test_a_spoken_turn(server_url: LiveServer, question: bytes) -> None:
    check_turn(asyncio.run(spoken_turn(server_url.address, question)))


def test_a_manual_turn(server_url: LiveServer, question: bytes) -> None:
    check_turn(asyncio.run(manual_turn(server_url.address, question)))


def test_an_interruption(server_url: LiveServer, question: bytes) -> None:
    asyncio.run(interruption(server_url.address, question))
