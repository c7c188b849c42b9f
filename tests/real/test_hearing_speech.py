"""Speech detection on all the labelled recordings beside the checkout."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from audio.pcm import read_audio, resample
from audio.vad import SAMPLE_RATE_HZ, SpeechGate, load_vad

pytestmark = pytest.mark.real

ONSET_TOLERANCE_S = 0.1
# Of 21 noises, two begin with half a second that sounds like a voice, and one is a coffee shop.
MOST_NOISES_HEARD_AS_SPEECH = 3


def test_onsets_are_where_they_are_labelled_and_noises_are_rarely_speech(
    shared_folder: Path,
) -> None:
    errors_s, missed, noises = [], [], []
    for line in (shared_folder / "speech" / "manifest.jsonl").read_text("utf-8").splitlines():
        clip = json.loads(line)
        samples = resample(*read_audio(shared_folder / "speech" / clip["file"]), SAMPLE_RATE_HZ)
        gate = SpeechGate()
        found = any(
            gate.feed(frame.start_sample, frame.end_sample, frame.probability)
            for frame in load_vad().stream().feed(samples)
        )
        if clip["kind"] == "noise":
            noises += [clip["file"]] * found
        elif found and clip["vad_auto"]:
            errors_s.append(gate.start_sample / SAMPLE_RATE_HZ - clip["vad_auto"][0][0])
        elif clip["vad_auto"]:
            missed.append(clip["file"])
    assert len(errors_s) > 150
    assert np.quantile(np.abs(errors_s), 0.95) < ONSET_TOLERANCE_S
    assert len(missed) <= 1, missed
    assert len(noises) <= MOST_NOISES_HEARD_AS_SPEECH, noises
