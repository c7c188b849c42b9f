"""A model of any shape can be had without a checkpoint, and decodes like one that has learnt."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dspark import Engine, InvalidRequest, SamplingParams
from dspark.decoder import DecoderConfig
from dspark.random_weights import SHAPES, random_drafter, random_target
from tests.unit.dspark.conftest import CONFIG

PROMPT = [5, 9, 2, 33, 60]


@pytest.fixture(autouse=True)
def cache_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSPARK_CACHE", str(tmp_path))


def test_it_decodes_with_a_drafter_what_it_decodes_without() -> None:
    target = random_target({**CONFIG, "eos_token_id": None})
    drafter = random_drafter(target, layers=2, block_size=3, taps=2, markov_rank=8)
    params = SamplingParams(max_new_tokens=20)
    answers = []
    for each in (None, drafter):
        with Engine(target, each, context_tokens=64) as engine:
            answers.append(engine.generate(PROMPT, params).token_ids)
    assert answers[0] == answers[1]
    assert len(answers[0]) == 20


def test_the_seed_decides_the_weights() -> None:
    first, again, other = (random_target(CONFIG, seed=seed).decoder for seed in (3, 3, 4))
    assert torch.equal(first.embedding, again.embedding)
    assert not torch.equal(first.embedding, other.embedding)


def test_rows_keep_their_magnitude_through_the_layers() -> None:
    """Neither zeros nor infinities: those may be computed in another time than numbers are."""
    deep = {**CONFIG, "num_hidden_layers": 40, "hidden_size": 64}
    target = random_target(deep, dtype="bfloat16")
    with Engine(target, context_tokens=64) as engine:
        assert len(set(engine.generate(PROMPT, SamplingParams(max_new_tokens=20)).token_ids)) > 3


def test_each_named_shape_is_one_that_is_computed() -> None:
    for config in SHAPES.values():
        assert DecoderConfig.from_config(config).family == "qwen3"


def test_wrong_requests_say_what_there_is() -> None:
    with pytest.raises(InvalidRequest, match=r"qwen3-4b"):
        random_target("qwen3-5b")
    with pytest.raises(InvalidRequest, match="bfloat16"):
        random_target(CONFIG, dtype="float8")
    with pytest.raises(InvalidRequest, match="taps"):
        random_drafter(random_target(CONFIG), taps=3)
