"""A DSpark drafter in static shapes drafts what it drafts otherwise, for any rows together."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from dspark import DSparkDrafter, SamplingParams, Target, load_drafter, load_target
from dspark.calibration import Calibration, Calibrations
from dspark.device_sampling import Kind
from dspark.drafters import Anchor, Draft
from dspark.drafters.static_dspark import StaticDSparkDrafter
from dspark.graphs import Graphs
from dspark.kv_cache import KvCache
from dspark.sampling import Sampler
from dspark.static_shapes import StaticShapes
from dspark.static_step import StaticForward
from dspark.target import Span
from tests.unit.dspark.conftest import HEADS
from tests.unit.dspark.tape import Tape

Write = Callable[..., Path]
SLOTS = 3
CONTEXT = 100
LONGEST = 5
TOLERANCE = 1e-4
NEVER_WRITTEN = 123.0

GREEDY = SamplingParams()
SAMPLED = SamplingParams(temperature=1.0)
NARROW = SamplingParams(temperature=0.8, top_k=20, top_p=0.9, min_p=0.01)
PENALISED = SamplingParams(temperature=1.0, repetition_penalty=1.3)
MIXTURES = {
    "greedy": [GREEDY, GREEDY, GREEDY],
    "sampled": [SAMPLED, SAMPLED, SAMPLED],
    "narrow": [NARROW, NARROW, NARROW],
    "mixed": [NARROW, GREEDY, SAMPLED],
    "with one that needs its history": [GREEDY, PENALISED, SAMPLED],
}


class Pair:
    """A drafter in both ways, with targets' caches, fed with the same tokens."""

    def __init__(self, target: Target, drafter: DSparkDrafter, graphs: Graphs) -> None:
        self.target, self.drafter = target, drafter
        self.static = StaticDSparkDrafter(drafter, SLOTS, CONTEXT, graphs)
        self.cache = target.new_cache(SLOTS, CONTEXT)
        self.drafter_cache = drafter.new_cache(SLOTS, CONTEXT)
        self.forward = StaticForward(
            target,
            target.new_cache(SLOTS + 1, CONTEXT),
            StaticShapes.of(sequences=SLOTS, tokens=LONGEST, positions=CONTEXT),
            graphs,
            taps=drafter.taps,
            take_in=self.static.take_in,
        )
        self.lengths = [0] * SLOTS

    def feed(self, counts: Sequence[int], seed: int) -> None:
        """Let each slot's sequence grow by so many tokens."""
        generator = torch.Generator().manual_seed(seed)
        spans = []
        for slot, count in enumerate(counts):
            tokens = torch.randint(2, 60, (count,), generator=generator).tolist()
            if tokens:
                spans.append(Span(slot, self.lengths[slot], tokens))
                self.lengths[slot] += count
        ragged = self.target.forward(spans, self.cache, self.drafter.taps).features
        found = self.forward(spans).features
        assert ragged is not None and found is not None
        for span, expected, given in zip(spans, ragged, found, strict=True):
            assert expected is not None
            self.drafter.extend(self.drafter_cache, span.slot, span.start, expected)
            # Those of short spans have been taken in within the step.
            assert (given is None) == (len(span.tokens) <= LONGEST)
            if given is not None:
                self.static.extend(self.static.cache, span.slot, span.start, given)

    def drafts(
        self, params: Sequence[SamplingParams], slots: Sequence[int], token: int
    ) -> tuple[list[Draft], list[Draft]]:
        """The drafts in both ways, and the random numbers taken in both."""

        def anchors() -> list[Anchor]:
            return [
                Anchor(
                    slot,
                    self.lengths[slot],
                    token,
                    Sampler(params[slot], (4, 5), [6, token], random.Random(slot)),
                )
                for slot in slots
            ]

        ones, others = anchors(), anchors()
        found = self.static.draft(self.static.cache, ones)
        expected = self.drafter.draft(self.drafter_cache, others)
        for one, other in zip(ones, others, strict=True):
            assert one.sampler.rng.getstate() == other.sampler.rng.getstate()
        return found, expected


