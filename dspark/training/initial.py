"""The weights that training starts from: the target's last layers, random ones, a drafter's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor

from dspark.checkpoint import Checkpoint, read_json
from dspark.decoder import DecoderConfig
from dspark.errors import RunMismatch
from dspark.target import Target

_STANDARD_DEVIATION = 0.02
_MARKOV_DEVIATION = 0.25  # the other factor starts at zero, so this is a learning rate

Tensors = dict[str, Tensor]


_KEPT = ("mask_token_id", "num_anchors", "target_stop_token_ids")
_CHANGEABLE = ("block_size",)  # no weight depends on it


class DrafterFolder(NamedTuple):
    """A trained drafter, to be trained on."""

    config: Mapping[str, object]
    tensors: Tensors

    @classmethod
    def read(cls, folder: Path, like: Mapping[str, object]) -> DrafterFolder:
        """Read it, in float32, to go on with the block size that is asked for.

        Raises:
            RunMismatch: its configuration is another than that asked for.
        """
        config = read_json(folder / "config.json")
        for key, wanted in like.items():
            if key not in _KEPT + _CHANGEABLE and config.get(key) != wanted:
                raise RunMismatch(
                    f"the drafter in {folder} has {key} {config.get(key)}, and {wanted} was "
                    "asked for: ask for the same, or start from the target"
                )
        tensors = {
            name: tensor.float() if tensor.is_floating_point() else tensor
            for name, tensor in load_file(folder / "model.safetensors").items()
        }
        return cls({**config, **{key: like[key] for key in _CHANGEABLE}}, tensors)


def random_weights(config: Mapping[str, object], seed: int) -> Tensors:
    """Small normal weights, norms of one, and a sequential head that changes nothing yet."""
    shape = DecoderConfig.from_config(config)
    generator = torch.Generator().manual_seed(seed)
    hidden, rank = shape.hidden_size, _integer(config, "markov_rank")
    taps = config["target_layer_ids"]
    assert isinstance(taps, Sequence)
    drafted = _integer(config, "draft_vocab_size", shape.vocab_size)

    def normal(*size: int, deviation: float = _STANDARD_DEVIATION) -> Tensor:
        return torch.randn(size, generator=generator) * deviation

    tensors = {
        "fc.weight": normal(hidden, hidden * len(taps)),
        "hidden_norm.weight": torch.ones(hidden),
        "norm.weight": torch.ones(hidden),
        "confidence_head.proj.weight": torch.zeros(1, hidden + rank),
        "confidence_head.proj.bias": torch.zeros(1),
    }
    if rank:
        tensors["markov_head.markov_w1.weight"] = normal(
            shape.vocab_size, rank, deviation=_MARKOV_DEVIATION
        )
        tensors["markov_head.markov_w2.weight"] = torch.zeros(drafted, rank)
    for layer in range(shape.layers):
        prefix = f"layers.{layer}"
        attention, kv, mlp = shape.attention_width, shape.kv_width, shape.intermediate_size
        tensors |= {
            f"{prefix}.input_layernorm.weight": torch.ones(hidden),
            f"{prefix}.post_attention_layernorm.weight": torch.ones(hidden),
            f"{prefix}.self_attn.q_norm.weight": torch.ones(shape.head_dim),
            f"{prefix}.self_attn.k_norm.weight": torch.ones(shape.head_dim),
            f"{prefix}.self_attn.q_proj.weight": normal(attention, hidden),
            f"{prefix}.self_attn.k_proj.weight": normal(kv, hidden),
            f"{prefix}.self_attn.v_proj.weight": normal(kv, hidden),
            f"{prefix}.self_attn.o_proj.weight": normal(hidden, attention),
            f"{prefix}.mlp.gate_proj.weight": normal(mlp, hidden),
            f"{prefix}.mlp.up_proj.weight": normal(mlp, hidden),
            f"{prefix}.mlp.down_proj.weight": normal(hidden, mlp),
        }
    if config["markov_head_type"] == "gated":
        tensors["markov_head.gate_proj.weight"] = normal(rank, hidden + rank)
        tensors["markov_head.gate_proj.bias"] = torch.zeros(rank)
    if config["markov_head_type"] == "rnn":
        tensors["markov_head.joint_proj.weight"] = normal(3 * rank, hidden + 2 * rank)
        tensors["markov_head.joint_proj.bias"] = torch.zeros(3 * rank)
    return tensors


def weights_of_target(config: Mapping[str, object], target: Target) -> Tensors:
    """What of a drafter's weights the target's last layers can give.

    Their keys and values are made for normed hidden states of the target, which is what the context
    features are: `fc` starts as the mean of the taps, `hidden_norm` as the norm of the first
    layer taken. Drafters norm queries and keys; where the target does not, the norm starts
    as a constant that leaves their size as it is on average. Biases of the projections are left
    out, and so are feed-forward networks of another width.
    """
    shape = DecoderConfig.from_config(config)
    of_target = target.decoder.config
    checkpoint = Checkpoint(target.folder)
    hidden, head_dim = shape.hidden_size, shape.head_dim
    taps = config["target_layer_ids"]
    assert isinstance(taps, Sequence)
    mean_of_taps = torch.eye(hidden).repeat(1, len(taps)) / len(taps)
    tensors = {
        "fc.weight": mean_of_taps,
        "norm.weight": checkpoint.tensor("model.norm.weight", (hidden,)).float(),
    }
    taken = min(shape.layers, of_target.layers)
    for layer in range(taken):
        source = f"model.layers.{of_target.layers - taken + layer}"
        goal = f"layers.{layer}"

        def copy(name: str, *size: int, source: str = source, goal: str = goal) -> Tensor:
            tensor = checkpoint.tensor(f"{source}.{name}.weight", size).float()
            tensors[f"{goal}.{name}.weight"] = tensor
            return tensor

        norm = copy("input_layernorm", hidden)
        copy("post_attention_layernorm", hidden)
        query = copy("self_attn.q_proj", shape.attention_width, hidden)
        key = copy("self_attn.k_proj", shape.kv_width, hidden)
        copy("self_attn.v_proj", shape.kv_width, hidden)
        copy("self_attn.o_proj", hidden, shape.attention_width)
        if of_target.qk_norm:
            copy("self_attn.q_norm", head_dim)
            copy("self_attn.k_norm", head_dim)
        else:
            for name, weight in (("q", query), ("k", key)):
                size = (weight * norm).square().sum(-1).mean().sqrt()
                tensors[f"{goal}.self_attn.{name}_norm.weight"] = size.expand(head_dim).clone()
        if shape.intermediate_size == of_target.intermediate_size:
            copy("mlp.gate_proj", shape.intermediate_size, hidden)
            copy("mlp.up_proj", shape.intermediate_size, hidden)
            copy("mlp.down_proj", hidden, shape.intermediate_size)
        if layer == 0:
            tensors["hidden_norm.weight"] = norm.clone()
    return tensors


def _integer(config: Mapping[str, object], key: str, default: int | None = None) -> int:
    value = config.get(key, default)
    assert isinstance(value, int)
    return value
