"""The real models on recordings and sentences: who has finished, and who has paused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from assistant.config import Config
from assistant.endpoint_replay import Stages
from assistant.evaluate_endpoint import Evaluation, read_manifest
from assistant.items import Message, Role
from assistant.language import EngineLanguageModel
from assistant.settings import TurnDetection
from assistant.stages import load_engine, sampling
from audio.transcriber import load_whisper
from audio.vad import load_vad

pytestmark = pytest.mark.real

FINISHED = (
    "Turn on the living room lamp.",
    "Should I get a dog or a cat?",
    "Please tell me how to cook rice.",
    "How old is the Brooklyn Bridge?",
    "May I have a mocha with cream and lots of sugar?",
    "Turn off all the lights in the office.",
)
CUT = (
    "Turn on the living.",
    "Should I get a dog or a.",
    "Please tell me how to.",
    "How old is the Brooklyn.",
    "May I have a mocha with cream and.",
    "Turn off all the lights in.",
)
BEGINNINGS = ("I really like animals.", "My name is Ann.", "Okay, Jarvis.", "Hello?")


@pytest.fixture(scope="module")
def language(smollm2_gguf: Path) -> Iterator[EngineLanguageModel]:
    config = Config()
    target, engine = load_engine(config)
    with engine:
        yield EngineLanguageModel(
            engine, target.tokenizer, sampling(config), context_tokens=config.llm.context_tokens
        )


def completeness(language: EngineLanguageModel, said: str) -> float:
    messages = (Message(Role.SYSTEM, Config().llm.instructions), Message(Role.USER, said))
    found = asyncio.run(language.turn_end(messages))
    assert found is not None
    return found


def test_sentences_that_are_cut_sound_less_complete(language: EngineLanguageModel) -> None:
    for finished, cut in zip(FINISHED, CUT, strict=True):
        assert completeness(language, finished) > completeness(language, cut)


def test_what_is_said_before_a_request_sounds_less_complete(language: EngineLanguageModel) -> None:
    requests = [completeness(language, finished) for finished in FINISHED]
    beginnings = [completeness(language, beginning) for beginning in BEGINNINGS]
    assert min(requests) > max(beginnings)


def test_the_words_keep_a_turn_open_that_half_a_second_of_silence_would_cut(
    language: EngineLanguageModel, whisper_folder: Path, fixtures_folder: Path
) -> None:
    clips = read_manifest(fixtures_folder / "speech" / "manifest.jsonl")
    stages = Stages(load_vad(), load_whisper(whisper_folder), language)
    played = Evaluation(clips, [stages.open(clip.path) for clip in clips], stages)
    assert played.cut(TurnDetection(silence_ms=500)) == ["dlg_watson_speech_with_pause"]
    assert played.cut(TurnDetection(semantic=Config().endpoint.semantic)) == []
