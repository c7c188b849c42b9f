"""A DSpark drafter fits its target or says why not, and drafts alike in any company."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dspark import (
    DrafterMismatch,
    DSparkDrafter,
    MissingTensor,
    SamplingParams,
    Target,
    TreeShape,
    UnsupportedArchitecture,
    WrongShape,
    load_drafter,
    load_target,
)
from dspark.calibration import Calibration, Calibrations
from dspark.drafters import Anchor, Draft
from dspark.drafters.part_vocabulary import PartVocabulary
from dspark.sampling import Sampler
from dspark.target import Span
from tests.unit.dspark.conftest import HEADS

Write = Callable[..., Path]
TOKENS = [3, 17, 60, 5, 5, 9, 44, 21, 8, 30]
CONTEXT = 64


def draft_after(
    target: Target,
    drafter: DSparkDrafter,
    pieces: Sequence[int],
    params: SamplingParams | None = None,
    most: int | None = None,
    tree: TreeShape | None = None,
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
        anchor = Anchor(1, anchor_position, TOKENS[-1], sampler, most)
        if tree is not None:
            return drafter.draft_trees(drafter_cache, [anchor], tree)[0]
        return drafter.draft(drafter_cache, [anchor])[0]


@pytest.mark.parametrize("head", HEADS)
def test_the_same_draft_however_the_features_came(
    head: str, target: Target, write_drafter: Write
) -> None:
    drafter = load_drafter(write_drafter({"markov_head_type": head}), target)
    at_once, in_pieces = (draft_after(target, drafter, pieces) for pieces in ([9], [1, 4, 3, 1]))
    assert at_once.tokens == in_pieces.tokens
    assert at_once.confidence == pytest.approx(in_pieces.confidence, abs=1e-5)
    assert len(at_once.tokens) == drafter.block_size == len(at_once.confidence)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("most", [1, 2, 9])
def test_no_more_is_drafted_than_is_of_use(
    most: int, temperature: float, target: Target, write_drafter: Write
) -> None:
    drafter = load_drafter(write_drafter(), target)
    draft = draft_after(target, drafter, [9], SamplingParams(temperature=temperature), most)
    assert len(draft.tokens) == len(draft.confidence) == min(most, drafter.block_size)
    assert len(draft.distributions) == (len(draft.tokens) if temperature else 0)


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


def test_every_position_of_a_block_sees_the_whole_block(
    target: Target, write_drafter: Write
) -> None:
    first = []
    for size in (1, 4):
        drafter = load_drafter(write_drafter({"block_size": size}), target)
        sampler = Sampler(SamplingParams(), TOKENS, [], random.Random(7))
        with torch.inference_mode():
            cache = drafter.new_cache(1, CONTEXT)
            hidden = drafter.block_hidden(cache, [Anchor(0, 0, TOKENS[0], sampler)])
        first.append(hidden[0, 0])
    assert not torch.allclose(first[0], first[1], atol=1e-3)


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


def test_without_a_sequential_head_no_position_depends_on_what_was_drawn(
    target: Target, write_drafter: Write
) -> None:
    folder = write_drafter({"markov_head_type": "none"})
    assert not any("markov" in name for name in load_file(folder / "model.safetensors"))
    drafter = load_drafter(folder, target)
    assert isinstance(drafter, DSparkDrafter)
    greedy = draft_after(target, drafter, [9])
    # Tokens drawn at random leave the next position's distribution and confidence as they are.
    drafts = [draft_after(target, drafter, [9], SamplingParams(temperature=t)) for t in (1e-3, 9.0)]
    assert drafts[0].tokens == greedy.tokens != drafts[1].tokens
    assert drafts[0].confidence == drafts[1].confidence == greedy.confidence
    flat = [row.log() * 9.0 for row in drafts[1].distributions]
    assert tuple(int(row.argmax()) for row in flat) == greedy.tokens


def test_a_part_of_the_vocabulary_drafts_those_tokens_alone(
    target: Target, write_drafter: Write
) -> None:
    ids = [50, 3, 17, 8, 62, 30, 11]
    drafter = load_drafter(write_drafter(vocabulary=ids), target)
    assert set(draft_after(target, drafter, [9]).tokens) <= set(ids)
    sampled = draft_after(target, drafter, [9], SamplingParams(temperature=5.0))
    for distribution in sampled.distributions:
        assert set(distribution.nonzero().flatten().tolist()) == set(ids)


def test_a_vocabulary_in_another_order_drafts_the_same(
    target: Target, write_drafter: Write, tiny_folder: Path
) -> None:
    shared = load_file(tiny_folder / "model.safetensors")["lm_head.weight"]
    order = torch.randperm(len(shared), generator=torch.Generator().manual_seed(1)).tolist()
    reordered = write_drafter(replaced={"lm_head.weight": shared[order]}, vocabulary=order)
    drafts = [
        draft_after(target, load_drafter(folder, target), [9])
        for folder in (reordered, write_drafter())
    ]
    assert drafts[0].tokens == drafts[1].tokens


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(repetition_penalty=1.5, presence_penalty=0.3, frequency_penalty=0.2),
        SamplingParams(logit_bias={3: 4.0, 50: 9.0}),
        SamplingParams(temperature=0.8, top_k=4, repetition_penalty=1.3, seed=1),
        SamplingParams(temperature=1.1, top_p=0.7, min_p=0.05, logit_bias={7: 3.0}, seed=2),
    ],
)
def test_choosing_in_a_part_of_the_vocabulary_is_choosing_with_all_others_at_zero(
    params: SamplingParams,
) -> None:
    torch.manual_seed(0)
    ids = torch.tensor([9, 3, 50, 7, 22, 41, 0])
    part = PartVocabulary(ids, 64)
    logits = torch.randn(len(ids)) * 2
    prompt, answer, drafted = [9, 60, 9], [3, 61, 22], [2, 4]  # drafted are places
    whole = Sampler(params, prompt, answer, random.Random(5))
    mapped = part.sampler(Sampler(params, prompt, answer, random.Random(5)))
    found = part.choice(mapped.choose(logits, drafted))
    expected = whole.choose(part.spread(logits[None])[0], ids[drafted].tolist())
    assert found.token == expected.token
    if expected.distribution is None:
        assert found.distribution is None
    else:
        torch.testing.assert_close(found.distribution, expected.distribution)


def test_a_vocabulary_beyond_the_targets_is_refused(target: Target, write_drafter: Write) -> None:
    with pytest.raises(DrafterMismatch, match="tokens that the target does not have"):
        load_drafter(write_drafter(vocabulary=[1, 64]), target)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("most", [1, 2, 9])
def test_a_tree_is_no_deeper_than_anchors_have_use_for(
    most: int, temperature: float, target: Target, write_drafter: Write
) -> None:
    drafter = load_drafter(write_drafter(), target)
    params = SamplingParams(temperature=temperature)
    draft = draft_after(target, drafter, [9], params, most, TreeShape.of_widths(2, 1, 1, 1, 1))
    assert draft.tree is not None
    assert draft.tree.depth == min(most, drafter.block_size)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_calibration_for_the_kind_of_request_is_applied(
    target: Target, write_drafter: Write, temperature: float
) -> None:
    folder = write_drafter()
    params = SamplingParams(temperature=temperature, seed=1)
    raw = draft_after(target, load_drafter(folder, target), [9], params).confidence
    sampled, greedy = Calibration((2.0,)), Calibration((0.5,), (1.0,))
    Calibrations(sampled, greedy).write(folder)
    calibrated = draft_after(target, load_drafter(folder, target), [9], params).confidence
    expected = sampled if temperature else greedy
    assert calibrated == pytest.approx(expected.apply(raw))
    assert calibrated != pytest.approx(raw)
    tree = draft_after(
        target, load_drafter(folder, target), [9], params, tree=TreeShape.of_widths(2)
    )
    assert tree.confidence[0] == pytest.approx(calibrated[0])


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
        ({"markov_head_type": "lstm"}, "known are none, vanilla, gated, rnn"),
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