def check(found: Sequence[Draft], expected: Sequence[Draft]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.tokens == other.tokens
        assert one.confidence == pytest.approx(other.confidence, abs=TOLERANCE)
        assert len(one.distributions) == len(other.distributions)
        for row, expected_row in zip(one.distributions, other.distributions, strict=True):
            assert (row - expected_row).abs().max() < TOLERANCE


@pytest.mark.parametrize("mixture", MIXTURES)
@pytest.mark.parametrize("head", HEADS)
def test_drafts_are_the_ragged_drafters(
    head: str, mixture: str, tiny_folder: Path, write_drafter: Write
) -> None:
    target = load_target(tiny_folder)
    folder = write_drafter({"markov_head_type": head})
    Calibrations(Calibration((2.0,)), Calibration((0.5,), (1.0,))).write(folder)
    drafter = load_drafter(folder, target)
    pair = Pair(target, drafter, Graphs(Tape()))
    params = MIXTURES[mixture]
    with torch.inference_mode():
        pair.feed((30, 3, 9), seed=1)
        check(*pair.drafts(params, (0, 1, 2), token=7))
        for seed in range(2, 6):
            pair.feed((2, 5, 1), seed)
            check(*pair.drafts(params, (2, 0, 1), token=20 + seed))
            check(*pair.drafts(params, (1,), token=30 + seed))


def test_a_part_of_the_vocabulary_can_be_drafted_from(
    tiny_folder: Path, write_drafter: Write
) -> None:
    target = load_target(tiny_folder)
    vocabulary = [3, 8, 9, 20, 41, 63]
    drafter = load_drafter(write_drafter(vocabulary=vocabulary), target)
    pair = Pair(target, drafter, Graphs(Tape()))
    with torch.inference_mode():
        pair.feed((5, 3, 1), seed=1)
        for mixture in ("greedy", "mixed"):
            found, expected = pair.drafts(MIXTURES[mixture], (0, 1, 2), token=7)
            check(found, expected)
            assert {token for draft in found for token in draft.tokens} <= set(vocabulary)


def test_drafters_without_confidence_are_sure(tiny_folder: Path, write_drafter: Write) -> None:
    target = load_target(tiny_folder)
    drafter = load_drafter(write_drafter({"enable_confidence_head": False}), target)
    pair = Pair(target, drafter, Graphs(Tape()))
    with torch.inference_mode():
        pair.feed((5, 3, 1), seed=1)
        found, _ = pair.drafts(MIXTURES["mixed"], (0, 1, 2), token=7)
    assert all(draft.confidence == (1.0,) * drafter.block_size for draft in found)


def test_a_block_may_end_behind_the_context(tiny_folder: Path, write_drafter: Write) -> None:
    target = load_target(tiny_folder)
    pair = Pair(target, load_drafter(write_drafter(), target), Graphs())
    with torch.inference_mode():
        pair.feed((CONTEXT - 1, 2, 1), seed=1)
        check(*pair.drafts(MIXTURES["mixed"], (0, 1), token=7))


def test_padding_and_preparation_touch_the_spare_slot_only(
    tiny_folder: Path, write_drafter: Write
) -> None:
    target = load_target(tiny_folder)
    drafter = load_drafter(write_drafter(), target)
    tape = Tape()
    static = StaticDSparkDrafter(drafter, SLOTS, CONTEXT, Graphs(tape))
    static.cache.keys.fill_(NEVER_WRITTEN)
    with torch.inference_mode():
        static.prepare()
        prepared = tape.recorded
        assert not written(static.cache)[:SLOTS].any()
        sampler = Sampler(NARROW, (4,), [], random.Random(1))
        static.draft(static.cache, [Anchor(1, 9, 5, sampler)])
    assert tape.recorded == prepared
    assert prepared % len(Kind) == 0
    expected = torch.zeros((SLOTS, static.cache.keys.shape[3]), dtype=torch.bool)
    expected[1, 9 : 9 + drafter.block_size] = True
    assert torch.equal(written(static.cache)[:SLOTS], expected)


def written(cache: KvCache) -> torch.Tensor:
    """`[slots, positions]`: whether anything was stored there."""
    return (cache.keys != NEVER_WRITTEN).any(-1).any(2).any(0)


def test_a_distribution_that_is_none_makes_its_confidence_none(
    tiny_folder: Path, write_drafter: Write
) -> None:
    """So that the token is not verified; nothing else would tell."""
    target = load_target(tiny_folder)
    broken = {"markov_head.markov_w2.weight": torch.full((64, 6), float("nan"))}
    drafter = load_drafter(write_drafter(replaced=broken), target)
    static = StaticDSparkDrafter(drafter, SLOTS, CONTEXT, Graphs())
    sampler = Sampler(SAMPLED, (4,), [], random.Random(1))
    with torch.inference_mode():
        draft = static.draft(static.cache, [Anchor(1, 0, 5, sampler)])[0]
    assert not any(0 <= confidence <= 1 for confidence in draft.confidence)
