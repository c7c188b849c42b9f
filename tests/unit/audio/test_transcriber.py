"""How Whisper's window is chosen, when it is decoded again, and what is kept of the text.

The network is scripted: each test says what it would write on a window of a given length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ctranslate2
import numpy as np
import pytest
import tokenizers

from audio.errors import ModelFolderError
from audio.pcm import Samples
from audio.transcriber import SAMPLE_RATE_HZ, Whisper, load_whisper

FRAMES_PER_SECOND = 100
TIMESTAMPS_PER_SECOND = 50
WORDS = "turn on the light and open door now please what time is it yes no stop".split()  # noqa: SIM905
SPECIAL = ["<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"]

Script = Callable[[float], str]
"""Seconds of the window → what the network writes, timestamps as numbers in seconds."""


def speech(seconds: float) -> Samples:
    return np.random.default_rng(0).normal(0, 0.1, int(seconds * SAMPLE_RATE_HZ)).astype(np.float32)


def silence(seconds: float) -> Samples:
    return np.zeros(int(seconds * SAMPLE_RATE_HZ), np.float32)


class ScriptedNetwork:
    """Writes what the script says, and remembers which windows it was given."""

    is_multilingual = False

    def __init__(self, script: Script, no_speech_probability: float = 0.05) -> None:
        self._script = script
        self._no_speech_probability = no_speech_probability
        self.windows_s: list[float] = []
        self.budgets: list[int] = []

    def encode(self, features: ctranslate2.StorageView) -> float:
        window_s = features.shape[2] / FRAMES_PER_SECOND
        self.windows_s.append(window_s)
        return float(window_s)

    def generate(
        self, encoded: float, prompts: Sequence[Sequence[int]], max_length: int, **_: object
    ) -> list[Any]:
        # Like CTranslate2, which stops at half of max_length and counts the prompt.
        budget = max_length // 2 - len(prompts[0])
        self.budgets.append(budget)
        tokens = [token_of(part) for part in self._script(encoded).split()][:budget]
        return [
            SimpleNamespace(
                sequences_ids=[tokens],
                scores=[-0.2],
                no_speech_prob=self._no_speech_probability,
            )
        ]


def token_of(part: str) -> int:
    if part in WORDS:
        return WORDS.index(part)
    return len(WORDS) + len(SPECIAL) + round(float(part) * TIMESTAMPS_PER_SECOND)


def whisper(network: ScriptedNetwork) -> Whisper:
    vocabulary = {token: index for index, token in enumerate([*WORDS, *SPECIAL])}
    model: Any = SimpleNamespace(
        model=network,
        feature_extractor=lambda samples: np.zeros(
            (80, len(samples) * FRAMES_PER_SECOND // SAMPLE_RATE_HZ + 1), np.float32
        ),
        hf_tokenizer=tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="no")),
    )
    return Whisper(model, "en")


@pytest.mark.parametrize(
    ("seconds", "window_s"), [(0.5, 10), (3, 10), (9, 11), (14.5, 17), (29, 30)]
)
def test_the_window_fits_the_utterance(seconds: float, window_s: float) -> None:
    network = ScriptedNetwork(lambda _: f"0 turn on the light {seconds}")
    transcript = whisper(network).transcribe(speech(seconds))
    assert transcript.text == "turn on the light"
    assert transcript.rejection is None
    assert transcript.audio_seconds == seconds
    assert network.windows_s == [window_s]
    assert transcript.decodes == 1


def test_a_loop_is_decoded_again_on_a_longer_window() -> None:
    network = ScriptedNetwork(
        lambda window_s: (
            "0 open the door 3" if window_s >= 20 else "0 open the door open the door 3"
        )
    )
    transcript = whisper(network).transcribe(speech(3))
    assert transcript.text == "open the door"
    assert network.windows_s == [10, 20]
    assert transcript.decodes == 2


def test_what_two_windows_agree_on_is_the_speakers_own_repetition() -> None:
    network = ScriptedNetwork(lambda _: "0 no no no no 3")
    transcript = whisper(network).transcribe(speech(3))
    assert transcript.text == "no no no no"
    assert network.windows_s == [10, 20]


def test_a_loop_that_stays_is_cut_off_and_the_rest_kept() -> None:
    network = ScriptedNetwork(
        lambda window_s: "0 turn on the light 2 2 " + "stop " * int(window_s) + "3"
    )
    transcript = whisper(network).transcribe(speech(3))
    assert transcript.text == "turn on the light"
    assert network.windows_s == [10, 20, 30]


def test_nothing_but_a_loop_is_rejected() -> None:
    network = ScriptedNetwork(lambda window_s: "0 " + "stop " * int(window_s) + "3")
    transcript = whisper(network).transcribe(speech(3))
    assert transcript.text == ""
    assert transcript.rejection == "repetition"


def test_text_that_begins_after_the_sound_is_dropped() -> None:
    network = ScriptedNetwork(lambda _: "0 turn on the light 5 5 turn on the light 8")
    transcript = whisper(network).transcribe(speech(5))
    assert transcript.text == "turn on the light"
    assert transcript.decodes == 1


def test_the_token_budget_follows_the_length_of_the_sound() -> None:
    network = ScriptedNetwork(lambda _: "0 yes 8")
    whisper(network).transcribe(speech(1))
    whisper(network).transcribe(speech(8))
    short, long = network.budgets
    assert short < long < 8 * 10
    assert short >= 8


def test_text_beyond_the_budget_is_decoded_again_with_whispers_own_limit() -> None:
    sentence = "what time is it and open the door now please turn on the light yes stop no"
    network = ScriptedNetwork(lambda _: f"0 {sentence} 1")
    transcript = whisper(network).transcribe(speech(1))
    assert transcript.text == sentence
    assert network.windows_s == [10, 20, 30]


def test_sound_that_was_skipped_is_decoded_on_its_own() -> None:
    answers = iter(["0 turn on the light 3", "0 open the door 5"])
    network = ScriptedNetwork(lambda _: next(answers))
    transcript = whisper(network).transcribe(speech(8))
    assert transcript.text == "turn on the light open the door"
    assert transcript.decodes == 2


def test_quiet_after_the_words_is_not() -> None:
    network = ScriptedNetwork(lambda _: "0 turn on the light 3")
    sound = np.concatenate([speech(3), speech(5) * np.float32(0.01)])
    assert whisper(network).transcribe(sound).decodes == 1


@pytest.mark.parametrize("minutes", [0.75, 1, 2])
def test_a_long_utterance_is_heard_to_its_end(minutes: float) -> None:
    network = ScriptedNetwork(
        lambda window_s: (
            "0 turn on the light 14 14 open the door 28 28" if window_s == 30 else "0 stop 1"
        )
    )
    transcript = whisper(network).transcribe(speech(60 * minutes))
    assert transcript.audio_seconds == 60 * minutes
    assert max(network.windows_s) == 30
    windows_needed = 60 * minutes / 28
    assert transcript.text.count("open the door") >= windows_needed - 1
    assert transcript.decodes == len(network.windows_s)


def test_a_network_that_never_moves_on_still_ends() -> None:
    network = ScriptedNetwork(lambda _: "0 yes 0")
    transcript = whisper(network).transcribe(speech(65))
    assert transcript.rejection is None
    assert len(network.windows_s) <= 10


@pytest.mark.parametrize("samples", [silence(0), silence(0.01), silence(3), silence(40)])
def test_silence_is_not_even_decoded(samples: Samples) -> None:
    network = ScriptedNetwork(lambda _: "0 no 1")
    transcript = whisper(network).transcribe(samples)
    assert transcript.rejection == "silence"
    assert transcript.text == ""
    assert transcript.decodes == 0
    assert network.windows_s == []


def test_a_doubtful_sound_yields_no_text() -> None:
    network = ScriptedNetwork(lambda _: "0 yes 1", no_speech_probability=0.99)
    transcript = whisper(network).transcribe(speech(1))
    assert transcript.rejection == "no_speech"
    assert transcript.text == ""


@pytest.mark.parametrize("parts", [(speech(5), silence(40)), (silence(40), speech(5))])
def test_a_pause_in_a_long_utterance_does_not_reject_it(parts: tuple[Samples, ...]) -> None:
    network = ScriptedNetwork(lambda _: "0 turn on the light 15")
    transcript = whisper(network).transcribe(np.concatenate(parts))
    assert transcript.text == "turn on the light"
    assert transcript.rejection is None
    assert transcript.audio_seconds == 45


def test_warming_up_runs_every_window_length() -> None:
    network = ScriptedNetwork(lambda _: "0 yes 1")
    whisper(network).warm_up()
    assert network.windows_s == [10, 20, 30]


def test_a_missing_or_incomplete_folder_says_what_to_do(tmp_path: Any) -> None:
    with pytest.raises(ModelFolderError, match="install the model"):
        load_whisper(tmp_path / "nowhere")
    (tmp_path / "model.bin").touch()
    with pytest.raises(ModelFolderError, match=r"config\.json is missing"):
        load_whisper(str(tmp_path))


@pytest.mark.parametrize("damaged", ["model.bin", "config.json", "tokenizer.json"])
@pytest.mark.parametrize("content", [b"", b"\xff\x00 no model"], ids=["empty", "noise"])
def test_a_damaged_file_says_what_to_do(
    whisper_folder: Path, tmp_path: Path, damaged: str, content: bytes
) -> None:
    for file in whisper_folder.iterdir():
        if file.name == damaged:
            (tmp_path / file.name).write_bytes(content)
        else:
            (tmp_path / file.name).symlink_to(file)
    with pytest.raises(ModelFolderError, match="`assistant models verify`"):
        load_whisper(tmp_path)
