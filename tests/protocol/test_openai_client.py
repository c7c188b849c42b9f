"""OpenAI's own Python client talks to the running server, whose stages are scripted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from openai import OpenAI

from assistant.config import Config
from assistant.stages import Stages
from tests.fakes import ScriptedLanguageModel, ScriptedTranscriber, fake_stages
from tests.protocol.client import tone
from tests.protocol.live_server import LiveServer, serving
from tests.protocol.official_client import interruption, manual_turn, spoken_turn

QUESTION, ANSWER = "What is the capital of France?", "Paris is the capital."
SECONDS_PER_WORD = 0.25  # of the scripted voice


def _stages(config: Config) -> Stages:
    return fake_stages(
        config=config,
        transcriber=ScriptedTranscriber(lines=(QUESTION,)),
        language=ScriptedLanguageModel(lines=(ANSWER,)),
    )


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with serving(make_stages=_stages) as live:
        yield live


@pytest.mark.parametrize("turn", [spoken_turn, manual_turn])
def test_a_turn(server: LiveServer, turn: object) -> None:
    assert callable(turn)
    dialogue = asyncio.run(turn(server.address, tone(0.6)))
    assert dialogue.transcript() == QUESTION
    assert dialogue.audio_seconds() == pytest.approx(
        len(ANSWER.split()) * SECONDS_PER_WORD, abs=0.001
    )
    said = dialogue.events[-1]["response"]["output"][0]["content"][0]["transcript"]
    assert said == ANSWER


def test_an_interruption(server: LiveServer) -> None:
    asyncio.run(interruption(server.address, tone(0.6)))


def test_a_client_secret(server: LiveServer) -> None:
    client = OpenAI(api_key="any", base_url=f"{server.http}/v1")
    secret = client.realtime.client_secrets.create(
        session={"type": "realtime", "instructions": "Rhyme."}
    )
    assert secret.value.startswith("ek_")
    assert secret.session.type == "realtime"
    assert secret.session.instructions == "Rhyme."
