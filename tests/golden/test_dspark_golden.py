"""DSpark drafts, judges and commits what the reference implementation does, number for number."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dspark import DSparkDrafter, Engine, SamplingParams, Target
from dspark.drafters import Anchor
from dspark.sampling import Sampler
from dspark.target import Span
from tests.golden.cycles import NEVER_ENDS, TOLERANCE, cycles


@pytest.fixture
def engine(target: Target, drafter: DSparkDrafter) -> Iterator[Engine]:
    with Engine(target, drafter, context_tokens=512) as engine:
        yield engine


def test_every_cycle_is_the_references(engine: Engine, prompts: list[dict[str, Any]]) -> None:
    params = SamplingParams(max_new_tokens=NEVER_ENDS)
    for expected in prompts:
        generation = engine.submit(expected["prompt"], params)
        assert cycles(generation, len(expected["cycles"])) == expected["cycles"]


def test_the_output_is_that_of_plain_decoding(
    engine: Engine, prompts: list[dict[str, Any]]
) -> None:
    for expected in prompts:
        params = SamplingParams(max_new_tokens=len(expected["output"]))
        result = engine.generate(expected["prompt"], params)
        assert list(result.token_ids) == expected["output"]


def test_sequences_that_share_steps_draft_and_commit_the_same(
    engine: Engine, prompts: list[dict[str, Any]]
) -> None:
    generations = [
        engine.submit(each["prompt"], SamplingParams(max_new_tokens=len(each["output"])))
        for each in prompts
    ]
    for expected, generation in zip(prompts, generations, strict=True):
        steps = list(generation)
        assert [token for step in steps for token in step.committed] == expected["output"]
        drafts = [list(step.draft) for step in steps if step.draft]
        assert drafts == [cycle["draft"] for cycle in expected["cycles"]][: len(drafts)]


def test_a_reused_prefix_drafts_the_same(engine: Engine, prompts: list[dict[str, Any]]) -> None:
    expected = prompts[0]
    half = len(expected["prompt"]) // 2
    engine.generate(expected["prompt"][:half], SamplingParams(max_new_tokens=1))
    generation = engine.submit(expected["prompt"], SamplingParams(max_new_tokens=NEVER_ENDS))
    assert cycles(generation, len(expected["cycles"])) == expected["cycles"]
    assert generation.cached_tokens > 0


def test_tensors_are_the_references(
    folder: Path, target: Target, drafter: DSparkDrafter, prompts: list[dict[str, Any]]
) -> None:
    tensors = load_file(folder / "tensors.safetensors")
    largest: dict[str, float] = {"block_hidden": 0, "corrected_logits": 0, "confidence_logits": 0}
    with torch.inference_mode():
        for index, expected in enumerate(prompts):
            for number, cycle in enumerate(expected["cycles"]):
                found = tensors_of_cycle(target, drafter, expected, cycle)
                for name, tensor in found.items():
                    difference = (tensor - tensors[f"p{index}.c{number}.{name}"]).abs().max()
                    largest[name] = max(largest[name], float(difference))
    assert {name: value for name, value in largest.items() if value > TOLERANCE} == {}


def tensors_of_cycle(
    target: Target, drafter: DSparkDrafter, expected: dict[str, Any], cycle: dict[str, Any]
) -> dict[str, torch.Tensor]:
    """The drafter's tensors after everything before the anchor was computed at once."""
    start, anchor = cycle["start"], cycle["anchor"]
    before = [*expected["prompt"], *expected["output"]][:start]
    spans = [Span(0, 0, before)]
    features = target.forward(spans, target.new_cache(1, start), drafter.taps).features
    assert features is not None
    cache = drafter.new_cache(1, start + 1)
    drafter.extend(cache, 0, 0, features[0])
    sampler = Sampler(SamplingParams(), before, [], random.Random(0))
    hidden = drafter.block_hidden(cache, [Anchor(0, start, anchor, sampler)])
    base = drafter.base_logits(hidden)
    previous, state = anchor, drafter.head.start(1)
    logits, confidences = [], []
    for position, token in enumerate(cycle["draft"]):
        row, confidence, state = drafter.position(
            hidden[:, position], base[:, position], [previous], state
        )
        logits.append(row[0])
        confidences.append(confidence[0])
        previous = token
    return {
        "block_hidden": hidden[0],
        "corrected_logits": torch.stack(logits),
        "confidence_logits": torch.stack(confidences),
    }
