"""From a GGUF file to a folder in Hugging Face layout: configuration, weights and tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from dspark.checkpoint import Progress
from dspark.errors import CheckpointError, MissingTensor, UnsupportedArchitecture

_SHARD_BYTES = 1 << 30  # bounds the memory that a conversion takes

_ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
}

_TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

# How byte-level BPE vocabularies cut text before merging, by GGUF's name for the scheme.
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS = {
    "llama-bpe": rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}",
    "qwen2": rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}",
}
_GPT2_DIGITS = {"gpt-2": False, "smollm": True}  # whether digits are cut one by one


def convert(path: Path, folder: Path, progress: Progress) -> None:
    """Write the model of a GGUF file into an empty folder, weights in float32.

    Raises:
        UnsupportedArchitecture: the file holds a model or tokenizer of another family.
        CheckpointError: the file is damaged or incomplete.
    """
    try:
        reader = gguf.GGUFReader(path)
    except ValueError as error:
        raise CheckpointError(f"{path} is not a GGUF file ({error}): fetch it again") from error
    fields = _Fields(reader, path)
    config = _config(fields, {tensor.name for tensor in reader.tensors})
    _write_json(folder / "config.json", config)
    _write_weights(reader, config, folder, progress)
    _write_tokenizer(fields, folder)


class _Fields:
    """A GGUF file's metadata, with missing entries as typed errors."""

    def __init__(self, reader: gguf.GGUFReader, path: Path) -> None:
        self._reader = reader
        self.path = path
        self.architecture = str(self["general.architecture"])

    def get(self, key: str, default: object = None) -> object:
        field = self._reader.get_field(key)
        return default if field is None else field.contents()

    def __getitem__(self, key: str) -> object:
        value = self.get(key)
        if value is None:
            raise CheckpointError(
                f"{self.path} has no {key}: fetch another conversion of the model"
            )
        return value

    def of_model(self, key: str, default: object = None) -> object:
        """A value under the architecture's own prefix; an error if missing without default."""
        key = f"{self.architecture}.{key}"
        return self[key] if default is None else self.get(key, default)


