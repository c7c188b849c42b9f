"""Tiny models with random weights, and a target whose every forward a test can see and hold."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from safetensors.torch import save_file
from torch import Tensor

from dspark import Engine, Target, load_target
from dspark.kv_cache import KvCache
from dspark.target import Forward, Span

# How long an example takes says nothing on a machine that does other things too.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

VOCAB = 64
STOP_TOKEN = 1

CONFIG: Mapping[str, object] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "eos_token_id": STOP_TOKEN,
}

Write = Callable[..., Path]


def qwen3_tensors(config: Mapping[str, object], seed: int = 0) -> dict[str, Tensor]:
    """Random weights of a Qwen3 model of the configured shape."""
    generator = torch.Generator().manual_seed(seed)

    def size(key: str) -> int:
        value = config[key]
        assert isinstance(value, int)
        return value

    hidden, mlp, vocab = size("hidden_size"), size("intermediate_size"), size("vocab_size")
    head = size("head_dim")
    q, kv = size("num_attention_heads") * head, size("num_key_value_heads") * head

    def weight(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * 0.3

    tensors = {
        "model.embed_tokens.weight": weight(vocab, hidden),
        "model.norm.weight": 1 + weight(hidden),
        "lm_head.weight": weight(vocab, hidden),
    }
    for layer in range(size("num_hidden_layers")):
        shapes = {
            "self_attn.q_proj": (q, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, q),
            "mlp.gate_proj": (mlp, hidden),
            "mlp.up_proj": (mlp, hidden),
            "mlp.down_proj": (hidden, mlp),
        }
        norms = {
            "input_layernorm": hidden,
            "post_attention_layernorm": hidden,
            "self_attn.q_norm": head,
            "self_attn.k_norm": head,
        }
        prefix = f"model.layers.{layer}"
        tensors |= {f"{prefix}.{name}.weight": weight(*shape) for name, shape in shapes.items()}
        tensors |= {f"{prefix}.{name}.weight": 1 + weight(size) for name, size in norms.items()}
    return tensors


@pytest.fixture
def write_model(tmp_path: Path) -> Write:
    """Writes a tiny model's folder; keywords change its configuration or replace its tensors."""

    def write(
        config: Mapping[str, object] | None = None,
        tensors: Mapping[str, Tensor] | None = None,
        name: str = "model",
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        config = {**CONFIG, **(config or {})}
        (folder / "config.json").write_text(json.dumps(config))
        save_file(dict(tensors or qwen3_tensors(config)), folder / "model.safetensors")
        return folder

    return write


DRAFTER_CONFIG: Mapping[str, object] = {
    **CONFIG,
    "architectures": ["Qwen3DSparkModel"],
    "num_hidden_layers": 2,
    "num_target_layers": CONFIG["num_hidden_layers"],
    "block_size": 4,
    "mask_token_id": VOCAB - 1,
    "target_layer_ids": [-1, 1],
    "markov_rank": 6,
    "markov_head_type": "gated",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}


HEADS = ("none", "vanilla", "gated", "rnn")
"""What `markov_head_type` may be."""


def drafter_tensors(config: Mapping[str, object]) -> dict[str, Tensor]:
    """Random weights of a DSpark drafter of the configured shape, with those of every head."""
    generator = torch.Generator().manual_seed(5)
    decoder = qwen3_tensors(config, seed=5)
    vocab, hidden, rank = config["vocab_size"], config["hidden_size"], config["markov_rank"]
    taps = config["target_layer_ids"]
    assert isinstance(vocab, int) and isinstance(hidden, int)
    assert isinstance(rank, int) and isinstance(taps, list)
    shapes = {
        "fc.weight": (hidden, hidden * len(taps)),
        "hidden_norm.weight": (hidden,),
        "markov_head.markov_w1.weight": (vocab, rank),
        "markov_head.markov_w2.weight": (vocab, rank),
        "markov_head.gate_proj.weight": (rank, hidden + rank),
        "markov_head.joint_proj.weight": (3 * rank, hidden + 2 * rank),
        "markov_head.joint_proj.bias": (3 * rank,),
        "confidence_head.proj.weight": (1, hidden + rank),
        "confidence_head.proj.bias": (1,),
    }
    own = {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}
    return {name.removeprefix("model."): tensor for name, tensor in decoder.items()} | own


def confidence_without_markov(tensors: Mapping[str, Tensor]) -> Tensor:
    """The part of the confidence head's weight that reads the hidden state."""
    return tensors["confidence_head.proj.weight"][:, : len(tensors["norm.weight"])].contiguous()


@pytest.fixture
def write_drafter(tmp_path: Path) -> Write:
    """Writes a drafter for the tiny model.

    Keywords change its configuration, replace or leave out tensors, or give the tokens that it
    drafts from.
    """

    def write(
        config: Mapping[str, object] | None = None,
        replaced: Mapping[str, Tensor] | None = None,
        without: Sequence[str] = (),
        vocabulary: Sequence[int] | None = None,
    ) -> Path:
        folder = tmp_path / f"drafter-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        config = {**DRAFTER_CONFIG, **(config or {})}
        tensors = drafter_tensors(DRAFTER_CONFIG)
        if vocabulary is not None:
            config["draft_vocab_size"] = len(vocabulary)
            tensors["d2t"] = torch.tensor(vocabulary)
            for name in ("lm_head.weight", "markov_head.markov_w2.weight"):
                tensors[name] = tensors[name][tensors["d2t"] % VOCAB]
        if config["markov_head_type"] == "none":
            tensors["confidence_head.proj.weight"] = confidence_without_markov(tensors)
            tensors = {name: each for name, each in tensors.items() if "markov" not in name}
        tensors |= replaced or {}
        (folder / "config.json").write_text(json.dumps(config))
        save_file(
            {name: tensor for name, tensor in tensors.items() if name not in without},
            folder / "model.safetensors",
        )
        return folder

    return write


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model as it comes; not to be written to."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(qwen3_tensors(CONFIG), folder / "model.safetensors")
    return folder


class WatchedTarget(Target):
    """A target that records every forward and can be held before it or made to fail.

    Attributes:
        forwards: the spans of each forward so far, the one held last among them.
        fails_on: a forward that computes this token raises.
    """

    def __init__(self, target: Target) -> None:
        super().__init__(target.folder, target.decoder, target.threads)
        self.forwards: list[list[Span]] = []
        self.fails_on: int | None = None
        self._permits: threading.Semaphore | None = None
        self._arrived = threading.Semaphore(0)

    def hold(self) -> None:
        """From now on each forward waits for `step`; one that stood when let go counts no more."""
        self._arrived = threading.Semaphore(0)
        self._permits = threading.Semaphore(0)

    def step(self, count: int = 1) -> None:
        """Let `count` forwards run, each when the engine has come to it."""
        assert self._permits is not None
        for _ in range(count):
            self._arrived.acquire()
            self._permits.release()

    def wait_held(self) -> None:
        """Wait until the engine stands before a forward; it must have something to do."""
        self._arrived.acquire()
        self._arrived.release()

    def let_go(self) -> None:
        """Hold nothing any more."""
        permits, self._permits = self._permits, None
        if permits is not None:
            permits.release(1_000_000)

    def forward(self, spans: Sequence[Span], cache: KvCache, taps: Sequence[int] = ()) -> Forward:
        permits = self._permits
        self.forwards.append(list(spans))
        if permits is not None:
            self._arrived.release()
            permits.acquire()
        if any(self.fails_on in span.tokens for span in spans):
            raise RuntimeError("a forward that fails")
        return super().forward(spans, cache, taps)


@pytest.fixture
def target(tiny_folder: Path) -> WatchedTarget:
    return WatchedTarget(load_target(tiny_folder))


@pytest.fixture
def open_engine(target: WatchedTarget) -> Iterator[Callable[..., Engine]]:
    """Opens engines on the watched target, and closes them after the test."""
    engines: list[Engine] = []

    def open_(**settings: int) -> Engine:
        engines.append(Engine(target, **{"slots": 4, "context_tokens": 128, **settings}))
        return engines[-1]

    yield open_
    target.let_go()
    for engine in engines:
        engine.close()


@pytest.fixture
def engine(open_engine: Callable[..., Engine]) -> Engine:
    return open_engine()
