"""Whatever drafts, the answers are the target's own: each way to draft, with and without trees."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch

from dspark import (
    DrafterMismatch,
    Engine,
    InvalidRequest,
    SamplingParams,
    StepCostTable,
    Target,
    load_drafter,
    load_target,
    random_target,
)
from dspark.drafters import Anchor, Draft, Drafter, DraftModel, LayerSkipDrafter
from dspark.kv_cache import KvCache
from dspark.sampling import Sampler
from dspark.scheduler import SCHEDULES
from dspark.target import Forward, Span
from tests.unit.dspark.conftest import CONFIG, HEADS, VOCAB
from tests.unit.dspark.memory import tensor_bytes
from tests.unit.dspark.rivals import RIVALS, TREE, TREES, draft_model_folder, rival

PROMPTS = [[5, 9, 2, 33, 60], [7] * 23, [40, 3], list(range(10, 59))]
ANSWER = 20
# Drafting is free, and steps have stairs: every schedule has something to weigh.
COSTS = StepCostTable((10.0, 10.5, 11.0, 13.5, 13.6, 13.8, 18.0, 18.2))
Write = Callable[..., Path]


def longest(tokens: int = ANSWER, **settings: Any) -> SamplingParams:
    """Never stops by itself before `tokens`."""
    return SamplingParams(max_new_tokens=tokens, logit_bias={1: float("-inf")}, **settings)


def together(engine: Engine, params: SamplingParams) -> list[tuple[int, ...]]:
    generations = [engine.submit(prompt, params) for prompt in PROMPTS]
    return [tuple(t for step in each for t in step.committed) for each in generations]


@pytest.fixture(params=["float32", "int8"])
def exact_target(request: pytest.FixtureRequest, tiny_folder: Path) -> Target:
    return load_target(tiny_folder, dtype=request.param)


@pytest.fixture(params=TREES)
def tree(request: pytest.FixtureRequest) -> Any:
    return TREES[request.param]


@pytest.fixture(params=[*RIVALS, "none", "rnn"])
def drafter(
    request: pytest.FixtureRequest, exact_target: Target, tmp_path: Path, write_drafter: Write
) -> Drafter:
    """One of the rivals, or a DSpark drafter by its head."""
    if request.param in HEADS:
        return rival("dspark", exact_target, write_drafter({"markov_head_type": request.param}))
    return rival(request.param, exact_target, tmp_path)


def test_greedy_answers_are_those_of_plain_decoding(
    exact_target: Target, drafter: Drafter, tree: Any
) -> None:
    for params in (longest(), longest(repetition_penalty=1.3, presence_penalty=0.5)):
        with Engine(exact_target, context_tokens=128) as plain:
            expected = [plain.generate(prompt, params).token_ids for prompt in PROMPTS]
        with Engine(
            exact_target, drafter, tree=tree, context_tokens=128, prefill_tokens=8
        ) as engine:
            assert together(engine, params) == expected
            assert engine.generate(PROMPTS[3], params).token_ids == expected[3]
            assert engine.metrics.drafter_failures == 0
            assert engine.metrics.tokens_scheduled > 0


@pytest.mark.parametrize("name", RIVALS)
def test_the_rivals_are_right_now_and_then(name: str, tiny_folder: Path, tmp_path: Path) -> None:
    """Otherwise the tests here would say nothing of what is accepted."""
    target = load_target(tiny_folder)
    for shape in TREES.values():
        with Engine(
            target, rival(name, target, tmp_path), tree=shape, context_tokens=128
        ) as engine:
            together(engine, longest())
            together(engine, longest(temperature=0.5, seed=1))
            assert engine.metrics.tokens_accepted > 10


@pytest.mark.parametrize("name", RIVALS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_gives_the_answers_of_plain_decoding(
    schedule: str, name: str, tree: Any, tiny_folder: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("DSPARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("dspark.engine.profiled_cost", lambda *_: COSTS)
    target = load_target(tiny_folder)
    with Engine(target, context_tokens=128) as plain:
        expected = [plain.generate(prompt, longest(10)).token_ids for prompt in PROMPTS]
    drafter = rival(name, target, tmp_path)
    with Engine(target, drafter, schedule, tree=tree, context_tokens=128) as engine:
        assert together(engine, longest(10)) == expected


def sampled(engine: Engine, params: dict[str, Any], count: int) -> Counter[tuple[int, ...]]:
    """So many answers to one prompt, each with a seed of its own, several at a time."""
    generations = [
        engine.submit(NARROW_PROMPT, SamplingParams(**params, seed=seed)) for seed in range(count)
    ]
    return Counter(tuple(t for step in each for t in step.committed) for each in generations)


@pytest.fixture(scope="module")
def plain_counts(tiny_folder: Path) -> Counter[tuple[int, ...]]:
    with Engine(load_target(tiny_folder), slots=8, max_queue=SAMPLES, context_tokens=128) as engine:
        return sampled(engine, NARROW, SAMPLES)


SAMPLES = 400
# Three tokens after the first, of the three that a bias leaves possible. Each pair of those is in
# the prompt, so that there is always something to look up.
NARROW_PROMPT = [4, 4, 5, 5, 6, 6, 4, 6, 5, 4, 5]
NARROW: dict[str, Any] = {
    "temperature": 2.5,
    "max_new_tokens": 4,
    "logit_bias": {token: float("-inf") for token in range(VOCAB) if token not in (4, 5, 6)},
}


@pytest.mark.parametrize("name", RIVALS)
def test_sampled_answers_are_distributed_as_plain_ones(
    name: str, tree: Any, plain_counts: Counter[Any], tiny_folder: Path, tmp_path: Path
) -> None:
    target = load_target(tiny_folder)
    drafter = rival(name, target, tmp_path)
    with Engine(
        target, drafter, tree=tree, slots=8, max_queue=SAMPLES, context_tokens=128
    ) as engine:
        drafted = sampled(engine, NARROW, SAMPLES)
        assert engine.metrics.tokens_accepted > SAMPLES / 4
    statistic = degrees = 0.0
    for answer in plain_counts | drafted:
        one, other = plain_counts[answer], drafted[answer]
        if one + other >= 10:
            statistic += (one - other) ** 2 / (one + other)
            degrees += 1
    assert degrees >= 8, "the settings leave too few answers to compare"
    critical = degrees * (1 - 2 / (9 * degrees) + 3.09 * (2 / (9 * degrees)) ** 0.5) ** 3
    assert statistic < critical  # chi-square of two samples, p = 0.001


@pytest.mark.parametrize("name", RIVALS)
def test_every_token_comes_with_the_distribution_it_was_drawn_from(
    name: str, tree: Any, tiny_folder: Path, tmp_path: Path
) -> None:
    target = load_target(tiny_folder)
    drafter = rival(name, target, tmp_path, tree)
    cache = target.new_cache(1, 128) if name.startswith("layer-skip") else drafter.new_cache(1, 128)
    prompt = PROMPTS[0] * 3
    params = SamplingParams(temperature=1.5, top_p=0.9, repetition_penalty=1.2)
    anchor = Anchor(0, len(prompt) - 1, prompt[-1], Sampler(params, prompt, [], random.Random(2)))
    with torch.inference_mode():
        if name.startswith("layer-skip"):
            target.forward([Span(0, 0, prompt[:-1])], cache)
        (draft,) = drafter.draft(cache, [anchor])
    assert len(draft.distributions) == len(draft.tokens) > 1
    shape = draft.tree
    for node, token in enumerate(draft.tokens):
        path = shape.path(node) if shape else range(node + 1)
        siblings = shape.children(shape.parents[node]) if shape else (node,)
        before = [draft.tokens[each] for each in path[:-1]]
        earlier = [draft.tokens[each] for each in siblings if each < node]
        expected = torch.zeros(VOCAB)
        expected[token] = 1
        if name != "prompt-lookup":
            model = drafter_model(drafter)
            with torch.inference_mode():
                tokens = [*prompt, *before]
                logits = model.forward([Span(0, 0, tokens)], model.new_cache(1, 128)).logits[0]
            expected = anchor.sampler.distribution(logits[-1], before)
            expected[earlier] = 0
            expected /= expected.sum()
        torch.testing.assert_close(draft.distributions[node], expected, atol=1e-4, rtol=1e-3)


def drafter_model(drafter: Any) -> Target:
    """The model that it drafts with, whether it drafts trees or not."""
    model = getattr(drafter, "_drafter", drafter).model
    assert isinstance(model, Target)
    return model


# --- what each of them is ------------------------------------------------------------------------


def test_layer_skipping_adds_no_memory(tiny_folder: Path) -> None:
    """Less than a megabyte is asked for; of tensors it is nothing at all."""
    target = random_target({**CONFIG, "hidden_size": 256, "num_hidden_layers": 6}, dtype="int8")
    with Engine(target, context_tokens=128) as plain:
        plain.generate(PROMPTS[0], longest(4))
        before, cache_bytes = tensor_bytes(), plain.cache_bytes
    del plain
    drafter = load_drafter("layer-skip:3", target)
    with Engine(target, drafter, context_tokens=128) as engine:
        engine.generate(PROMPTS[0], longest(4))
        assert engine.cache_bytes == cache_bytes
        assert tensor_bytes() - before < 10_000


def test_layer_skipping_drafts_what_its_layers_say(tiny_folder: Path) -> None:
    target = load_target(tiny_folder)
    drafter = load_drafter("layer-skip:2:3", target)
    assert isinstance(drafter, LayerSkipDrafter)
    cache, prompt = target.new_cache(1, 128), PROMPTS[3]
    anchor = Anchor(
        0, len(prompt) - 1, prompt[-1], Sampler(SamplingParams(), prompt, [], random.Random(0))
    )
    with torch.inference_mode():
        target.forward([Span(0, 0, prompt[:-1])], cache)
        (draft,) = drafter.draft(cache, [anchor])
        tokens = list(prompt)
        for drafted in draft.tokens:
            early = drafter.model
            logits = early.forward([Span(0, 0, tokens)], early.new_cache(1, 128)).logits[0][-1]
            assert int(logits.argmax()) == drafted
            tokens.append(drafted)
    assert len(draft.tokens) == 3


class WatchedModel(Target):
    """A draft model whose forwards are seen."""

    def __init__(self, model: Target) -> None:
        super().__init__(model.folder, model.decoder, model.threads)
        self.computed: list[int] = []

    def forward(self, spans: Sequence[Span], cache: KvCache, taps: Sequence[int] = ()) -> Forward:
        self.computed.append(sum(len(span.tokens) for span in spans))
        return super().forward(spans, cache, taps)


@pytest.fixture
def watched(tiny_folder: Path, tmp_path: Path) -> Iterator[tuple[Engine, WatchedModel]]:
    target = load_target(tiny_folder)
    model = WatchedModel(load_target(draft_model_folder(tmp_path, target)))
    with Engine(target, DraftModel(model, target, 3), slots=2, context_tokens=128) as engine:
        yield engine, model


def test_a_draft_model_computes_each_token_that_stands_once(
    watched: tuple[Engine, WatchedModel],
) -> None:
    engine, model = watched
    prompt = list(range(2, 60)) + list(range(2, 40))
    steps = engine.generate(prompt, longest(20)).steps
    # A prompt that is longer comes in pieces; meanwhile the target goes on by single tokens.
    assert not any(step.draft for step in steps[:2])
    assert model.computed[:2] == [64, len(prompt) + 2 - 64]
    drafted = sum(len(step.draft) for step in steps)
    accepted = sum(step.accepted for step in steps)
    # Each draft's first forward takes in what the last one's did not compute, never more.
    assert sum(model.computed) <= len(prompt) + drafted + accepted + len(steps)


def test_a_draft_model_takes_a_prompts_beginning_over_with_the_slot(
    watched: tuple[Engine, WatchedModel],
) -> None:
    engine, model = watched
    engine.generate(PROMPTS[3], longest(8))
    model.computed.clear()
    engine.generate([*PROMPTS[3], 4, 5], longest(8))
    assert max(model.computed) <= 4


def test_prompt_lookup_prefers_the_longest_match_and_then_the_latest(target: Target) -> None:
    drafter = load_drafter("prompt-lookup:3", target)

    def draft(tokens: list[int]) -> tuple[int, ...]:
        sampler = Sampler(SamplingParams(), tokens[:2], tokens[2:], random.Random(0))
        (found,) = drafter.draft(None, [Anchor(0, len(tokens) - 1, tokens[-1], sampler)])
        return found.tokens

    assert draft([5, 6, 7, 8, 9, 5, 6]) == (7, 8, 9)
    assert draft([5, 6, 7, 5, 6, 8, 5, 6]) == (8, 5, 6)
    assert draft([4, 5, 6, 7, 0, 5, 6, 8, 4, 5, 6]) == (7, 0, 5)
    assert draft([6, 7, 5, 6]) == ()  # one token is no match
    assert draft([5, 6]) == ()


def test_prompt_lookup_lays_several_matches_together(target: Target) -> None:
    tokens = [5, 6, 7, 8, 0, 5, 6, 7, 9, 0, 5, 6, 4, 4, 0, 5, 6]
    drafter = rival("prompt-lookup", target, Path(), TREE)
    sampler = Sampler(SamplingParams(), tokens, [], random.Random(0))
    (draft,) = drafter.draft(None, [Anchor(0, len(tokens) - 1, 6, sampler)])
    assert draft.tree is not None
    nodes = range(len(draft.tokens))
    paths = {tuple(draft.tokens[each] for each in draft.tree.path(node)) for node in nodes}
    assert {(4,), (4, 4), (7,), (7, 9)} <= paths
    assert len(paths) == len(draft.tokens)  # what matches share is there once


# --- loading -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("layer-skip", "takes numbers"),
        ("layer-skip:two", "takes numbers"),
        ("layer-skip:0", "takes numbers"),
        ("layer-skip:3", "below the target's 3"),
        ("layer-skip:2:x", "takes numbers"),
        ("prompt-lookup:0", "takes numbers"),
    ],
)
def test_a_name_with_numbers_that_make_no_sense_is_refused(
    source: str, complaint: str, target: Target
) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        load_drafter(source, target)


def test_numbers_behind_a_name_are_how_much_is_proposed(target: Target, tmp_path: Path) -> None:
    folder = draft_model_folder(tmp_path, target)
    sizes = {"prompt-lookup:7": 7, "layer-skip:2:6": 6, f"draft-model:{folder}:2": 2}
    for source, size in sizes.items():
        assert load_drafter(source, target).block_size == size
    assert isinstance(load_drafter(f"draft-model:{folder}", target), DraftModel)
    assert isinstance(load_drafter(folder, target), DraftModel)


def test_a_draft_model_of_another_vocabulary_is_refused(target: Target, write_model: Write) -> None:
    with pytest.raises(DrafterMismatch, match="choose a smaller model of the target's own family"):
        load_drafter(write_model({"vocab_size": 63}), target)


def with_letters(folder: Path, first: str = "A") -> Target:
    """A model with a tokenizer of so many letters, from this one on."""
    vocabulary = {chr(ord(first) + index): index for index in range(60)}
    core = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    core.save(str(folder / "tokenizer.json"))
    return load_target(folder)


@pytest.mark.parametrize("size", [60, 64, 70])
def test_tables_that_are_padded_differently_fit_if_the_tokenizers_agree(
    size: int, write_model: Write
) -> None:
    target = with_letters(write_model(name="target"))
    model = with_letters(write_model({"vocab_size": size}, name="draft"))
    drafter = DraftModel(model, target)
    params = longest(12)
    with Engine(target, context_tokens=128) as plain:
        expected = together(plain, params)
    for shape in TREES.values():
        with Engine(target, drafter, tree=shape, context_tokens=128) as engine:
            assert together(engine, params) == expected
            assert together(engine, longest(12, temperature=1.0))
            assert engine.metrics.drafter_failures == 0


def test_tables_of_the_same_length_do_not_fit_if_the_tokenizers_differ(write_model: Write) -> None:
    target = with_letters(write_model(name="target"))
    with pytest.raises(DrafterMismatch, match="another vocabulary"):
        DraftModel(with_letters(write_model(name="draft"), "B"), target)


def test_only_what_can_branch_takes_a_tree(target: Target) -> None:
    class Straight:
        taps: Sequence[int] = ()
        block_size = 2

        def new_cache(self, slots: int, context_tokens: int) -> None:
            return None

        def extend(self, *_: object) -> None: ...

        def draft(self, cache: object, anchors: Sequence[Anchor]) -> list[Draft]:
            return [Draft() for _ in anchors]

    with pytest.raises(InvalidRequest, match="one token after the other"):
        Engine(target, Straight(), tree=TREE)
