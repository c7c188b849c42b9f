"""Weights are found wherever they lie, and what is wrong with them is said plainly."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import huggingface_hub
import pytest
import tokenizers
import torch
from huggingface_hub.errors import (
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)
from safetensors.torch import load_file, save_file
from tokenizers import models

from dspark import (
    CheckpointError,
    CheckpointNotFound,
    InvalidRequest,
    MissingTensor,
    Target,
    TokenizerError,
    UnsupportedArchitecture,
    WrongShape,
    load_target,
)
from dspark.target import Span

PROMPT = [5, 9, 2, 33, 60]
REQUEST = httpx.Request("GET", "https://hub.example/somebody/tiny-model")
Write = Callable[..., Path]


def logits(target: Target) -> torch.Tensor:
    with torch.inference_mode():
        return target.forward([Span(0, 0, PROMPT, len(PROMPT))], target.new_cache(1, 16)).logits[0]


def split_into_shards(folder: Path) -> None:
    whole = folder / "model.safetensors"
    tensors = load_file(whole)
    names = sorted(tensors)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, members in halves.items():
        save_file({name: tensors[name] for name in members}, folder / file)
    places = {name: file for file, members in halves.items() for name in members}
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    whole.unlink()


def test_shards_give_the_same_model_as_one_file(write_model: Write) -> None:
    whole, sharded = write_model(name="whole"), write_model(name="sharded")
    split_into_shards(sharded)
    assert torch.equal(logits(load_target(whole)), logits(load_target(sharded)))


def test_a_hub_id_is_fetched_without_files_of_other_frameworks(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, object] = {}

    def snapshot_download(repository: str, *, allow_patterns: list[str]) -> str:
        asked.update(repository=repository, patterns=allow_patterns)
        return str(tiny_folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    target = load_target("somebody/tiny-model")
    assert asked["repository"] == "somebody/tiny-model"
    assert asked["patterns"] == ["*.json", "*.safetensors", "*.jinja"]
    assert target.folder == tiny_folder


@pytest.mark.parametrize(
    "failure",
    [
        RepositoryNotFoundError("404", response=httpx.Response(404, request=REQUEST)),
        HFValidationError("not a repository's name"),
        httpx.ConnectError("no address for the hub"),
        LocalEntryNotFoundError("offline and not cached"),
        ConnectionError("no route to host"),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_a_hub_id_that_cannot_be_fetched_says_what_to_check(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def snapshot_download(*_: object, **__: object) -> str:
        raise failure

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(CheckpointNotFound, match=r"check the name, the network .* login"):
        load_target("somebody/tiny-model")


@pytest.mark.parametrize("source", ["/no/such/folder", "./no/such", "no/such/folder", "nothing"])
def test_a_missing_folder_says_what_may_be_given(source: str) -> None:
    with pytest.raises(CheckpointNotFound, match=r"give a folder .* \.gguf file, or a hub id"):
        load_target(source)


def test_a_path_is_never_taken_for_a_hub_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", None)
    with pytest.raises(CheckpointNotFound, match="give a folder"):
        load_target(Path("somebody/tiny-model"))


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"pickle")
    with pytest.raises(CheckpointError, match="give the folder that holds the model's config"):
        load_target(path)


def test_a_folder_without_config_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFound, match=r"config\.json does not exist"):
        load_target(tmp_path)


def test_a_folder_without_weights_says_so(write_model: Write) -> None:
    folder = write_model()
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointNotFound, match="neither model"):
        load_target(folder)


def test_a_damaged_config_says_so(write_model: Write) -> None:
    folder = write_model()
    (folder / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json is not valid JSON .* fetch it again"):
        load_target(folder)


def test_damaged_weights_say_so(write_model: Write) -> None:
    folder = write_model()
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=r"cannot be read .* fetch it again"):
        load_target(folder)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM.* supported are Llama"),
        ({"architectures": None}, "not named"),
        ({"hidden_act": "gelu"}, "only silu"),
        ({"use_sliding_window": True}, "sliding-window"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope type is 'yarn'"),
        ({"hidden_size": None}, "does not say 'hidden_size'"),
        ({"hidden_size": "wide"}, "'wide' where a number belongs"),
    ],
)
def test_what_is_not_computed_here_is_refused(
    config: dict[str, object], complaint: str, write_model: Write, tiny_folder: Path
) -> None:
    folder = write_model(config, load_file(tiny_folder / "model.safetensors"))
    with pytest.raises(UnsupportedArchitecture, match=complaint):
        load_target(folder)


def test_a_missing_tensor_is_named(write_model: Write, tiny_folder: Path) -> None:
    tensors = load_file(tiny_folder / "model.safetensors")
    del tensors["model.layers.2.mlp.down_proj.weight"]
    with pytest.raises(MissingTensor, match=r"layers\.2\.mlp\.down_proj.* fetch both again"):
        load_target(write_model(tensors=tensors))


def test_a_tensor_of_the_wrong_shape_is_named_with_both_shapes(
    write_model: Write, tiny_folder: Path
) -> None:
    tensors = load_file(tiny_folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:, :-1].contiguous()
    with pytest.raises(WrongShape, match=r"lm_head\.weight .*\[64, 31\].*\[64, 32\]"):
        load_target(write_model(tensors=tensors))


def test_an_index_that_promises_too_much_is_found_out(write_model: Write) -> None:
    folder = write_model()
    split_into_shards(folder)
    index = folder / "model.safetensors.index.json"
    places = json.loads(index.read_text())["weight_map"]
    swapped = {"a.safetensors": "b.safetensors", "b.safetensors": "a.safetensors"}
    index.write_text(json.dumps({"weight_map": {n: swapped[f] for n, f in places.items()}}))
    with pytest.raises(MissingTensor, match="which its index promises"):
        load_target(folder)


@pytest.mark.parametrize(
    "setting",
    [
        {"dtype": "float64"},
        {"threads": 0},
        {"dtype": "int8", "device": "cuda"},
        {"dtype": "int4", "device": "cuda"},
    ],
)
def test_settings_that_make_no_sense_are_refused(
    setting: dict[str, object], tiny_folder: Path
) -> None:
    with pytest.raises(InvalidRequest, match=r"must be|on the CPU only"):
        load_target(tiny_folder, **setting)


def test_answers_end_at_every_end_that_any_file_names(write_model: Write) -> None:
    folder = write_model({"eos_token_id": 3})
    (folder / "generation_config.json").write_text('{"eos_token_id": [3, 7]}')
    core = tokenizers.Tokenizer(models.WordLevel({"<end>": 9}))
    core.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')
    assert load_target(folder).stop_token_ids == {3, 7, 9}


def test_a_model_without_a_tokenizer_decodes_token_ids(write_model: Write) -> None:
    target = load_target(write_model({"eos_token_id": None}))
    assert target.stop_token_ids == frozenset()
    with pytest.raises(TokenizerError, match="work in token ids"):
        _ = target.tokenizer
