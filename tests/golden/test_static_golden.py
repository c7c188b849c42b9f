"""In static shapes too DSpark drafts, judges and commits what the reference implementation does."""

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
from dspark.drafters.static_dspark import StaticDSparkDrafter
from dspark.graphs import Graphs
from dspark.sampling import Sampler
from dspark.static_step import Rows, StaticAttention
from dspark.steps import StaticSteps
from dspark.target import Span
from tests.golden.cycles import NEVER_ENDS, TOLERANCE, cycles

CONTEXT = 512


@pytest.fixture
def engine(target: Target, drafter: DSparkDrafter) -> Iterator[Engine]:
    with Engine(target, drafter, context_tokens=CONTEXT, static_steps=True) as engine:
        yield engine


def test_every_cycle_is_the_references(engine: Engine, prompts: list[dict[str, Any]]) -> None:
    """All prompts share the steps, so rows of different lengths and ends do."""
    generations = [
        engine.submit(each["prompt"], SamplingParams(max_new_tokens=NEVER_ENDS)) for each in prompts
    ]
    for expected, generation in zip(prompts, generations, strict=True):
        assert cycles(generation, len(expected["cycles"])) == expected["cycles"]


def test_the_output_is_that_of_plain_decoding(
    engine: Engine, prompts: list[dict[str, Any]]
) -> None:
    for expected in prompts:
        params = SamplingParams(max_new_tokens=len(expected["output"]))
        assert list(engine.generate(expected["prompt"], params).token_ids) == expected["output"]


def test_plain_decoding_gives_the_reference_output(
    target: Target, prompts: list[dict[str, Any]]
) -> None:
    with Engine(target, context_tokens=CONTEXT, static_steps=True) as engine:
        for expected in prompts:
            params = SamplingParams(max_new_tokens=len(expected["output"]))
            result = engine.generate(expected["prompt"], params)
            assert list(result.token_ids) == expected["output"]


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
    expected_tensors = load_file(folder / "tensors.safetensors")
    largest: dict[str, float] = {}
    with torch.inference_mode():
        for index, prompt in enumerate(prompts):
            steps = StaticSteps(target, drafter, slots=2, context_tokens=CONTEXT, graphs=Graphs())
            whole = [*prompt["prompt"], *prompt["output"]]
            computed = 0
            for number, cycle in enumerate(prompt["cycles"]):
                # As in decoding, a few tokens a step, except for the prompt.
                features = steps.forward([Span(1, computed, whole[computed : cycle["start"]])])
                assert features.features is not None
                if features.features[0] is not None:
                    drafter.extend(steps.drafter_cache, 1, computed, features.features[0])
                computed = cycle["start"]
                for name, tensor in tensors_of(steps, drafter, cycle).items():
                    expected = expected_tensors[f"p{index}.c{number}.{name}"]
                    difference = float((tensor - expected).abs().max())
                    largest[name] = max(largest.get(name, 0.0), difference)
    assert set(largest) == {"block_hidden", "corrected_logits", "confidence_logits"}
    assert {name: value for name, value in largest.items() if value > TOLERANCE} == {}


def tensors_of(
    steps: StaticSteps, drafter: DSparkDrafter, cycle: dict[str, Any]
) -> dict[str, torch.Tensor]:
    """The drafter's tensors in the second of two rows, and that its draft comes of them."""
    static, cache = steps.drafter, steps.drafter_cache
    assert isinstance(static, StaticDSparkDrafter) and cache is not None
    start, anchor, size = cycle["start"], cycle["anchor"], drafter.block_size
    rows = Rows.at(
        torch.tensor([2, 1]), torch.tensor([0, start]), torch.tensor([0, size]), size, spare=2
    )
    attention = StaticAttention(
        rows, cache, heads=drafter.shape.heads, context=cache.keys.shape[3], causal=False
    )
    block = torch.full((2, size), drafter.mask_token)
    block[:, 0] = anchor
    hidden = drafter.block(block.view(-1), rows.positions.view(-1), attention).view(2, size, -1)
    base = drafter.base_logits(hidden)
    previous, state = torch.tensor([anchor, anchor]), drafter.head.start(2)
    logits, confidences = [], []
    for position, token in enumerate(cycle["draft"]):
        both, confidence, state = drafter.position(
            hidden[:, position], base[:, position], previous, state
        )
        logits.append(both[1])
        confidences.append(confidence[1])
        previous = torch.tensor([token, token])
    sampler = Sampler(SamplingParams(), (), [], random.Random(0))
    draft = static.draft(cache, [Anchor(1, start, anchor, sampler)])[0]
    assert list(draft.tokens) == cycle["draft"]
    assert draft.confidence == pytest.approx(torch.stack(confidences).sigmoid().tolist(), abs=1e-4)
    return {
        "block_hidden": hidden[1],
        "corrected_logits": torch.stack(logits),
        "confidence_logits": torch.stack(confidences),
    }
