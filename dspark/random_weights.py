"""Models of a given shape with random weights: as fast as trained ones, and nothing to download.

What a step costs depends on shapes and precision alone, so speed can be measured without a
checkpoint. What such a model says is noise, and a drafter's proposals are hardly ever accepted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from dspark.checkpoint import Checkpoint, Weights
from dspark.decoder import Decoder, DecoderConfig
from dspark.devices import device_named, require
from dspark.drafters.dspark import DSparkDrafter
from dspark.errors import CheckpointError, InvalidRequest
from dspark.linear import precision_named
from dspark.step_cost import cache_folder
from dspark.target import Target

Config = Mapping[str, object]
"""What a checkpoint's `config.json` holds."""


def _qwen3(hidden: int, mlp: int, layers: int, heads: int, *, tied: bool) -> Config:
    return MappingProxyType(
        {
            "architectures": ["Qwen3ForCausalLM"],
            "vocab_size": 151_936,
            "hidden_size": hidden,
            "intermediate_size": mlp,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 40_960,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1_000_000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": tied,
        }
    )


SHAPES: Mapping[str, Config] = MappingProxyType(
    {
        "qwen3-0.6b": _qwen3(1024, 3072, 28, 16, tied=True),
        "qwen3-1.7b": _qwen3(2048, 6144, 28, 16, tied=True),
        "qwen3-4b": _qwen3(2560, 9728, 36, 32, tied=True),
        "qwen3-8b": _qwen3(4096, 12288, 36, 32, tied=False),
        "qwen3-14b": _qwen3(5120, 17408, 40, 40, tied=False),
    }
)
"""Configurations of published models, by name."""


class RandomCheckpoint(Checkpoint):
    """A checkpoint that has every tensor it is asked for, in the shape that is asked for.

    Norms are near one; other weights are such that a layer keeps its rows' magnitude. The same
    seed and the same questions, in order, give the same weights on the same kind of device.
    """

    def __init__(self, config: Config, device: torch.device, seed: int) -> None:
        self.config = config
        self.folder = _folder_of(config)
        self._device = device
        self._generator = torch.Generator(device).manual_seed(seed)

    def __contains__(self, name: str) -> bool:
        return False  # nothing that is optional

    def tensor(self, name: str, shape: Sequence[int]) -> Tensor:
        """A new random tensor, on the device, so that large models are made in seconds."""
        tensor = torch.randn(tuple(shape), generator=self._generator, device=self._device)
        if len(shape) == 1:
            return 1 + 0.1 * tensor
        return tensor.mul_(shape[-1] ** -0.5)


def _folder_of(config: Config) -> Path:
    """A folder in the cache that holds the configuration, by which models are told apart."""
    content = json.dumps(dict(config), indent=2, sort_keys=True)
    folder = cache_folder() / "random" / hashlib.sha256(content.encode()).hexdigest()[:16]
    path = folder / "config.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.is_file():
            path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written ({error}): let DSPARK_CACHE name a folder that can"
        ) from error
    return folder


def random_target(
    config: Config | str,
    device: str = "cpu",
    dtype: str = "float32",
    threads: int = 1,
    seed: int = 0,
) -> Target:
    """A language model of a given shape that has learnt nothing.

    It has no tokenizer. Only a token that `config` names as `eos_token_id` ends its answers, and
    none of `SHAPES` names one.

    Args:
        config: as in a checkpoint's `config.json`, or the name of one of `SHAPES`.
        device: as for `load_target`, like `dtype` and `threads`.
        dtype: the precision computed with.
        threads: how many CPU threads a step may use.
        seed: of the weights.

    Raises:
        InvalidRequest: there is no shape of that name, or no such precision.
        CheckpointError: the configuration is of no kind that is computed here, or cannot be kept
            in the cache folder.
    """
    if isinstance(config, str):
        if config not in SHAPES:
            raise InvalidRequest(f"there is no shape {config!r}; known are {', '.join(SHAPES)}")
        config = SHAPES[config]
    place = device_named(device)
    precision = precision_named(dtype, place)
    require(place)
    torch.set_num_threads(threads)
    checkpoint = RandomCheckpoint(config, place, seed)
    with torch.inference_mode():
        decoder = Decoder(DecoderConfig.from_config(config), Weights(checkpoint, precision, place))
    return Target(checkpoint.folder, decoder, threads)


def random_drafter(
    target: Target,
    *,
    layers: int = 5,
    block_size: int = 7,
    taps: int = 5,
    markov_rank: int = 256,
    head: str = "vanilla",
    seed: int = 1,
) -> DSparkDrafter:
    """A DSpark drafter for a target, of the published drafters' shape unless told otherwise.

    Args:
        target: whose width, heads and vocabulary it has.
        layers: how many it has.
        block_size: how many tokens it proposes.
        taps: how many of the target's layers it reads, spread evenly.
        markov_rank: width of the sequential stage.
        head: kind of the sequential stage: `none`, `vanilla`, `gated` or `rnn`.
        seed: of the weights.

    Raises:
        InvalidRequest: the target has too few layers for so many taps.
    """
    shape = target.decoder.config
    if not 1 <= taps < shape.layers:
        raise InvalidRequest(
            f"taps is {taps}; it must be at least 1 and below the target's {shape.layers} layers"
        )
    config: Config = {
        "architectures": ["Qwen3DSparkModel"],
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.max_positions,
        "rms_norm_eps": shape.norm_epsilon,
        "rope_theta": shape.rope.theta,
        "block_size": block_size,
        "mask_token_id": shape.vocab_size - 1,
        "target_layer_ids": [index * (shape.layers - 1) // taps for index in range(taps)],
        "markov_rank": markov_rank,
        "markov_head_type": head,
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }
    checkpoint = RandomCheckpoint(config, target.decoder.device, seed)
    with torch.inference_mode():
        return DSparkDrafter(checkpoint, target)
