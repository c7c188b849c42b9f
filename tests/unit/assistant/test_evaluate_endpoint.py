"""What counts as a cut-in and as a wait, on a recording made by hand and models that do as told."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from assistant.endpoint_chart import Curve, Point, svg
from assistant.endpoint_replay import Stages
from assistant.evaluate_endpoint import Evaluation, is_cut, read_manifest, score, wait_of
from assistant.settings import TurnDetection
from audio.endpoint import SemanticEndpointer
from audio.pcm import write_wav
from audio.vad import SileroVad
from tests.fakes import (
    LoudnessActivity,
    ScriptedLanguageModel,
    ScriptedTranscriber,
    silence,
    speech,
)

WINDOW_MS = 32
PAUSE_S = 0.8


class Loudness(SileroVad):
    """Calls every loud window speech."""

    def __init__(self) -> None:
        pass

    def stream(self) -> LoudnessActivity:  # type: ignore[override]
        return LoudnessActivity()


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """A sentence with a pause in it, and one without; one of two people; a noise."""
    paused = np.concatenate((silence(0.5), speech(1.0), silence(PAUSE_S), speech(1.0)))
    whole = np.concatenate((silence(0.5), speech(1.0)))
    rows = [
        {"file": "paused.wav", "vad_auto": [[0.5, 1.5], [2.3, 3.3]]},
        {"file": "whole.wav", "vad_auto": [[0.5, 1.5]]},
        {"file": "two.wav", "vad_auto": [[0.5, 1.5], [2.3, 3.3]]},
        {"file": "hiss.wav", "vad_auto": [], "kind": "noise", "lang": None},
    ]
    for row in rows:
        write_wav(tmp_path / str(row["file"]), whole if "whole" in str(row) else paused, 16_000)
    lines = [json.dumps({"kind": "command", "lang": "en", **row}) for row in rows]
    path = tmp_path / "manifest.jsonl"
    path.write_text("\n".join(lines))
    return path


def evaluation(manifest: Path, completeness: float | None) -> Evaluation:
    clips = read_manifest(manifest, several=["two"])
    language = ScriptedLanguageModel(lines=["Fine."], completeness=completeness)
    stages = Stages(Loudness(), ScriptedTranscriber(lines=["turn it on"] * 99), language)
    return Evaluation(clips, [stages.open(clip.path) for clip in clips], stages)


def test_a_short_silence_cuts_the_pause_and_a_long_one_does_not(manifest: Path) -> None:
    played = evaluation(manifest, None)
    for silence_ms, cut_ins in ((300, 1), (1000, 0)):
        scores = played.scores("fixed", TurnDetection(silence_ms=silence_ms))
        one = next(each for each in scores if each.group == "one speaker")
        assert (one.clips, one.cut_ins) == (2, cut_ins)
        assert one.median_wait_ms == pytest.approx(silence_ms, abs=2 * WINDOW_MS)
        many = next(each for each in scores if each.group == "several people")
        assert (many.clips, many.cut_ins) == (1, cut_ins)
    assert played.cut(TurnDetection(silence_ms=300)) == ["paused"]


@pytest.mark.parametrize(("completeness", "cut"), [(0.99, ["paused"]), (0.1, [])])
def test_the_words_are_judged(manifest: Path, completeness: float, cut: list[str]) -> None:
    semantic = TurnDetection(semantic=SemanticEndpointer())
    assert evaluation(manifest, completeness).cut(semantic) == cut


def test_whoever_is_cut_does_not_wait() -> None:
    assert is_cut(wait_of([1.2, 3.5], 3.0))
    assert wait_of([3.5], 3.0) == 500 and not is_cut(500)
    assert wait_of([], 3.0) is None and not is_cut(None)
    counted = score("fixed", "all", [None, -900.0, 300.0, 500.0])
    assert (counted.clips, counted.unheard, counted.cut_ins) == (4, 1, 1)
    assert counted.mean_wait_ms == 400


def test_models_are_asked_once_for_the_same(manifest: Path) -> None:
    clip = read_manifest(manifest)[0]
    transcriber = ScriptedTranscriber(lines=["turn it on"] * 99)
    stages = Stages(Loudness(), transcriber, ScriptedLanguageModel(lines=["Fine."]))
    played = Evaluation([clip], [stages.open(clip.path)], stages)
    played.scores("fixed", TurnDetection(silence_ms=1000))
    asked = len(transcriber.heard)
    played.scores("fixed", TurnDetection(silence_ms=1200))
    assert len(transcriber.heard) == asked > 0


def test_the_picture_has_a_point_for_each_setting() -> None:
    points = (Point("a", 300, 280, 4.0), Point("b & c", 500, 480, 2.0))
    drawn = ElementTree.fromstring(svg([Curve("one", points), Curve("two", points[:1])]))
    circles = drawn.findall(".//{http://www.w3.org/2000/svg}circle")
    assert len(circles) == 3 + 2  # and the key
