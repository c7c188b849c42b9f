"""Steps in static shapes compute what ragged ones do, and padding touches nothing that lives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from dspark import Target, load_target
from dspark.graphs import Graphs
from dspark.kv_cache import TILE, KvCache
from dspark.static_shapes import InputTable, StaticShapes, doublings, fitting
from dspark.static_step import StaticForward
from dspark.target import Span
from tests.unit.dspark.tape import Tape

SLOTS = 3
LONGEST = 5
CONTEXT = 128
TOLERANCE = 1e-4  # absolute, in float32: sums are made in another order
TAPS = (-1, 1)
NEVER_WRITTEN = 123.0


@pytest.fixture(scope="module")
def model(tiny_folder: Path) -> Target:
    return load_target(tiny_folder)


def static(target: Target, cache: KvCache, graphs: Graphs | None = None) -> StaticForward:
    shapes = StaticShapes.of(sequences=SLOTS, tokens=LONGEST, positions=CONTEXT)
    return StaticForward(target, cache, shapes, graphs or Graphs(), taps=TAPS)


def tokens(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, 64, (count,), generator=generator).tolist()


def steps_of(lengths: Sequence[Sequence[int]]) -> list[list[Span]]:
    """Steps in which each slot grows by the given numbers of tokens, 0 for not taking part."""
    starts = [0] * SLOTS
    steps = []
    for number, growth in enumerate(lengths):
        spans = []
        for slot, count in enumerate(growth):
            if count:
                new = tokens(count, 100 * number + slot)
                spans.append(Span(slot, starts[slot], new, logits=count))
                starts[slot] += count
        steps.append(spans)
    return steps


def largest_difference(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True))


def check(target: Target, steps: Sequence[Sequence[Span]], graphs: Graphs | None = None) -> None:
    """Every step gives what the ragged forward gives."""
    ragged_cache, cache = target.new_cache(SLOTS, CONTEXT), target.new_cache(SLOTS + 1, CONTEXT)
    forward = static(target, cache, graphs)
    with torch.inference_mode():
        for spans in steps:
            expected = target.forward(spans, ragged_cache, TAPS)
            found = forward(spans)
            assert largest_difference(found.logits, expected.logits) < TOLERANCE
            assert expected.features is not None and found.features is not None
            assert largest_difference(found.features, expected.features) < TOLERANCE


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(*[st.integers(0, LONGEST + 3)] * SLOTS).filter(any), min_size=1, max_size=6)
)
def test_any_steps_give_what_ragged_ones_give(
    model: Target, lengths: list[tuple[int, ...]]
) -> None:
    check(model, steps_of(lengths))


def test_replays_give_what_ragged_steps_give(model: Target) -> None:
    """With one recording a shape: whatever changes between steps is in the tensors."""
    tape = Tape()
    steps = steps_of([(4, 3, 1), (1, 1, 1), (5, 0, 5), (1, 1, 1), (0, 4, 0), (1, 1, 1), (2, 5, 3)])
    check(model, steps, Graphs(tape))
    assert tape.replayed == len(steps)
    assert tape.recorded < tape.replayed


def test_rows_in_any_order_are_the_slots_they_name(model: Target) -> None:
    steps = steps_of([(4, 2, 3), (2, 3, 1), (1, 1, 1)])
    check(model, [spans[::-1] for spans in steps])


@pytest.mark.parametrize("start", [TILE - 1, TILE, 2 * TILE - LONGEST - 1, CONTEXT - LONGEST])
def test_contexts_end_anywhere(model: Target, start: int) -> None:
    before = Span(1, 0, tokens(start, 1), logits=1)
    check(model, [[before], [Span(1, start, tokens(LONGEST, 2), logits=LONGEST)]])


def test_the_last_position_of_the_context_can_be_computed(model: Target) -> None:
    before = Span(0, 0, tokens(CONTEXT - 1, 1), logits=1)
    other = Span(2, 0, tokens(3, 3), logits=3)
    check(model, [[before], [Span(0, CONTEXT - 1, [5]), other]])


@pytest.mark.parametrize(("positions", "context"), [(1, 256), (256, 256), (257, 512), (600, 640)])
def test_the_context_that_is_looked_at_just_holds_the_positions(
    positions: int, context: int
) -> None:
    shapes = StaticShapes.of(sequences=4, tokens=8, positions=640)
    assert shapes.contexts == (256, 512, 640)
    assert shapes.fit(3, 5, positions) == (4, 8, context)


def test_more_context_buckets_than_one_give_the_same(tiny_folder: Path) -> None:
    target = load_target(tiny_folder)
    shapes = StaticShapes((1, 3), (1, LONGEST), (TILE, 2 * TILE))
    expected_cache, cache = target.new_cache(SLOTS, CONTEXT), target.new_cache(SLOTS + 1, CONTEXT)
    forward = StaticForward(target, cache, shapes, Graphs(Tape()))
    with torch.inference_mode():
        first = [Span(0, 0, tokens(TILE - LONGEST, 4), logits=1)]
        target.forward(first, expected_cache)
        forward(first)
        # The first step ends with the smaller context, the others begin with and after it.
        for start in (TILE - LONGEST, TILE, TILE + LONGEST):
            spans = [Span(0, start, tokens(LONGEST, start), logits=LONGEST)]
            expected = target.forward(spans, expected_cache).logits
            assert largest_difference(forward(spans).logits, expected) < TOLERANCE


def written(cache: KvCache) -> Tensor:
    """`[slots, positions]`: whether anything was stored there."""
    return (cache.keys != NEVER_WRITTEN).any(-1).any(2).any(0)


def test_padding_writes_into_the_spare_slot_only(model: Target) -> None:
    cache = model.new_cache(SLOTS + 1, CONTEXT)
    forward = static(model, cache, Graphs(Tape()))
    cache.keys.fill_(NEVER_WRITTEN)
    spans = [Span(0, 7, [5, 6, 7]), Span(2, CONTEXT - 1, [9])]
    with torch.inference_mode():
        forward.prepare()
        assert not written(cache)[:SLOTS].any()
        forward(spans)
    expected = torch.zeros((SLOTS, CONTEXT), dtype=torch.bool)
    expected[0, 7:10] = True
    expected[2, CONTEXT - 1] = True
    assert torch.equal(written(cache)[:SLOTS], expected)


def test_preparing_records_every_shape(model: Target) -> None:
    tape = Tape()
    forward = static(model, model.new_cache(SLOTS + 1, CONTEXT), Graphs(tape))
    shapes = StaticShapes.of(sequences=SLOTS, tokens=LONGEST, positions=CONTEXT)
    with torch.inference_mode():
        forward.prepare()
        prepared = tape.recorded
        forward([Span(1, 0, [5, 6]), Span(2, 0, [7])])
    assert prepared == len(list(shapes)) == tape.recorded


def test_long_pieces_of_prompts_and_decoding_share_a_step(model: Target) -> None:
    check(model, steps_of([(20, 0, 3), (1, 30, 1), (2, 1, 40), (1, 1, 1)]))


def test_bfloat16_is_computed_in_static_shapes_too(tiny_folder: Path) -> None:
    target = load_target(tiny_folder, dtype="bfloat16")
    cache, ragged_cache = target.new_cache(SLOTS + 1, CONTEXT), target.new_cache(SLOTS, CONTEXT)
    spans = steps_of([(4, 5, 1)])[0]
    with torch.inference_mode():
        found = static(target, cache)(spans).logits
        expected = target.forward(spans, ragged_cache).logits
    scale = max(float(each.abs().max()) for each in expected)
    assert largest_difference(found, expected) < 0.05 * scale  # some of bfloat16's 8 bits


@given(st.integers(1, 40), st.integers(1, 200))
def test_sizes_double_up_to_the_largest(smallest: int, largest: int) -> None:
    sizes = doublings(smallest, largest)
    assert sizes[-1] == largest
    assert list(sizes[:-1]) == [smallest * 2**index for index in range(len(sizes) - 1)]
    assert all(size < largest for size in sizes[:-1])
    for needed in range(1, largest + 1):
        size = fitting(sizes, needed)
        assert size >= needed
        assert not [each for each in sizes if needed <= each < size]


def test_an_input_table_keeps_its_place_and_pads() -> None:
    inputs = InputTable(3, 4, torch.int64, torch.device("cpu"))
    place = inputs.table.data_ptr()
    inputs.send([(1, 2, 3, 4), (5, 6)], padding=(9, 0))
    assert inputs.table[:, :2].tolist() == [[1, 2], [5, 6], [9, 0]]
    inputs.send([], padding=(7,))
    assert inputs.table[:, 0].tolist() == [7, 7, 7]
    assert inputs.table.data_ptr() == place


Write = Callable[..., Path]


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["LlamaForCausalLM"]},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1},
    ],
    ids=["llama", "no groups", "one group"],
)
def test_other_shapes_of_models(config: dict[str, object], write_model: Write) -> None:
    check(load_target(write_model(config)), steps_of([(4, 2, 3), (1, 5, 0), (1, 1, 1)]))
