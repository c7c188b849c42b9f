"""Compiled steps give what torch computes, and the same bits however tokens are put together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from dspark import Drafter, Engine, Target, load_target
from dspark.compiled.dot import BYTES, Flavour, dot_of, signed_levels
from dspark.compiled.jit import inlined
from dspark.compiled.processor import FEATURES
from dspark.compiled.vectors import I8, I32, LANES, emitting, load_vector, pointer, vector
from dspark.compiled.weights import CompiledLinear
from dspark.drafters.dspark import DSparkDrafter
from dspark.drafters.protocol import Anchor, Draft
from dspark.fast_path import compiled_stack, compiles
from dspark.linear import Int8Linear
from dspark.random_weights import random_drafter
from dspark.sampling import Sampler, SamplingParams
from dspark.target import Span
from dspark.training.frame import load_frame
from dspark.tree import TreeShape
from tests.unit.dspark.conftest import CONFIG, qwen3_tensors

if not compiles():
    pytest.skip("compiled code cannot be used on this machine", allow_module_level=True)

IN, OUT = 96, 80
TOKENS = 70  # more than a tile of attention, and than several tiles of rows
SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
HEAD_NORMS = ("q_norm.weight", "k_norm.weight")
FAMILIES: Mapping[str, Mapping[str, object]] = {
    "qwen3": {},
    "llama": {"architectures": ["LlamaForCausalLM"], "attention_bias": True, "mlp_bias": True},
}


MODEL = {**CONFIG, **SHAPE, **FAMILIES["qwen3"]}


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# --- one layer -----------------------------------------------------------------------------------


@pytest.mark.parametrize("outlier", [1.0, 50.0], ids=["even", "one channel far larger"])
@pytest.mark.parametrize("kept_in", ["int4", "int8"])
def test_a_product_is_that_of_the_weights_it_keeps(kept_in: str, outlier: float) -> None:
    layer = getattr(CompiledLinear, f"in_{kept_in}")(random(OUT, IN), random(OUT, seed=2))
    rows = random(23, IN, seed=1)
    rows[:, 7] *= outlier
    zero = layer(torch.zeros(1, IN))
    weight = (layer(torch.eye(IN)) - zero).T  # 127 steps of one digit hold a one exactly
    exact = rows.double() @ weight.double().T + zero
    error = (layer(rows) - exact).abs().max()
    # Half a step of the first digit is lost at most where there is no second.
    lost = 3 * rows.square().mean(1).sqrt().max() / 127 if kept_in == "int4" else 0
    assert error <= 0.2 * lost * weight.abs().sum(1).max() + 0.003 * outlier


@pytest.mark.parametrize("inputs", [64, 96, 1280], ids="{} inputs".format)
@pytest.mark.parametrize("kept_in", ["int4", "int8"])
def test_a_rows_bits_do_not_depend_on_its_company(kept_in: str, inputs: int) -> None:
    layer = getattr(CompiledLinear, f"in_{kept_in}")(random(OUT, inputs), random(OUT, seed=2))
    rows = random(17, inputs, seed=1)
    rows[::3, 7] *= 50  # some rows have second digits, and not all of them in the same places
    rows[::4, 40] *= 50
    alone = torch.cat([layer(row[None]) for row in rows])
    for count in range(1, len(rows) + 1):
        assert torch.equal(layer(rows[:count]), alone[:count])


WHERE_FREED_MEMORY_IS_GONE = {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=4096"}
COMPUTES = """
import torch
from dspark.compiled.weights import CompiledLinear
from dspark.compiled.batch_attention import attend_each
from dspark.random_weights import random_drafter, random_target
from tests.unit.dspark.test_compiled import MODEL, draft_of, logits, span, tokens

for kept_in in ("in_int4", "in_int8"):
    getattr(CompiledLinear, kept_in)(torch.randn(64, 4096))(torch.randn(8, 4096))
