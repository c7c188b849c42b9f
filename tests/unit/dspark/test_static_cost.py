"""Costs of static steps are measured in the shapes that steps will have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dspark import load_drafter, load_target
from dspark.static_cost import shared_out, static_cost
from dspark.step_cost import PROFILED_SEQUENCES

Write = Callable[..., Path]


def test_there_is_a_cost_for_every_step_that_is_weighed(
    tiny_folder: Path, write_drafter: Write
) -> None:
    target = load_target(tiny_folder)
    drafter = load_drafter(write_drafter(), target)
    table = static_cost(target, drafter)
    assert len(table.step_ms) == PROFILED_SEQUENCES * (1 + drafter.block_size)
    assert len(table.drafting_ms) == PROFILED_SEQUENCES
    assert list(table.step_ms) == sorted(table.step_ms)


@given(st.integers(1, 100), st.integers(1, 9))
def test_tokens_are_shared_out_evenly_among_few_sequences(tokens: int, longest: int) -> None:
    counts = shared_out(tokens, longest)
    assert sum(counts) == tokens
    assert max(counts) <= longest
    assert max(counts) - min(counts) <= 1
    assert (len(counts) - 1) * longest < tokens
