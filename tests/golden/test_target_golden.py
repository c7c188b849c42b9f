"""Plain greedy decoding of the reference targets gives the reference outputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dspark import Engine, SamplingParams, load_target


@pytest.mark.parametrize("name", ["vanilla_block7", "gated_block7", "rnn_block5"])
def test_plain_decoding_gives_the_reference_output(name: str, shared_folder: Path) -> None:
    folder = shared_folder / "golden" / name
    prompts = json.loads((folder / "expected.json").read_text())["prompts"]
    assert prompts
    with Engine(load_target(folder / "target"), context_tokens=512) as engine:
        for expected in prompts:
            params = SamplingParams(max_new_tokens=len(expected["output"]))
            result = engine.generate(expected["prompt"], params)
            assert list(result.token_ids) == expected["output"]
