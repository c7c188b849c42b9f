"""A GGUF file gives the same model and tokenizer as the folder it was made from, converted once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np
import pytest
import tokenizers
import torch
from gguf.quants import quantize
from tokenizers import decoders, models, pre_tokenizers

from dspark import (
    CheckpointError,
    Target,
    UnsupportedArchitecture,
    gguf_cache,
    gguf_conversion,
    load_target,
)
from dspark.target import Span

transformers = pytest.importorskip("transformers")

TEXT = "Meet me at 10:45, the café's 3rd door — naïve 日本 🙂!  Two  spaces\n\nand lines."
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
END = 2
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message.content }}<|im_end|>{% endfor %}"
KINDS = gguf.GGMLQuantizationType


def byte_level_bpe() -> tokenizers.Tokenizer:
    """A small vocabulary that was trained with digits cut one by one."""
    core = tokenizers.Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    core.train_from_iterator(
        ["the cafe and the door meet at two spaces and lines " * 3],
        tokenizers.trainers.BpeTrainer(
            vocab_size=320,
            special_tokens=SPECIAL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return core


CORE = byte_level_bpe()
VOCAB = CORE.get_vocab_size()
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e4},
}
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        _, _, layer, stem = stem.split(".", 3)
        return f"blk.{layer}.{NAMES[stem]}.{kind}"
    return f"{NAMES[stem]}.{kind}"


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Query and key rows as GGUF keeps them for Llama: rotary partners side by side."""
    halves = weight.reshape(heads, 2, -1, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def write_gguf(
    path: Path,
    architecture: str,
    tensors: Mapping[str, torch.Tensor],
    kind: gguf.GGMLQuantizationType = KINDS.F32,
    leave_out: Iterable[str] = (),
    pre: str = "smollm",
    tokenizer: str = "gpt2",
) -> dict[str, torch.Tensor]:
    """Write a model; returns its tensors as the chosen quantisation keeps them."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(64)
    writer.add_embedding_length(64)
    writer.add_block_count(2)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(16)
    writer.add_rope_freq_base(5e4)
    writer.add_layer_norm_rms_eps(1e-6)
    if "eos" not in leave_out:
        writer.add_eos_token_id(END)
    vocabulary = sorted(CORE.get_vocab(), key=CORE.token_to_id)
    merges = json.loads(CORE.to_str())["model"]["merges"]
    writer.add_tokenizer_model(tokenizer)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(vocabulary)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in vocabulary])
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_chat_template(TEMPLATE)
    kept = {}
    for name, tensor in tensors.items():
        array = tensor.numpy().astype(np.float32)
        quantised = array if array.ndim == 1 else quantize(array, kind)
        used = KINDS.F32 if array.ndim == 1 else kind
        kept[name] = torch.from_numpy(gguf.quants.dequantize(quantised, used).copy())
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            quantised = interleaved(quantised, 4 if "q_proj" in name else 2)
        writer.add_tensor(gguf_name(name), quantised, raw_dtype=used)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return kept


def reference(family: str, **options: object) -> torch.nn.Module:
    torch.manual_seed(3)
    config = getattr(transformers, f"{family}Config")(**{**SHAPE, **options})
    model: torch.nn.Module = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    return model


def logits(target: Target, tokens: Sequence[int]) -> torch.Tensor:
    with torch.inference_mode():
        spans = [Span(0, 0, tokens, len(tokens))]
        return target.forward(spans, target.new_cache(1, len(tokens))).logits[0]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("DSPARK_CACHE", str(folder))
    return folder


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    path = tmp_path / "llama.gguf"
    write_gguf(path, "llama", reference("Llama").state_dict())
    return path


@pytest.mark.parametrize(
    "kind", [KINDS.F32, KINDS.F16, KINDS.BF16, KINDS.Q8_0, KINDS.Q4_0, KINDS.Q4_1, KINDS.Q5_1]
)
@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("Llama", {"tie_word_embeddings": True}),
        ("Qwen2", {"tie_word_embeddings": False}),
        ("Qwen3", {"tie_word_embeddings": False, "head_dim": 16}),
    ],
    ids=["llama", "qwen2", "qwen3"],
)
def test_the_model_is_the_one_that_was_quantised(
    family: str, options: dict[str, object], kind: gguf.GGMLQuantizationType, tmp_path: Path
) -> None:
    model = reference(family, **options)
    tensors = model.state_dict()
    if options["tie_word_embeddings"]:
        del tensors["lm_head.weight"]
    kept = write_gguf(tmp_path / "model.gguf", family.lower(), tensors, kind)
    model.load_state_dict(kept, strict=False)
    tokens = [(11 * i) % VOCAB for i in range(40)]
    with torch.inference_mode():
        expected = model(torch.tensor([tokens])).logits[0]
    found = logits(load_target(tmp_path / "model.gguf"), tokens)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)


def test_the_tokenizer_is_the_one_it_was_made_with(llama: Path) -> None:
    tokenizer = load_target(llama).tokenizer
    assert tokenizer.encode(TEXT) == CORE.encode(TEXT).ids
    assert tokenizer.decode(CORE.encode(TEXT).ids) == TEXT
    assert tokenizer.stop_token_ids == {END}
    start, end = CORE.token_to_id(SPECIAL[1]), CORE.token_to_id(SPECIAL[2])
    hello = CORE.encode("the door").ids
    assert tokenizer.chat([{"role": "user", "content": "the door"}]) == [start, *hello, end]


@pytest.mark.parametrize(
    ("scheme", "numbers"),
    [("gpt-2", ["12345"]), ("llama-bpe", ["123", "45"]), ("qwen2", [*"12345"])],
)
def test_each_scheme_cuts_numbers_its_own_way(scheme: str, numbers: list[str]) -> None:
    cut = gguf_conversion._pre_tokenizer(scheme, Path("x")).pre_tokenize_str("it's 12345")
    pieces = [piece.replace("Ġ", "") for piece, _ in cut]
    assert [piece for piece in pieces if piece][2:] == numbers


def test_a_file_is_converted_once(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[float] = []
    first = load_target(llama, progress=lambda _, fraction: reports.append(fraction))
    assert reports == sorted(reports)
    assert reports[-1] == 1.0

    def convert(*_: object) -> None:
        raise AssertionError("it was converted before")

    monkeypatch.setattr(gguf_conversion, "convert", convert)
    second = load_target(llama)
    assert torch.equal(logits(first, [5, 6, 7]), logits(second, [5, 6, 7]))


def test_a_file_that_was_moved_renamed_or_touched_is_not_converted_again(
    llama: Path, cache: Path
) -> None:
    before = load_target(llama).folder
    (llama.parent / "elsewhere").mkdir()
    moved = llama.rename(llama.parent / "elsewhere" / "renamed.gguf")
    os.utime(moved, ns=(0, 0))
    assert load_target(moved).folder == before
    assert list(cache.iterdir()) == [before]


def test_a_file_that_did_not_change_is_not_read_again(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = load_target(llama).folder
    monkeypatch.delattr(gguf_cache, "_sha256")
    assert load_target(llama).folder == before


def test_a_changed_file_is_converted_again_and_takes_the_place_of_what_it_was(
    llama: Path, cache: Path
) -> None:
    before = load_target(llama).folder
    write_gguf(llama, "llama", reference("Llama", initializer_range=0.1).state_dict())
    after = load_target(llama).folder
    assert after != before
    assert list(cache.iterdir()) == [after]


def test_what_another_file_still_is_stays_when_one_changes(llama: Path, cache: Path) -> None:
    copy = llama.parent / "copy.gguf"
    copy.write_bytes(llama.read_bytes())
    before = load_target(llama).folder
    assert load_target(copy).folder == before
    write_gguf(llama, "llama", reference("Llama", initializer_range=0.1).state_dict())
    assert load_target(llama).folder != before
    assert load_target(copy).folder == before
    assert len(list(cache.iterdir())) == 2


def test_a_byte_repaired_in_the_middle_is_another_model(llama: Path) -> None:
    whole = llama.read_bytes()
    middle = len(whole) // 2
    broken = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    llama.write_bytes(broken)
    before = load_target(llama).folder
    llama.write_bytes(whole)
    assert load_target(llama).folder != before


def test_a_big_model_is_written_in_several_files(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = logits(load_target(llama), [5, 6, 7])
    monkeypatch.setenv("DSPARK_CACHE", str(tmp_path / "another cache"))
    monkeypatch.setattr(gguf_conversion, "_SHARD_BYTES", 30_000)
    sharded = load_target(llama)
    assert len(list(sharded.folder.glob("*.safetensors"))) > 1
    assert torch.equal(whole, logits(sharded, [5, 6, 7]))


def test_a_failed_conversion_leaves_nothing_behind(
    llama: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(gguf_conversion, "save_file", full_disk)
        with pytest.raises(CheckpointError, match="make room there, or name another"):
            load_target(llama)
    assert list(cache.iterdir()) == []
    load_target(llama)


def test_two_conversions_at_once_end_in_one_folder(
    llama: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert: Callable[..., None] = gguf_conversion.convert

    def overtaken(*arguments: object) -> None:
        convert(*arguments)
        monkeypatch.setattr(gguf_conversion, "convert", convert)
        load_target(llama)  # somebody else, while we were at it

    monkeypatch.setattr(gguf_conversion, "convert", overtaken)
    load_target(llama)
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize(
    ("options", "error", "complaint"),
    [
        ({"pre": "tekken"}, UnsupportedArchitecture, "'tekken'; known are"),
        ({"tokenizer": "llama"}, UnsupportedArchitecture, "only byte-level BPE"),
        ({"leave_out": ["eos"]}, CheckpointError, "has no tokenizer.ggml.eos_token_id"),
    ],
)
def test_what_cannot_be_read_from_gguf_is_said(
    options: dict[str, object], error: type[Exception], complaint: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, "llama", reference("Llama").state_dict(), **options)
    with pytest.raises(error, match=complaint):
        load_target(path)


def test_a_model_of_another_family_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, "gemma", reference("Llama").state_dict())
    with pytest.raises(UnsupportedArchitecture, match="holds a gemma model; supported are llama"):
        load_target(path)


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"not a model at all" * 10)
    with pytest.raises(CheckpointError, match="is not a GGUF file"):
        load_target(path)
