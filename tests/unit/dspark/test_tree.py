"""Trees: their shapes, that verifying them draws from the target, and that they leave no trace."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dspark import Engine, InvalidRequest, SamplingParams, Target, load_drafter, load_target
from dspark.drafters import Anchor, Draft, PromptLookupDrafter
from dspark.drafters.branched import likeliest_first
from dspark.drafters.growing import GrowingTree, Outlook, Place, grow
from dspark.policies import survival
from dspark.sampling import Sampler
from dspark.scheduler import SCHEDULES, Scheduler
from dspark.step_cost import StepCostTable
from dspark.target import Span
from dspark.tree import ANCHOR, TreeShape
from dspark.verification import verify_tree
from tests.unit.dspark.rivals import RIVALS, TREE, rival
from tests.unit.dspark.test_verification import (
    DRAFTER,
    LENGTH,
    PROMPT,
    SETTINGS,
    TARGET,
    VOCAB,
    Tokens,
    chi_square,
    critical_value,
    exact,
)

Write = Callable[..., Path]


@st.composite
def shapes(draw: Callable[..., Any], most: int = 12) -> TreeShape:
    nodes = draw(st.integers(1, most))
    return TreeShape(tuple(draw(st.integers(ANCHOR, node - 1)) for node in range(nodes)))


# --- shapes --------------------------------------------------------------------------------------


def test_widths_make_a_level_each() -> None:
    shape = TreeShape.of_widths(2, 2, 1)
    assert shape.parents == (-1, -1, 0, 0, 1, 1, 2, 3, 4, 5)
    assert shape.depth == 3
    assert [len(level) for level in shape.levels()] == [2, 4, 4]
    assert TreeShape.parse("2x2x1") == shape


def test_the_likeliest_tree_takes_the_likeliest_node_again_and_again() -> None:
    shape = TreeShape.likeliest(6, acceptance=(0.6, 0.3), depth=3)
    # 0.6, 0.36, 0.3, 0.216, 0.18 (the second's second child), 0.18 (under the second candidate)
    assert shape.parents[:4] == (-1, 0, -1, 1)
    assert sorted(shape.parents[4:]) == [0, 2]
    assert TreeShape.likeliest(3, acceptance=(0.9,)).parents == (-1, 0, 1)
    assert TreeShape.parse("8") == TreeShape.likeliest(8)


def test_second_candidates_stand_beside_a_chain() -> None:
    shape = TreeShape.with_seconds(4, 2)
    # 0.5, 0.25, the second one 0.15, 0.125, the second's second one 0.075, 0.0625
    assert shape.parents == (-1, 0, -1, 1, 0, 3)
    assert shape.ranks == (0, 0, 1, 0, 1, 0)
    assert TreeShape.parse("4+2") == shape
    for depth in range(1, 7):
        for seconds in range(depth + 1):
            assert TreeShape.with_seconds(depth, seconds).seconds == seconds


def test_a_greedy_trees_nodes_come_as_they_are_likely_to_stand() -> None:
    shape = TreeShape.with_seconds(3, 2)  # 1st, 2nd, another 1st, 3rd, another 2nd
    doubtful = Draft((1, 2, 3, 4, 5), (), (0.5, 0.2, 0.6, 0.9, 0.3), shape)
    # They stand with 0.5, 0.1, 0.3, 0.09 and 0.12.
    assert likeliest_first(doubtful).tokens == (1, 3, 2, 5, 4)
    sure = Draft((1, 2, 3, 4, 5), (), (0.9, 0.9, 0.3, 0.9, 0.3), shape)
    found = likeliest_first(sure)
    assert found.tokens == (1, 2, 4, 3, 5)
    assert found.tree is not None and found.tree.parents == (-1, 0, 1, -1, 0)
    chain = Draft((1, 2), (), (0.5, 0.5))
    assert likeliest_first(chain) is chain


def test_a_chain_is_known() -> None:
    assert all(TreeShape.with_seconds(depth, 0).is_chain for depth in range(1, 6))
    assert not TreeShape.with_seconds(3, 1).is_chain
    assert TreeShape.with_seconds(3, 1).taking((0, 1)).is_chain


@pytest.mark.parametrize(
    "shape",
    [
        TreeShape.of_widths(3),
        TreeShape.of_widths(2, 1),
        TreeShape((-1, -1, 1)),
        TreeShape((-1, 0, 0, 2)),
    ],
    ids=["three candidates", "both go on", "the second goes on", "the second's second goes on"],
)
def test_other_trees_are_more_than_second_candidates(shape: TreeShape) -> None:
    assert shape.seconds is None


@pytest.mark.parametrize(
    "text", ["", "x", "3x", "0", "2x0", "-1", "big", "+", "5+", "5+6", "0+0", "5+-1", "5+2+1"]
)
def test_text_that_is_no_tree_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        TreeShape.parse(text)


def test_more_second_candidates_than_places_are_named_as_that() -> None:
    with pytest.raises(InvalidRequest, match="5 tokens with 6 second candidates"):
        TreeShape.parse("5+6")


def test_a_child_before_its_parent_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="parents must come before children"):
        TreeShape((0,))


@given(shapes(), st.data())
def test_depth_first_each_node_follows_its_parent_or_a_siblings_branch(
    shape: TreeShape, data: st.DataObject
) -> None:
    order = shape.depth_first()
    sorted_shape = shape.taking(order)
    assert sorted(order) == list(range(len(shape)))
    for node, parent in enumerate(sorted_shape.parents):
        between = range(parent + 1, node)
        assert all(parent in (ANCHOR, *sorted_shape.path(each)) for each in between)
    runs = list(sorted_shape.runs())
    assert [node for run in runs for node in run] == list(range(len(shape)))
    depth = data.draw(st.integers(1, 4))
    kept = shape.within(depth, data.draw(st.integers(0, 12)))
    assert shape.taking(kept).depth <= depth


@given(shapes(), st.data())
def test_survival_is_what_a_node_adds_to_the_expected_tokens(
    shape: TreeShape, data: st.DataObject
) -> None:
    confidence = tuple(data.draw(st.floats(0, 1)) for _ in shape.parents)
    draft = Draft((0,) * len(shape), confidence=confidence, tree=shape)

    def expected(node: int, left: int) -> float:
        """Tokens after a node, of the nodes before `left`."""
        tokens, none = 0.0, 1.0
        for child in shape.children(node):
            if child < left:
                tokens += none * confidence[child] * (1 + expected(child, left))
                none *= 1 - confidence[child]
        return tokens

    for count in range(len(shape) + 1):
        assert sum(islice(survival(draft), count)) == pytest.approx(expected(ANCHOR, count))


# --- sampling ------------------------------------------------------------------------------------


def grown(sampler: Sampler, shape: TreeShape) -> Draft:
    """A tree of what the drafter of these tests thinks.

    Confidences are arbitrary, and depend on all that they may: the token before, and the siblings
    before.
    """

    def look_out(trees: Sequence[GrowingTree], places: Sequence[Place]) -> Outlook:
        paths = [[trees[0].tokens[each] for each in shape.path(node)] for _, node in places]
        logits = torch.stack([DRAFTER([*sampler.answer, *path]) for path in paths])
        return Outlook(logits, [0.5] * len(places), [None] * len(places))

    (draft,) = grow([Anchor(0, 0, 0, sampler)], shape, look_out)
    assert draft.tree is not None
    seen = []
    for node, parent in enumerate(draft.tree.parents):
        before = [each for each in draft.tree.children(parent) if each < node]
        seen.append(tuple(draft.tokens[each] for each in (*draft.tree.path(parent), *before)))
    return replace(draft, confidence=tuple(arbitrary(each) for each in seen))


@cache
def arbitrary(tokens: Tokens) -> float:
    return random.Random(repr(tokens)).choice((0.15, 0.4, 0.7, 0.95))


def looked_up(sampler: Sampler, shape: TreeShape) -> Draft:
    drafter = PromptLookupDrafter.__new__(PromptLookupDrafter)
    drafter._longest, drafter._shortest, drafter.block_size = 2, 1, 2
    drafter._vocab_size, drafter._device = VOCAB, torch.device("cpu")
    anchor = Anchor(0, 0, 0, sampler)
    (draft,) = drafter.draft_trees(None, [anchor], shape)
    return draft


def answer(
    params: SamplingParams,
    rng: random.Random,
    draft_: Callable[[Sampler, TreeShape], Draft],
    scheduler: Scheduler,
) -> Tokens:
    tokens: list[int] = []
    sampler = Sampler(params, PROMPT * 3, tokens, rng)
    while len(tokens) < LENGTH:
        draft = draft_(sampler, SHAPE)
        draft = draft.taking(range(scheduler.schedule(1, [draft])[0]))
        assert draft.tree is not None
        draft = draft.taking(draft.tree.depth_first())
        assert draft.tree is not None
        paths = [
            [draft.tokens[each] for each in draft.tree.path(node)]
            for node in range(ANCHOR, len(draft.tokens))
        ]
        logits = torch.stack([TARGET([*tokens, *path]) for path in paths])
        path, token = verify_tree(logits, draft, sampler)
        tokens += [*(draft.tokens[node] for node in path), token]
    return tuple(tokens[:LENGTH])


SHAPE = TreeShape((-1, -1, 0, 0, 1, 2, -1))
DRAFTS = {"without replacement": grown, "certain": looked_up}


# With stairs, so that schedules have something to weigh.
COSTS = StepCostTable((10.0, 10.5, 11.0, 13.5, 13.6, 13.8, 18.0, 18.2), (0.5,))


@pytest.mark.parametrize(
    ("drafts", "name", "schedule"),
    [
        *(("without replacement", name, "full") for name in SETTINGS),
        *(("certain", name, "full") for name in ("temperature 1", "top-p", "penalties")),
        *(("without replacement", "temperature 1", each) for each in SCHEDULES[2:]),
    ],
)
def test_answers_are_distributed_as_the_targets_own(name: str, drafts: str, schedule: str) -> None:
    params = SETTINGS[name]
    scheduler = Scheduler.named(schedule, COSTS, confidence_threshold=0.3)
    probabilities = exact(params)  # the prompt repeats itself here, which no setting minds
    rng = random.Random(9)
    counts = Counter(answer(params, rng, DRAFTS[drafts], scheduler) for _ in range(800))
    assert set(counts) <= set(probabilities), "an answer that the target never gives"
    statistic, degrees = chi_square(counts, probabilities)
    assert statistic < critical_value(degrees)


def test_candidates_are_drawn_without_replacement() -> None:
    sampler = Sampler(SETTINGS["temperature 1"], PROMPT, [], random.Random(1))
    draft = grown(sampler, TreeShape.of_widths(VOCAB + 2))
    assert sorted(draft.tokens) == list(range(VOCAB))  # and then there is none left
    for node, token in enumerate(draft.tokens):
        assert float(draft.distributions[node][token]) > 0
        assert all(draft.distributions[node][each] == 0 for each in draft.tokens[:node])


def test_a_greedy_trees_candidates_are_the_most_probable_ones() -> None:
    sampler = Sampler(SamplingParams(), PROMPT, [], random.Random(1))
    draft = grown(sampler, SHAPE)
    best = DRAFTER([]).argsort(descending=True).tolist()
    assert [draft.tokens[node] for node in SHAPE.children(ANCHOR)] == best[:3]


def test_a_greedy_path_ends_where_no_candidate_is_the_targets() -> None:
    sampler = Sampler(SamplingParams(), PROMPT, [], random.Random(0))
    best = int(TARGET([]).argmax())
    after = int(TARGET([best]).argmax())
    tree = TreeShape((-1, -1, 1))
    draft = Draft(((best + 1) % VOCAB, best, after), tree=tree)
    logits = torch.stack([TARGET([]), TARGET([0]), TARGET([best]), TARGET([best, after])])
    assert verify_tree(logits, draft, sampler) == ((1, 2), int(TARGET([best, after]).argmax()))
    assert verify_tree(logits[:2], draft, sampler) == ((), best)


# --- the target's step ---------------------------------------------------------------------------


WIDE_HEADS = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "head_dim": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
"""Of which integer layers are computed by compiled code, where there can be any."""


@pytest.mark.parametrize(
    ("config", "dtype"),
    [({}, "int8"), ({}, "float32"), (WIDE_HEADS, "int8"), (WIDE_HEADS, "int4")],
    ids=["int8", "float32", "wide int8", "wide int4"],
)
@pytest.mark.parametrize("start", [1, 7, 61, 62, 64])
def test_a_tree_in_one_step_gives_the_bits_of_its_paths_alone(
    config: dict[str, object], dtype: str, start: int, write_model: Write
) -> None:
    """Logits, features, and what is kept in the cache; across the borders of tiles, too."""
    target = load_target(write_model(config), dtype=dtype)
    prompt = [(7 * place) % 60 + 2 for place in range(start)]
    shape = TreeShape.likeliest(9, acceptance=(0.5, 0.4, 0.3))
    shape = shape.taking(shape.depth_first())
    tokens = [10 + node for node in range(len(shape))]
    anchor, taps = 5, (-1, 1)
    same = partial(torch.allclose, atol=1e-3) if dtype == "float32" else torch.equal

    def forward(*spans: Span) -> tuple[Any, Any]:
        cache = target.new_cache(2, 128)
        target.forward([Span(0, 0, prompt)], cache)
        return [target.forward([span], cache, taps) for span in spans][-1], cache

    with torch.inference_mode():
        for node in range(ANCHOR, len(shape)):
            path = shape.path(node)
            in_tree, cache = forward(
                Span(0, start, [anchor, *tokens], logits=len(tokens) + 1, tree=shape)
            )
            rows = [0, *(1 + each for each in path)]
            cache.keep(0, start, rows)
            one_by_one = [
                Span(0, start + place, [token])
                for place, token in enumerate([anchor, *(tokens[each] for each in path)])
            ]
            alone, plain_cache = forward(*one_by_one)
            stop = start + len(rows)
            assert same(in_tree.logits[0][1 + node], alone.logits[0][0])
            assert same(in_tree.features[0][1 + node], alone.features[0][0])
            for kept, plain in ((cache.keys, plain_cache.keys), (cache.values, plain_cache.values)):
                assert same(kept[:, 0, :, :stop], plain[:, 0, :, :stop])


@pytest.mark.parametrize("name", [*RIVALS, "dspark"])
def test_an_engines_cache_holds_what_plain_decoding_leaves(
    name: str, tiny_folder: Path, tmp_path: Path, write_drafter: Write
) -> None:
    target = load_target(tiny_folder, dtype="int8")
    drafter = rival(name, target, write_drafter() if name == "dspark" else tmp_path)
    params = SamplingParams(max_new_tokens=40, logit_bias={1: float("-inf")})
    caches = []
    for settings in ({}, {"drafter": drafter, "tree": TREE}):
        with Engine(target, slots=1, context_tokens=128, **settings) as engine:  # type: ignore[arg-type]
            tokens = engine.generate([7, 3] * 6, params).token_ids
            caches.append((tokens, engine._steps.cache))
    (plain_tokens, plain), (tokens, drafted) = caches
    stop = 12 + len(tokens) - 1
    assert tokens == plain_tokens
    assert torch.equal(plain.keys[:, 0, :, :stop], drafted.keys[:, 0, :, :stop])
    assert torch.equal(plain.values[:, 0, :, :stop], drafted.values[:, 0, :, :stop])


def test_trees_work_in_static_steps_too(tiny_folder: Path, write_drafter: Write) -> None:
    target = load_target(tiny_folder)
    params = SamplingParams(max_new_tokens=20, logit_bias={1: float("-inf")})
    with Engine(target, context_tokens=128) as plain:
        expected = plain.generate([4, 5, 6], params).token_ids
    for source in (write_drafter(), "layer-skip:2", "prompt-lookup"):
        drafter = load_drafter(source, target)
        with Engine(target, drafter, tree=TREE, context_tokens=128, static_steps=True) as engine:
            assert engine.generate([4, 5, 6], params).token_ids == expected
            assert engine.metrics.drafter_failures == 0


@pytest.mark.parametrize("tokens", range(1, 9))
def test_no_tree_reaches_beyond_the_answer_or_the_context(target: Target, tokens: int) -> None:
    drafter = load_drafter("layer-skip:2", target)
    prompt = [7, 3] * 6
    params = SamplingParams(max_new_tokens=tokens, logit_bias={1: float("-inf")})
    with Engine(target, drafter, tree=TREE, context_tokens=128) as engine:
        result = engine.generate(prompt, params)
    assert (len(result.token_ids), result.finish_reason) == (tokens, "length")
    unlimited = SamplingParams(max_new_tokens=99, logit_bias={1: float("-inf")})
    with Engine(target, drafter, tree=TREE, context_tokens=len(prompt) + tokens) as engine:
        assert len(engine.generate(prompt, unlimited).token_ids) == tokens
        assert engine.metrics.drafter_failures == 0


def test_a_step_tells_of_its_tree(target: Target) -> None:
    with Engine(target, load_drafter("layer-skip:2", target), tree=TREE) as engine:
        steps = engine.generate([7, 3] * 6, SamplingParams(max_new_tokens=30)).steps
        metrics = engine.metrics
    drafted = [step for step in steps if step.draft]
    assert drafted[0].tree == TREE
    assert drafted[0].scheduled == len(TREE)
    assert drafted[0].reach == TREE.depth
    assert all(step.accepted <= step.reach for step in steps)
    assert metrics.tokens_scheduled == sum(step.scheduled for step in steps)
    assert metrics.scheduled_at[0] == len(drafted)
    assert metrics.accepted_at[0] == sum(step.accepted > 0 for step in steps)
