"""The model whose distribution is decoded: several sequences in one forward, logits where asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from dspark.attention import SlotAttention
from dspark.checkpoint import Checkpoint, Progress, Weights, find_checkpoint, read_json
from dspark.decoder import Decoder, DecoderConfig
from dspark.errors import InvalidRequest
from dspark.kv_cache import KvCache
from dspark.linear import precision_named
from dspark.tokenizer import Tokenizer


@dataclass(frozen=True)
class Span:
    """Consecutive tokens of one sequence that a forward computes.

    Attributes:
        slot: where the sequence's keys and values lie.
        start: position of the first token; everything before it is in the cache.
        tokens: the token ids.
        logits: for how many of the last tokens the next token's logits are wanted.
    """

    slot: int
    start: int
    tokens: Sequence[int]
    logits: int = 1

    @property
    def stop(self) -> int:
        """The position after the last token."""
        return self.start + len(self.tokens)


class Forward(NamedTuple):
    """What a forward gives.

    Attributes:
        logits: one `[span.logits, vocab]` float32 a span.
        features: one `[tokens, taps × hidden]` a span; None without taps, and for a span whose
            features the drafter has taken in within the step (see `dspark.static_step`).
    """

    logits: list[Tensor]
    features: Sequence[Tensor | None] | None


class Target:
    """A causal language model and its tokenizer.

    Attributes:
        folder: the checkpoint it was loaded from.
        decoder: the network.
        threads: how many threads its engine computes with.
        stop_token_ids: tokens that end an answer, by the model's generation configuration and its
            tokenizer.
    """

    def __init__(self, folder: Path, decoder: Decoder, threads: int) -> None:
        self.folder = folder
        self.decoder = decoder
        self.threads = threads

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The checkpoint's tokenizer; raises `TokenizerError` if it has none."""
        return Tokenizer.from_folder(self.folder)

    @cached_property
    def stop_token_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        stops: set[int] = set()
        for name in ("config.json", "generation_config.json"):
            path = self.folder / name
            if path.is_file():
                stops |= _token_ids(read_json(path).get("eos_token_id"))
        if (self.folder / "tokenizer.json").is_file():
            stops |= self.tokenizer.stop_token_ids
        return frozenset(stops)

    @property
    def context_tokens(self) -> int:
        """How many positions the model was made for."""
        return self.decoder.config.max_positions

    @property
    def vocab_size(self) -> int:
        """How many token ids there are."""
        return self.decoder.config.vocab_size

    def new_cache(self, slots: int, context_tokens: int) -> KvCache:
        """An empty cache that fits this model."""
        config = self.decoder.config
        return KvCache(
            layers=config.layers,
            slots=slots,
            kv_heads=config.kv_heads,
            context_tokens=context_tokens,
            head_dim=config.head_dim,
            dtype=self.decoder.dtype,
            device=self.decoder.device,
        )

    def forward(self, spans: Sequence[Span], cache: KvCache, taps: Sequence[int] = ()) -> Forward:
        """Compute the spans' tokens together, storing their keys and values.

        Linear layers see all tokens of all spans as one batch of rows; attention is computed
        span by span over the span's own slot.

        Args:
            spans: at least one, each of at least one token, on different slots.
            cache: holds every position before the spans.
            taps: layers whose outputs are wanted as features (see `Decoder.hidden_states`).
        """
        device = self.decoder.device
        token_ids = [token for span in spans for token in span.tokens]
        positions = [position for span in spans for position in range(span.start, span.stop)]
        hidden, features = self.decoder.hidden_states(
            torch.tensor(token_ids, device=device),
            torch.tensor(positions, device=device),
            SlotAttention(spans, cache, heads=self.decoder.config.heads, causal=True),
            taps,
        )
        lengths = [len(span.tokens) for span in spans]
        per_span = torch.split(hidden, lengths)
        wanted = [rows[len(rows) - s.logits :] for s, rows in zip(spans, per_span, strict=True)]
        logits = self.decoder.logits(torch.cat(wanted))
        return Forward(
            list(torch.split(logits, [len(rows) for rows in wanted])),
            None if features is None else list(torch.split(features, lengths)),
        )


def load_target(
    source: str | Path,
    device: str = "cpu",
    dtype: str = "float32",
    threads: int = 1,
    progress: Progress | None = None,
) -> Target:
    """Load a language model of the Llama, Qwen2 or Qwen3 family.

    Args:
        source: a folder in Hugging Face layout, a `.gguf` file, or a hub id. A GGUF file is
            converted once, into the user's cache folder (or `$DSPARK_CACHE`).
        device: a torch device, `cpu` or `cuda`.
        dtype: the precision computed with: `float32`, `bfloat16` or, on the CPU, `int8` or `int4`
            (see `dspark.linear`).
        threads: how many CPU threads a step may use.
        progress: told about the conversion of a GGUF file.

    Raises:
        CheckpointError: the model is not there, incomplete, or of an unsupported kind.
        InvalidRequest: there is no such precision, or not here, or the number of threads makes
            no sense.
    """
    precision = precision_named(dtype, torch.device(device))
    if threads < 1:
        raise InvalidRequest(f"threads is {threads}; it must be at least 1")
    torch.set_num_threads(threads)
    folder = find_checkpoint(source, progress)
    checkpoint = Checkpoint(folder)
    config = DecoderConfig.from_config(checkpoint.config)
    weights = Weights(checkpoint, precision, torch.device(device))
    with torch.inference_mode():
        decoder = Decoder(config, weights)
    return Target(folder, decoder, threads)


def _token_ids(value: object) -> set[int]:
    if isinstance(value, int):
        return {value}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return {token for token in value if isinstance(token, int)}
    return set()
