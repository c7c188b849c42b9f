"""A DSpark drafter fits its target or says why not, and drafts alike in any company."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from dspark import (
    DrafterMismatch,
    DSparkDrafter,
    MissingTensor,
    SamplingParams,
    Target,
    UnsupportedArchitecture,
    WrongShape,
    load_drafter,
    load_target,
)
from dspark.drafters import Anchor, Draft
from dspark.sampling import Sampler
from dspark.target import Span

Write = Callable[..., Path]
TOKENS = [3, 17, 60, 5, 5, 9, 44, 21, 8, 30]
CONTEXT = 64


def draft_after(
    target: Target,
    drafter: DSparkDrafter,
    pieces: Sequence[int],
    params: SamplingParams | None = None,
) -> Draft:
    """The draft after `TOKENS`, whose features were taken in in pieces of the given sizes."""
    anchor_position = len(TOKENS) - 1
    assert sum(pieces) == anchor_position
    cache, drafter_cache = target.new_cache(1, CONTEXT), drafter.new_cache(2, CONTEXT)
    start = 0
    with torch.inference_mode():
        for size in pieces:
            spans = [Span(0, start, TOKENS[start : start + size])]
            features = target.forward(spans, cache, drafter.taps).features
            assert features is not None
            drafter.extend(drafter_cache, 1, start, features[0])
            start += size
        sampler = Sampler(params or SamplingParams(), TOKENS, [], random.Random(7))
        anchor = Anchor(1, anchor_position, TOKENS[-1], sampler)
        return drafter.draft(drafter_cache, [anchor])[0]


@pytest.mark.parametrize("head", ["vanilla", "gated", "rnn"])
def test_the_same_draft_however_the_features_came(
    head: str, target: Target, write_drafter: Write
) -> None:
    drafter = load_drafter(write_drafter({"markov_head_type": head}), target)
    at_once, in_pieces = (draft_after(target, drafter, pieces) for pieces in ([9], [1, 4, 3, 1]))
    assert at_once.tokens == in_pieces.tokens
    assert at_once.confidence == pytest.approx(in_pieces.confidence, abs=1e-5)
    assert len(at_once.tokens) == drafter.block_size == len(at_once.confidence)


def test_a_block_leaves_no_trace_for_the_next(target: Target, write_drafter: Write) -> None:
    drafter = load_drafter(write_drafter(), target)
    cache = drafter.new_cache(1, CONTEXT)
    with torch.inference_mode():
        spans = [Span(0, 0, TOKENS)]
        features = target.forward(spans, target.new_cache(1, CONTEXT), drafter.taps).features
        assert features is not None
        sampler = Sampler(SamplingParams(), TOKENS, [], random.Random(7))
        first, last = (Anchor(0, 4, TOKENS[4], sampler), Anchor(0, 9, TOKENS[9], sampler))
        drafter.extend(cache, 0, 0, features[0][:4])
        drafter.draft(cache, [first])
        drafter.extend(cache, 0, 4, features[0][4:9])
        after_another = drafter.draft(cache, [last])[0]
    assert after_another.tokens == draft_after(target, drafter, [9]).tokens


def test_a_sampled_draft_names_the_distributions_it_was_drawn_from(
    target: Target, write_drafter: Write
) -> None:
    drafter = load_drafter(write_drafter(), target)
    params = SamplingParams(temperature=1.0, top_k=5)
    draft = draft_after(target, drafter, [9], params)
    assert len(draft.distributions) == drafter.block_size
    for token, distribution in zip(draft.tokens, draft.distributions, strict=True):
        assert distribution[token] > 0
        assert int((distribution > 0).sum()) <= 5
    assert draft_after(target, drafter, [9]).distributions == ()


def test_a_drafter_needs_no_copies_of_the_targets_tensors(
    target: Target, write_drafter: Write
) -> None:
    whole = load_drafter(write_drafter(), target)
    lean = load_drafter(write_drafter(without=["embed_tokens.weight", "lm_head.weight"]), target)
    assert draft_after(target, whole, [9]).tokens == draft_after(target, lean, [9]).tokens


def test_without_a_confidence_head_everything_is_certain(
    target: Target, write_drafter: Write
) -> None:
    drafter = load_drafter(write_drafter({"enable_confidence_head": False}), target)
    assert draft_after(target, drafter, [9]).confidence == (1.0,) * drafter.block_size


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_a_drafter_works_in_its_targets_precision(
    dtype: str, tiny_folder: Path, write_drafter: Write
) -> None:
    target = load_target(tiny_folder, dtype=dtype)
    drafter = load_drafter(write_drafter({"markov_head_type": "rnn"}), target)
    draft = draft_after(target, drafter, [9])
    assert len(draft.tokens) == drafter.block_size
    assert all(0 < confidence < 1 for confidence in draft.confidence)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"vocab_size": 96}, "vocab_size 96, and the target has 64"),
        ({"hidden_size": 48}, "hidden_size 48"),
        ({"num_target_layers": 36}, "num_target_layers 36"),
        ({"target_layer_ids": [0, 2]}, r"layers \[0, 2\], and the target offers -1 … 1"),
    ],
)
def test_a_drafter_of_another_target_is_refused(
    config: dict[str, object], complaint: str, target: Target, write_drafter: Write
) -> None:
    with pytest.raises(DrafterMismatch, match=complaint):
        load_drafter(write_drafter(config), target)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"markov_head_type": "lstm"}, "known are vanilla, gated, rnn"),
        ({"block_size": None}, "'block_size': it is no DSpark drafter"),
        ({"target_layer_ids": []}, "'target_layer_ids': it is no DSpark"),
        ({"architectures": ["EagleModel"]}, "EagleModel"),
    ],
)
def test_what_is_no_dspark_drafter_is_refused(
    config: dict[str, object], complaint: str, target: Target, write_drafter: Write
) -> None:
    with pytest.raises(UnsupportedArchitecture, match=complaint):
        load_drafter(write_drafter(config), target)


def test_missing_and_misshapen_tensors_are_named(target: Target, write_drafter: Write) -> None:
    with pytest.raises(MissingTensor, match=r"fc\.weight"):
        load_drafter(write_drafter(without=["fc.weight"]), target)
    with pytest.raises(WrongShape, match=r"markov_w1\.weight"):
        load_drafter(write_drafter({"markov_rank": 8}), target)
