"""Checkpoints laid out as the released ones load from a folder, and what is shared exists once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from dspark import (
    CheckpointError,
    DSparkDrafter,
    Engine,
    SamplingParams,
    Target,
    WrongShape,
    load_drafter,
    load_target,
)
from tests.unit.dspark.memory import tensor_bytes

Write = Callable[..., Path]
PROMPT = [5, 9, 2, 33, 60]
SHARED = ("embed_tokens.weight", "lm_head.weight")
THETA = 1_000_000.0
SHARDS = 3

# What the released configurations say beside what the decoder reads.
MORE: Mapping[str, object] = {
    "attention_bias": False,
    "dtype": "bfloat16",
    "layer_types": ["full_attention"] * 2,
    "max_window_layers": 2,
    "model_type": "qwen3",
    "num_anchors": 512,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_cache": True,
    "use_sliding_window": False,
}
ROPE_STYLES: Mapping[str, Mapping[str, object]] = {
    "transformers 4": {"rope_theta": THETA, "rope_scaling": None},
    "transformers 5": {
        "rope_theta": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
    },
}


def release(folder: Path) -> Path:
    """Rewrites a folder as it would be published: bfloat16, in several files with an index."""
    whole = folder / "model.safetensors"
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(whole).items()}
    whole.unlink()
    places = {}
    for shard in range(SHARDS):
        file = f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
        members = {name: tensors[name] for name in sorted(tensors)[shard::SHARDS]}
        save_file(members, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(members, file)
    size = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.fixture(params=[False, True], ids=["untied target", "tied target"])
def released_target(request: pytest.FixtureRequest, write_model: Write) -> Target:
    folder = write_model({**ROPE_STYLES["transformers 5"], "tie_word_embeddings": request.param})
    return load_target(release(folder), dtype="bfloat16")


def drafts(target: Target, drafter: DSparkDrafter) -> list[tuple[object, ...]]:
    """What is drafted in the steps of an answer, with what confidence."""
    params = SamplingParams(max_new_tokens=12, logit_bias={1: float("-inf")})
    with Engine(target, drafter, context_tokens=64) as engine:
        steps = engine.generate(PROMPT, params).steps
    return [(step.draft, step.confidence) for step in steps if step.draft]


def test_both_ways_to_write_the_rotation_mean_the_same(
    released_target: Target, write_drafter: Write
) -> None:
    found = {
        style: drafts(
            released_target,
            load_drafter(release(write_drafter({**MORE, **keys})), released_target),
        )
        for style, keys in ROPE_STYLES.items()
    }
    assert found["transformers 4"] == found["transformers 5"] != []
    otherwise = release(write_drafter({**MORE, "rope_theta": 100.0}))
    assert (
        drafts(released_target, load_drafter(otherwise, released_target))
        != (found["transformers 4"])
    )


@pytest.mark.parametrize("style", ROPE_STYLES)
def test_targets_too_are_read_in_both_ways(style: str, write_model: Write) -> None:
    target = load_target(release(write_model(ROPE_STYLES[style])))
    assert target.decoder.config.rope.theta == THETA


def test_in_several_files_it_is_the_same_drafter(
    released_target: Target, write_drafter: Write
) -> None:
    rounded = write_drafter(MORE)
    tensors = load_file(rounded / "model.safetensors")
    save_file(
        {name: tensor.bfloat16() for name, tensor in tensors.items()},
        rounded / "model.safetensors",
    )
    whole = load_drafter(rounded, released_target)
    sharded = load_drafter(release(write_drafter(MORE)), released_target)
    assert drafts(released_target, whole) == drafts(released_target, sharded)


# --- memory --------------------------------------------------------------------------------------


def test_the_drafter_computes_with_the_targets_own_embedding_and_head(
    released_target: Target, write_drafter: Write
) -> None:
    decoder = released_target.decoder
    shared = {each.data_ptr(): each for each in (decoder.embedding, decoder.head.weight)}
    assert len(shared) == (1 if decoder.config.tied_embeddings else 2)
    copies = dict(zip(SHARED, (decoder.embedding, decoder.head.weight.clone()), strict=True))
    drafter = load_drafter(release(write_drafter(MORE, replaced=copies)), released_target)
    own = [each for each in tensors_of(drafter) if each.data_ptr() not in shared]
    reached = {each.data_ptr() for each in tensors_of(drafter)}
    assert set(shared) <= reached
    assert not any(torch.equal(each, table) for each in own for table in shared.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("tied", [False, True])
def test_copies_of_shared_tensors_in_a_checkpoint_cost_no_memory(
    dtype: str, tied: bool, write_model: Write, write_drafter: Write
) -> None:
    target = load_target(release(write_model({"tie_word_embeddings": tied})), dtype=dtype)
    taken = []
    for without in ((), SHARED):
        folder = release(write_drafter(MORE, without=without))
        before = tensor_bytes()
        drafter = load_drafter(folder, target)
        taken.append(tensor_bytes() - before)
        del drafter
    assert taken[0] == taken[1] > 0
    assert tensor_bytes() == before, "what a drafter took is given back with it"


def test_a_tied_target_holds_one_table(write_model: Write) -> None:
    before = tensor_bytes()
    tied = load_target(write_model({"tie_word_embeddings": True}, name="tied"))
    tied_bytes = tensor_bytes() - before
    untied = load_target(write_model(name="untied"))
    untied_bytes = tensor_bytes() - before - tied_bytes
    table = untied.decoder.embedding
    assert untied_bytes - tied_bytes == table.nbytes == tied.decoder.embedding.nbytes


def tensors_of(thing: object, seen: set[int] | None = None) -> list[torch.Tensor]:
    """Every tensor that can be reached from an object through attributes and containers."""
    seen = set() if seen is None else seen
    if id(thing) in seen:
        return []
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor):
        return [thing]
    if isinstance(thing, Mapping):
        members = list(thing.values())
    elif isinstance(thing, list | tuple):
        members = list(thing)
    else:
        members = list(getattr(thing, "__dict__", {}).values())
    return [tensor for member in members for tensor in tensors_of(member, seen)]


# --- what does not fit ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHARED)
def test_a_copy_that_is_not_the_targets_shape_is_refused(
    name: str, target: Target, write_drafter: Write
) -> None:
    folder = release(write_drafter(MORE, replaced={name: torch.zeros(96, 32)}))
    with pytest.raises(WrongShape, match=re.escape(name) + r".*\[96, 32\].*\[64, 32\]"):
        load_drafter(folder, target)


def test_a_missing_file_of_several_is_named(target: Target, write_drafter: Write) -> None:
    folder = release(write_drafter(MORE))
    missing = folder / "model-00002-of-00003.safetensors"
    missing.unlink()
    with pytest.raises(CheckpointError, match=re.escape(missing.name) + ".*fetch it again"):
        load_drafter(folder, target)
