"""The model whose distribution is decoded: several sequences in one forward, logits where asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from dspark.attention import Attention, Placed, SlotAttention
from dspark.checkpoint import Checkpoint, Progress, Weights, find_checkpoint, read_json
from dspark.decoder import Decoder, DecoderConfig
from dspark.devices import device_named, require
from dspark.errors import InvalidRequest
from dspark.kv_cache import KvCache
from dspark.linear import Precision, precision_named
from dspark.tokenizer import Tokenizer
from dspark.tree import TreeShape
from dspark.tree_attention import Run, TreeRows


@dataclass(frozen=True)
class Span:
    """Consecutive tokens of one sequence that a forward computes.

    Attributes:
        slot: where the sequence's keys and values lie.
        start: position of the first token; everything before it is in the cache.
        tokens: the token ids.
        logits: for how many of the last tokens the next token's logits are wanted.
        tree: which of the last tokens follows which, as many as it has nodes, depth first; the
            tokens before them, at least one, follow each other. None if all do.
    """

    slot: int
    start: int
    tokens: Sequence[int]
    logits: int = 1
    tree: TreeShape | None = None

    @property
    def stop(self) -> int:
        """The place after the last token in the slot, which without a tree is its position."""
        return self.start + len(self.tokens)

    @property
    def positions(self) -> Sequence[int]:
        """Each token's place in its sequence; candidates for the same place have the same."""
        if self.tree is None:
            return range(self.start, self.stop)
        certain = self.stop - len(self.tree)
        return [*range(self.start, certain), *(certain - 1 + d for d in self.tree.depths)]

    def runs(self) -> list[Placed]:
        """The span cut where a token does not follow the one before, each run at its positions."""
        if self.tree is None:
            return [self]
        certain = self.stop - len(self.tree)
        runs = [
            Run(self.slot, certain - 1 + self.tree.depths[run[0]], len(run))
            for run in self.tree.runs()
        ]
        first = Run(self.slot, self.start, certain - self.start + (runs[0].length if runs else 0))
        return [first, *runs[1:]]


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
        span by span over the span's own slot. A tree's keys and values are left there in the order
        of its tokens: `KvCache.keep` then makes a path of it what plain decoding leaves.

        Args:
            spans: at least one, each of at least one token, on different slots.
            cache: holds every position before the spans.
            taps: layers whose outputs are wanted as features (see `Decoder.hidden_states`).
        """
        device = self.decoder.device
        token_ids = [token for span in spans for token in span.tokens]
        positions = [position for span in spans for position in span.positions]
        runs = [run for span in spans for run in span.runs()]
        attention: Attention = SlotAttention(
            runs, cache, heads=self.decoder.config.heads, causal=True
        )
        if any(span.tree is not None for span in spans):
            attention = TreeRows(attention, spans, cache)
        hidden, features = self.decoder.hidden_states(
            torch.tensor(token_ids, device=device),
            torch.tensor(positions, device=device),
            attention,
            taps,
        )
        lengths = [len(span.tokens) for span in spans]
        last = [span.logits for span in spans]
        wanted = [
            rows[len(rows) - count :]
            for rows, count in zip(_split(hidden, lengths), last, strict=True)
        ]
        logits = self.decoder.logits(wanted[0] if len(wanted) == 1 else torch.cat(wanted))
        return Forward(
            _split(logits, last), None if features is None else _split(features, lengths)
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
        InvalidRequest: there is no such device or precision, or not here, or the number of threads
            makes no sense.
    """
    place = device_named(device)
    precision = precision_named(dtype, place)
    require(place)
    if threads < 1:
        raise InvalidRequest(f"threads is {threads}; it must be at least 1")
    return load_model(source, precision, place, threads, progress)


def load_model(
    source: str | Path,
    precision: Precision,
    device: torch.device,
    threads: int,
    progress: Progress | None = None,
) -> Target:
    """`load_target`, with what is computed with already decided."""
    torch.set_num_threads(threads)
    checkpoint = Checkpoint(find_checkpoint(source, progress))
    config = DecoderConfig.from_config(checkpoint.config)
    with torch.inference_mode():
        decoder = Decoder(config, Weights(checkpoint, precision, device))
    return Target(checkpoint.folder, decoder, threads)


def _split(rows: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    """Each sequence's rows. For a step's few `torch.split` takes several times as long."""
    return [
        rows[end - length : end] for length, end in zip(lengths, accumulate(lengths), strict=True)
    ]


def head_weight(target: Target) -> Tensor:
    """The head's weight `[vocab, hidden]` as the checkpoint has it, whatever is computed with."""
    config = target.decoder.config
    name = "model.embed_tokens.weight" if config.tied_embeddings else "lm_head.weight"
    return Checkpoint(target.folder).tensor(name, (config.vocab_size, config.hidden_size))


def _token_ids(value: object) -> set[int]:
    if isinstance(value, int):
        return {value}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return {token for token in value if isinstance(token, int)}
    return set()
