"""One decoder for the Llama, Qwen2 and Qwen3 families: what a token's hidden state goes through.

The layers know nothing of caches, slots or masks. They hand queries, keys and values to the
`Attention` they are called with, so the target (a ragged batch over cached sequences) and a
drafter (a block that looks at context features) run the same code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from dspark.attention import Attention
from dspark.cached_rows import rows_of
from dspark.checkpoint import Weights
from dspark.errors import UnsupportedArchitecture
from dspark.fast_path import compiled_stack
from dspark.linear import Linear
from dspark.norm import RmsNorm

FAMILIES = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3DSparkModel": "qwen3",
}


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding, with Llama 3's stretching of the long wavelengths if asked for.

    Attributes:
        theta: the base of the wavelengths.
        factor: by how much long wavelengths are stretched; 1 for none.
        low_frequency_factor: wavelengths above `original_context / this` are stretched fully.
        high_frequency_factor: wavelengths below `original_context / this` are left alone.
        original_context: the context the model was first trained with, in tokens.
        llama3: whether the three above apply; otherwise all wavelengths are stretched alike.
    """

    theta: float
    factor: float = 1.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_context: int = 8192
    llama3: bool = False

    @classmethod
    def from_config(cls, config: Mapping[str, object]) -> Rope:
        """Read transformers 4's (`rope_theta`, `rope_scaling`) or 5's (`rope_parameters`) keys."""
        parameters: dict[str, object] = {}
        for key in ("rope_scaling", "rope_parameters"):
            found = config.get(key)
            if isinstance(found, Mapping):
                parameters |= found
        kind = parameters.get("rope_type", parameters.get("type", "default"))
        theta = _number(parameters.get("rope_theta", config.get("rope_theta", 10_000.0)))
        if kind == "default":
            return cls(theta)
        factor = _number(parameters.get("factor", 1.0))
        if kind == "linear":
            return cls(theta, factor)
        if kind == "llama3":
            return cls(
                theta,
                factor,
                _number(parameters["low_freq_factor"]),
                _number(parameters["high_freq_factor"]),
                int(_number(parameters["original_max_position_embeddings"])),
                llama3=True,
            )
        raise UnsupportedArchitecture(
            f"the model's rope type is {kind!r}; default, linear and llama3 are supported"
        )

    def inverse_wavelengths(self, head_dim: int) -> Tensor:
        """Radians per position of each pair of dimensions: `[head_dim / 2]` float32."""
        exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
        frequencies = 1.0 / (self.theta**exponents)
        if not self.llama3:
            return frequencies / self.factor
        wavelengths = 2 * math.pi / frequencies
        low, high = self.low_frequency_factor, self.high_frequency_factor
        unstretched = ((self.original_context / wavelengths - low) / (high - low)).clamp(0, 1)
        return frequencies * (unstretched + (1 - unstretched) / self.factor)


@dataclass(frozen=True)
class DecoderConfig:
    """The shape of a decoder, in the words of the Hugging Face configuration it is read from."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_positions: int
    norm_epsilon: float
    rope: Rope
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tied_embeddings: bool

    @classmethod
    def from_config(cls, config: Mapping[str, object]) -> DecoderConfig:
        """Read a `config.json`; raises `UnsupportedArchitecture` for what is not computed here."""
        architectures = config.get("architectures")
        names = architectures if isinstance(architectures, Sequence) else ()
        family = next((FAMILIES[name] for name in names if name in FAMILIES), None)
        if family is None:
            raise UnsupportedArchitecture(
                f"the model's architecture is {list(names) or 'not named'}; supported are "
                f"{', '.join(FAMILIES)}. Choose a model of one of these families"
            )
        activation = config.get("hidden_act", "silu")
        if activation != "silu":
            raise UnsupportedArchitecture(f"the activation is {activation!r}; only silu is known")
        if config.get("use_sliding_window"):
            raise UnsupportedArchitecture(
                "the model uses sliding-window attention, which is not supported: choose a model "
                "with full attention (use_sliding_window false)"
            )

        def integer(key: str, default: object = None) -> int:
            value = config.get(key)
            value = default if value is None else value
            if value is None:
                raise UnsupportedArchitecture(f"config.json does not say {key!r}: fetch it again")
            return int(_number(value))

        heads = integer("num_attention_heads")
        hidden_size = integer("hidden_size")
        attention_bias = bool(config.get("attention_bias", False))
        return cls(
            family=family,
            vocab_size=integer("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=integer("intermediate_size"),
            layers=integer("num_hidden_layers"),
            heads=heads,
            kv_heads=integer("num_key_value_heads", heads),
            head_dim=integer("head_dim", hidden_size // heads),
            max_positions=integer("max_position_embeddings"),
            norm_epsilon=_number(config.get("rms_norm_eps", 1e-6)),
            rope=Rope.from_config(config),
            qkv_bias=attention_bias or family == "qwen2",
            output_bias=attention_bias and family != "qwen2",
            mlp_bias=bool(config.get("mlp_bias", False)),
            qk_norm=family == "qwen3",
            tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        )

    @property
    def attention_width(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of all key heads together."""
        return self.kv_heads * self.head_dim