target = random_target(MODEL, dtype="int4")
logits(target, [[span(0, 0, tokens(60))]])
draft_of(random_drafter(target, layers=2, block_size=6, taps=2, markov_rank=32))
cached = torch.randn(3, 2, 64, 32).bfloat16()
attend_each(torch.randn(3, 6, 32).bfloat16(), cached, cached, torch.tensor([64, 3, 1]))
"""


def test_scratch_memory_is_not_freed_while_it_is_used() -> None:
    """Where every larger piece of memory is a mapping of its own, using a freed one is fatal."""
    environment = {**os.environ, **WHERE_FREED_MEMORY_IS_GONE}
    done = subprocess.run(
        [sys.executable, "-c", COMPUTES], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:] or done.returncode


FLAVOURS: dict[Flavour, str | None] = {
    "avx512vnni": "avx512vnni", "avxvnni": "avxvnni", "avx2": "avx2", "generic": None,
}  # fmt: skip


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_every_instruction_sums_the_same_products(flavour: Flavour) -> None:
    feature = FLAVOURS[flavour]
    if feature is not None and not FEATURES.get(feature):
        pytest.skip(f"this processor has no {feature}")
    emit_dot = dot_of(flavour)

    @emitting
    def dot(typing: Any, unsigned: Any, signed: Any, sums: Any) -> Any:
        from numba import types

        def emit(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            left, right = (load_vector(builder, at, I8, BYTES) for at in arguments[:2])
            to = pointer(builder, arguments[2], vector(I32))
            builder.store(emit_dot(builder, builder.load(to, align=1), left, right), to, align=1)
            return context.get_dummy_value()

        return types.void(types.intp, types.intp, types.intp), emit

    def run(unsigned: Any, signed: Any, sums: Any) -> None:
        dot(unsigned.ctypes.data, signed.ctypes.data, sums.ctypes.data)

    compiled = inlined(run)
    generator = np.random.default_rng(0)
    most = signed_levels(flavour)
    for unsigned in (generator.integers(0, 256, BYTES), np.full(BYTES, 255)):
        for signed in (generator.integers(-most, most + 1, BYTES), np.full(BYTES, -most)):
            sums = np.arange(LANES, dtype=np.int32)
            compiled(unsigned.astype(np.uint8), signed.astype(np.int8), sums)
            products = (unsigned * signed).reshape(LANES, 4)
            assert (sums == products.sum(1) + np.arange(LANES)).all()


# --- whole models --------------------------------------------------------------------------------


def tensors(family: str, config: Mapping[str, object]) -> dict[str, torch.Tensor]:
    """Random weights."""
    found = qwen3_tensors(config)
    if family == "llama":
        found = {name: each for name, each in found.items() if not name.endswith(HEAD_NORMS)}
        found |= {
            name.replace(".weight", ".bias"): random(len(each)) * 0.1
            for name, each in found.items()
            if "_proj" in name
        }
    return found


@pytest.fixture(scope="module", params=[(f, d) for f in FAMILIES for d in ("int4", "int8")])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Target:
    """Its layers are whole tiles."""
    family, dtype = request.param
    config = {**CONFIG, **SHAPE, **FAMILIES[family]}
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors(family, config), folder / "model.safetensors")
    return load_target(folder, dtype=dtype)


def logits(
    target: Target, spans: list[list[Span]], taps: tuple[int, ...] = ()
) -> dict[int, torch.Tensor]:
    """What forwards, one after the other, give of each slot; features beside the logits."""
    cache = target.new_cache(4, 96)
    found: dict[int, list[torch.Tensor]] = {}
    with torch.inference_mode():
        for together in spans:
            forward = target.forward(together, cache, taps)
            for index, span in enumerate(together):
                rows = [forward.logits[index]]
                if forward.features is not None and (kept := forward.features[index]) is not None:
                    rows.append(kept[len(kept) - span.logits :])
                found.setdefault(span.slot, []).append(torch.cat(rows, -1).clone())
    return {slot: torch.cat(rows) for slot, rows in found.items()}


def tokens(count: int, seed: int = 0) -> list[int]:
    return [(seed * 31 + number * 7) % 60 for number in range(count)]


def span(slot: int, start: int, ids: list[int], tree: TreeShape | None = None) -> Span:
    return Span(slot, start, ids, len(ids), tree)


def test_a_step_is_what_the_layers_compute_one_by_one(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [[span(0, 0, tokens(40)), span(2, 0, tokens(9, seed=1))], [span(0, 40, [3])]]
    taps = (-1, 0, 1)
    compiled = logits(target, steps, taps)
    assert target.decoder._stack is not None
    monkeypatch.setattr(target.decoder, "_stack", None)
    for slot, by_torch in logits(target, steps, taps).items():
        # A number on the border between two digits may be rounded to the other one.
        assert (compiled[slot] - by_torch).abs().max() < 0.02 * by_torch.std()


@given(
    st.lists(st.integers(0, TOKENS), max_size=5).map(lambda cuts: sorted({0, *cuts, TOKENS})),
    st.integers(0, 12),
)
@settings(max_examples=15)
def test_a_tokens_bits_do_not_depend_on_its_company(
    target: Target, cuts: list[int], others: int
) -> None:
    ids = tokens(TOKENS)
    alone = logits(target, [[span(1, 0, ids)]])[1]
    pieces = [[span(1, a, ids[a:b])] for a, b in pairwise(cuts)]
    if others:
        pieces[-1].insert(0, span(0, 0, tokens(others, seed=5)))
    assert torch.equal(logits(target, pieces)[1], alone)


@pytest.mark.parametrize("context", [1, 15, 16, 40])
def test_a_trees_path_has_the_bits_of_plain_decoding(target: Target, context: int) -> None:
    ids, tree = tokens(context), TreeShape.of_widths(2, 2, 1)
    candidates = tokens(len(tree), seed=3)
    shape = tree.taking(tree.depth_first())
    found = logits(target, [[span(1, 0, ids)], [span(1, context, [5, *candidates], shape)]])[1]
    for node in range(len(shape)):
        path = shape.path(node)
        alone = logits(target, [[span(1, 0, [*ids, 5, *(candidates[each] for each in path)])]])[1]
        assert torch.equal(
            found[[context, *(context + 1 + each for each in path)]], alone[context:]
        )


def test_the_first_layers_alone_are_those_of_the_whole(target: Target) -> None:
    steps, hidden = [[span(0, 0, tokens(20))]], SHAPE["hidden_size"]
    whole = logits(target, steps, taps=(1,))[0]
    early = Target(target.folder, target.decoder.first_layers(2), target.threads)
    assert torch.equal(logits(early, steps, taps=(1,))[0][:, -hidden:], whole[:, -hidden:])


def test_a_drafters_block_is_what_its_layers_compute_one_by_one(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = random_drafter(target, layers=2, block_size=4, taps=1, markov_rank=32)
    cache = drafter.new_cache(2, 64)
    sampler = Sampler(SamplingParams(), [0], [0], Random(0))
    anchors = [Anchor(slot, 20 + slot, 5, sampler) for slot in (1, 0)]
    with torch.inference_mode():
        for slot in (0, 1):
            drafter.extend(cache, slot, 0, random(21, SHAPE["hidden_size"], seed=slot))
        compiled = drafter.block_hidden(cache, anchors)
        alone = drafter.block_hidden(cache, anchors[:1])
        assert drafter._stack is not None
        monkeypatch.setattr(drafter, "_stack", None)
        by_torch = drafter.block_hidden(cache, anchors)
    assert torch.equal(compiled[:1], alone)
    assert (compiled - by_torch).abs().max() < 0.02 * by_torch.std()


def draft_of(
    drafter: Drafter,
    params: SamplingParams | None = None,
    tree: TreeShape | None = None,
    most: int | None = None,
) -> tuple[list[Draft], tuple[torch.Tensor, torch.Tensor]]:
    """Drafts for two slots, and the keys and values that the drafter took in for them."""
    said = ([3, 9, 5], [9, 20, 11])
    anchors = [
        Anchor(
            slot,
            20,
            said[slot][-1],
            Sampler(params or SamplingParams(), [7, 3], said[slot], Random(0)),
            most,
        )
        for slot in (1, 0)
    ]
    cache = drafter.new_cache(2, 64)
    with torch.inference_mode():
        for slot in (0, 1):
            features = random(20, len(drafter.taps) * SHAPE["hidden_size"], seed=slot)
            drafter.extend(cache, slot, 0, features[:12])
            drafter.extend(cache, slot, 12, features[12:])
        context = cache.keys[:, :, :, :20].clone(), cache.values[:, :, :, :20].clone()
        if tree is None:
            return drafter.draft(cache, anchors), context
        assert isinstance(drafter, DSparkDrafter)
        return drafter.draft_trees(cache, anchors, tree), context


@pytest.mark.parametrize("penalty", [1.0, 1.5])
def test_a_compiled_draft_is_the_one_that_torch_makes(
    target: Target, penalty: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = random_drafter(target, layers=2, block_size=6, taps=2, markov_rank=32)
    params = SamplingParams(repetition_penalty=penalty)
    assert drafter._compiled is not None
    drafts, context = draft_of(drafter, params)
    monkeypatch.setattr(drafter, "_compiled", None)
    references, expected = draft_of(drafter, params)
    for ours, reference in zip(context, expected, strict=True):
        torch.testing.assert_close(ours, reference, rtol=0, atol=1e-4)
        assert reference.abs().max() > 0.1
    for draft, by_torch in zip(drafts, references, strict=True):
        assert draft.tokens == by_torch.tokens
        assert draft.confidence == pytest.approx(by_torch.confidence, abs=1e-4)
        assert not draft.distributions


@pytest.mark.parametrize("most", [None, 2])
@pytest.mark.parametrize("penalty", [1.0, 1.5])
def test_compiled_second_candidates_are_those_that_torch_finds(
    target: Target, penalty: float, most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = random_drafter(target, layers=2, block_size=6, taps=2, markov_rank=32)
    params = SamplingParams(repetition_penalty=penalty)
    shape = TreeShape.with_seconds(6, 3)
    drafts, _ = draft_of(drafter, params, shape, most)
    monkeypatch.setattr(drafter, "_compiled", None)
    references, _ = draft_of(drafter, params, shape, most)
    for draft, by_torch in zip(drafts, references, strict=True):
        assert draft.tokens == by_torch.tokens
        assert draft.confidence == pytest.approx(by_torch.confidence, abs=1e-4)
        assert draft.tree == by_torch.tree
        assert draft.tree is not None and draft.tree.depth == (most or 6)
    # Whatever is drafted with them, first candidates are those of a chain.
    chains, _ = draft_of(drafter, params, most=most)
    for draft, chain in zip(drafts, chains, strict=True):
        assert draft.tree is not None
        ranked = zip(draft.tokens, draft.tree.ranks, strict=True)
        assert tuple(token for token, rank in ranked if rank == 0) == chain.tokens


def test_answers_with_second_candidates_are_the_targets(target: Target) -> None:
    drafter = random_drafter(target, layers=2, block_size=4, taps=2, markov_rank=32)
    prompts = [[5, 9, 2, 33, 60], [7] * 23, [40, 3]]
    answers = []
    for tree in (None, TreeShape.with_seconds(4, 3)):
        with Engine(target, drafter, "full", tree=tree, context_tokens=128, slots=3) as engine:
            running = [engine.submit(each, SamplingParams(max_new_tokens=40)) for each in prompts]
            answers.append([[t for step in each for t in step.committed] for each in running])
            assert engine.metrics.drafter_failures == 0
    assert answers[0] == answers[1]
    assert engine.metrics.tokens_scheduled > 100


def test_what_is_not_simply_the_likeliest_is_left_to_torch(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = random_drafter(target, layers=1, block_size=3, taps=1, markov_rank=32)
    assert drafter._compiled is not None
    monkeypatch.setattr(drafter._compiled, "propose", None)  # raises if it is called
    cache = drafter.new_cache(1, 64)
    for params in (
        SamplingParams(temperature=1.0),
        SamplingParams(logit_bias={2: 100.0}),
        SamplingParams(frequency_penalty=1.0),
        SamplingParams(presence_penalty=1.0),
    ):
        sampler = Sampler(params, [1], [4], Random(0))
        with torch.inference_mode():
            (draft,) = drafter.draft(cache, [Anchor(0, 3, 4, sampler)])
        assert len(draft.tokens) == 3
        assert draft.tokens == (2, 2, 2) or not params.logit_bias


@pytest.mark.parametrize("dtype", ["float32", "int4"])
def test_a_target_without_layers_has_nothing_to_compile(target: Target, dtype: str) -> None:
    frame = load_frame(target.folder, "cpu", dtype)  # what drafters are trained beside
    assert frame.decoder._stack is None
    assert compiled_stack(target.decoder.config, ()) is None
    hidden = random(3, SHAPE["hidden_size"])
    whole = load_target(target.folder, dtype=dtype).decoder
    assert torch.equal(frame.decoder.logits(hidden), whole.logits(hidden))


def test_without_the_compiler_torch_computes(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dspark.fast_path.compiles", lambda: False)
    plain = load_target(target.folder, dtype="int8")
    assert plain.decoder._stack is None
    assert isinstance(plain.decoder.head, Int8Linear)
    assert logits(plain, [[span(0, 0, tokens(5))]])[0].isfinite().all()