def _config(fields: _Fields, tensors: set[str]) -> dict[str, object]:
    if fields.architecture not in _ARCHITECTURES:
        raise UnsupportedArchitecture(
            f"{fields.path} holds a {fields.architecture} model; supported are "
            f"{', '.join(_ARCHITECTURES)}. Choose a model of one of these families"
        )
    architecture, model_type = _ARCHITECTURES[fields.architecture]
    hidden, heads = fields.of_model("embedding_length"), fields.of_model("attention.head_count")
    assert isinstance(hidden, int) and isinstance(heads, int)
    rope: dict[str, object] = {
        "rope_type": "default",
        "rope_theta": fields.of_model("rope.freq_base", 10_000.0),
    }
    scaling = fields.get(f"{fields.architecture}.rope.scaling.type", "none")
    if scaling == "linear":
        rope |= {"rope_type": "linear", "factor": fields.of_model("rope.scaling.factor")}
    elif scaling != "none" or "rope_freqs.weight" in tensors:
        raise UnsupportedArchitecture(
            f"{fields.path} stretches its rotary embedding ({scaling}) in a way that is not read "
            "from GGUF: use the model's original Hugging Face folder"
        )
    vocab = fields["tokenizer.ggml.tokens"]
    assert isinstance(vocab, list)
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": len(vocab),
        "hidden_size": hidden,
        "intermediate_size": fields.of_model("feed_forward_length"),
        "num_hidden_layers": fields.of_model("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.of_model("attention.head_count_kv", heads),
        "head_dim": fields.of_model("attention.key_length", hidden // heads),
        "max_position_embeddings": fields.of_model("context_length"),
        "rms_norm_eps": fields.of_model("attention.layer_norm_rms_epsilon"),
        "rope_parameters": rope,
        "hidden_act": "silu",
        "tie_word_embeddings": "output.weight" not in tensors,
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "dtype": "float32",
    }


def _write_weights(
    reader: gguf.GGUFReader, config: Mapping[str, object], folder: Path, progress: Progress
) -> None:
    total = sum(int(tensor.n_elements) for tensor in reader.tensors)
    done = 0
    shard: dict[str, torch.Tensor] = {}
    places: dict[str, str] = {}

    def finish_shard() -> None:
        name = f"model-{len(set(places.values())) + 1:05}.safetensors"
        save_file(shard, folder / name, metadata={"format": "pt"})
        places.update(dict.fromkeys(shard, name))
        shard.clear()

    for tensor in reader.tensors:
        name = _hugging_face_name(tensor.name)
        # float32 holds every dequantised value exactly.
        array = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        array = array.reshape([int(size) for size in reversed(tensor.shape)])
        if config["model_type"] == "llama" and ".self_attn.q_proj." in name:
            array = _unpermuted(array, config["num_attention_heads"])
        if config["model_type"] == "llama" and ".self_attn.k_proj." in name:
            array = _unpermuted(array, config["num_key_value_heads"])
        shard[name] = torch.from_numpy(np.ascontiguousarray(array))
        if sum(each.nbytes for each in shard.values()) >= _SHARD_BYTES:
            finish_shard()
        done += int(tensor.n_elements)
        progress("converting the weights", done / total)
    if shard:
        finish_shard()
    index = {"metadata": {"total_size": total * 4}, "weight_map": places}
    _write_json(folder / "model.safetensors.index.json", index)


def _hugging_face_name(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    layer = ""
    if stem.startswith("blk."):
        _, index, stem = stem.split(".", 2)
        layer = f"model.layers.{index}."
    if stem not in _TENSORS:
        raise MissingTensor(f"the GGUF file has a tensor {name} that this decoder has no place for")
    return f"{layer}{_TENSORS[stem]}.{kind}"


def _unpermuted(array: np.ndarray, heads: object) -> np.ndarray:
    """Rows of a query or key weight, from GGUF's neighbouring rotary pairs to halves apart."""
    assert isinstance(heads, int)
    pairs = array.reshape(heads, -1, 2, *array.shape[1:])
    return pairs.swapaxes(1, 2).reshape(array.shape)


def _write_tokenizer(fields: _Fields, folder: Path) -> None:
    kind = fields["tokenizer.ggml.model"]
    if kind != "gpt2":
        raise UnsupportedArchitecture(
            f"{fields.path} has a {kind} tokenizer; only byte-level BPE is read from GGUF. Use "
            "the model's original Hugging Face folder"
        )
    tokens, merges = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.merges"]
    types = fields["tokenizer.ggml.token_type"]
    assert isinstance(tokens, list) and isinstance(merges, list) and isinstance(types, list)
    scheme = str(fields.get("tokenizer.ggml.pre", "gpt-2"))
    core = tokenizers.Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=[tuple(merge.split(" ", 1)) for merge in merges],
            ignore_merges=scheme == "llama-bpe",
        )
    )
    core.pre_tokenizer = _pre_tokenizer(scheme, fields.path)
    core.decoder = decoders.ByteLevel()
    if scheme == "qwen2":
        core.normalizer = normalizers.NFC()
    control = (gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED)
    for text, type_ in zip(tokens, types, strict=True):
        if type_ not in control:
            continue
        special = type_ == gguf.TokenType.CONTROL
        added = tokenizers.AddedToken(text, special=special, normalized=False)
        (core.add_special_tokens if special else core.add_tokens)([added])

    def token(role: str) -> str | None:
        index = fields.get(f"tokenizer.ggml.{role}_token_id")
        return tokens[index] if isinstance(index, int) else None

    begin = token("bos")
    if fields.get("tokenizer.ggml.add_bos_token") and begin is not None:
        core.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A", special_tokens=[(begin, core.token_to_id(begin))]
        )
    core.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    settings: dict[str, object] = {name: token(role) for name, role in names.items()}
    settings["chat_template"] = fields.get("tokenizer.chat_template")
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    _write_json(folder / "tokenizer_config.json", settings)


def _pre_tokenizer(scheme: str, path: Path) -> pre_tokenizers.PreTokenizer:
    if scheme in _GPT2_DIGITS:
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
        if not _GPT2_DIGITS[scheme]:
            return byte_level
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    if scheme in _SPLITS:
        pattern = tokenizers.Regex(_SPLITS[scheme])
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(pattern, behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    raise UnsupportedArchitecture(
        f"{path} cuts text by the scheme {scheme!r}; known are "
        f"{', '.join((*_GPT2_DIGITS, *_SPLITS))}. Use the model's original Hugging Face folder"
    )


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")