def _number(value: object) -> float:
    if isinstance(value, int | float):
        return float(value)
    raise UnsupportedArchitecture(f"config.json has {value!r} where a number belongs")


@dataclass(frozen=True)
class Rotation:
    """Cosines and signed sines of some positions: both `[tokens, 1, head_dim]`."""

    cosine: Tensor
    signed_sine: Tensor

    @classmethod
    def at(cls, positions: Tensor, inverse_wavelengths: Tensor, dtype: torch.dtype) -> Rotation:
        """The rotation of each of `positions [tokens]`, computed in float32."""
        angles = positions.float()[:, None, None] * inverse_wavelengths
        cosine, sine = angles.cos(), angles.sin()
        return cls(
            torch.cat((cosine, cosine), -1).to(dtype), torch.cat((-sine, sine), -1).to(dtype)
        )

    def __call__(self, heads: Tensor) -> Tensor:
        """Rotate `[tokens, heads, head_dim]`, whose pairs lie half the head apart."""
        partner = heads.roll(heads.shape[-1] // 2, -1)
        return torch.addcmul(heads * self.cosine, partner, self.signed_sine)


class DecoderLayer:
    """Attention and a gated feed-forward network, each behind an RMS norm and around a residual."""

    def __init__(self, config: DecoderConfig, index: int, weights: Weights, prefix: str) -> None:
        self._config = config
        self._index = index
        hidden, attention, kv = config.hidden_size, config.attention_width, config.kv_width

        def vector(name: str, size: int) -> Tensor:
            return weights.dense(f"{prefix}.{name}.weight", (size,))

        epsilon = config.norm_epsilon
        self.attention_norm = RmsNorm(vector("input_layernorm", hidden), epsilon)
        self.mlp_norm = RmsNorm(vector("post_attention_layernorm", hidden), epsilon)
        self.qkv = weights.linear(
            [f"{prefix}.self_attn.{name}_proj" for name in "qkv"],
            [attention, kv, kv],
            hidden,
            bias=config.qkv_bias,
        )
        self.output = weights.linear(
            [f"{prefix}.self_attn.o_proj"], [hidden], attention, bias=config.output_bias
        )
        self.gate_up = weights.linear(
            [f"{prefix}.mlp.gate_proj", f"{prefix}.mlp.up_proj"],
            [config.intermediate_size] * 2,
            hidden,
            bias=config.mlp_bias,
        )
        self.down = weights.linear(
            [f"{prefix}.mlp.down_proj"], [hidden], config.intermediate_size, bias=config.mlp_bias
        )
        self.head_norms: tuple[Tensor, Tensor] | None = None
        self._qk_norm: Tensor | None = None
        if config.qk_norm:
            query = vector("self_attn.q_norm", config.head_dim)
            key = vector("self_attn.k_norm", config.head_dim)
            self.head_norms = query, key
            # One row a head, so that queries and keys are normed and rotated together.
            self._qk_norm = torch.stack([query] * config.heads + [key] * config.kv_heads)

    def __call__(self, hidden: Tensor, rotation: Rotation, attention: Attention) -> Tensor:
        """`[tokens, hidden] → [tokens, hidden]`."""
        queries, keys, values = self._project(self.attention_norm(hidden), rotation)
        hidden = hidden + self.output(attention(self._index, queries, keys, values))
        gate, up = self.gate_up(self.mlp_norm(hidden)).chunk(2, -1)
        return hidden + self.down(functional.silu(gate) * up)

    def _project(self, normed: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        config = self._config
        heads = self.qkv(normed).view(len(normed), -1, config.head_dim)
        rotated, values = torch.split_with_sizes(
            heads, (config.heads + config.kv_heads, config.kv_heads), 1
        )
        if self._qk_norm is not None:
            rotated = (
                functional.rms_norm(rotated, (config.head_dim,), eps=config.norm_epsilon)
                * self._qk_norm
            )
        queries, keys = torch.split_with_sizes(
            rotation(rotated), (config.heads, config.kv_heads), 1
        )
        return queries, keys, values


class Decoder:
    """Embedding, layers, final norm and head, with the hidden states of chosen layers kept.

    Attributes:
        config: its shape.
        embedding: `[vocab, hidden]`.
        head: hidden states to logits.
    """

    def __init__(self, config: DecoderConfig, weights: Weights) -> None:
        self.config = config
        self.precision = weights.precision
        self.dtype = weights.precision.activations
        self.device = weights.device
        shape = (config.vocab_size, config.hidden_size)
        self.embedding = weights.embedding("model.embed_tokens.weight", shape)
        self.layers = [
            DecoderLayer(config, index, weights, f"model.layers.{index}")
            for index in range(config.layers)
        ]
        self.final_norm = weights.dense("model.norm.weight", (config.hidden_size,))
        self._norm = RmsNorm(self.final_norm, config.norm_epsilon)
        self.head: Linear = (
            weights.tied_head("model.embed_tokens.weight", self.embedding)
            if config.tied_embeddings
            else weights.head("lm_head", shape)
        )
        self.inverse_wavelengths = config.rope.inverse_wavelengths(config.head_dim).to(self.device)
        self._stack = compiled_stack(config, self.layers)

    def first_layers(self, count: int) -> Decoder:
        """A decoder of the first layers, followed by the same norm and head; it shares all weights.

        Its layers' keys and values are those of this one's.
        """
        early = copy(self)
        early.layers = self.layers[:count]
        early._stack = self._stack and self._stack.first(count)
        early.config = replace(self.config, layers=count)
        return early

    def embed(self, token_ids: Tensor) -> Tensor:
        """`[tokens]` → `[tokens, hidden]`."""
        return functional.embedding(token_ids, self.embedding).to(self.dtype)

    def rotation(self, positions: Tensor) -> Rotation:
        """The rotary embedding of `[tokens]` positions."""
        return Rotation.at(positions, self.inverse_wavelengths, self.dtype)

    def hidden_states(
        self, token_ids: Tensor, positions: Tensor, attention: Attention, taps: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """Run every layer.

        Args:
            token_ids: `[tokens]`.
            positions: `[tokens]`, each token's place in its own sequence.
            attention: who holds the keys and values.
            taps: layers whose raw output is kept; -1 is the embedding.

        Returns:
            The last layer's output `[tokens, hidden]`, before the final norm, and the tapped
            outputs side by side `[tokens, taps × hidden]`, None without taps.
        """
        hidden = self.embed(token_ids)
        if self._stack is not None and (rows := rows_of(attention)) is not None:
            return hidden, self._stack(hidden, positions, rows, taps)
        rotation = self.rotation(positions)
        tapped = {-1: hidden} if -1 in taps else {}
        for index, layer in enumerate(self.layers):
            hidden = layer(hidden, rotation, attention)
            if index in taps:
                tapped[index] = hidden
        features = torch.cat([tapped[tap] for tap in taps], -1) if taps else None
        return hidden, features

    def logits(self, hidden: Tensor) -> Tensor:
        """`[rows, hidden]`, before the final norm → `[rows, vocab]` float32."""
        logits = self.head(self._norm(hidden))
        return logits if logits.dtype == torch.float32 else logits.float()
