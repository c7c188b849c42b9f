"""What a DSpark drafter does beside its layers, in one call each: taking features in, and choosing.

Left to torch, both are dozens of operations on a handful of rows, and calling them takes longer
than what they compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dspark.compiled.elementwise import rms_norm, rotate
from dspark.compiled.jit import compiled, inlined
from dspark.compiled.layers import (
    Array,
    Linear,
    aligned,
    copied,
    first_address,
    in_use,
    product,
    product_room,
    row_address,
)
from dspark.compiled.vectors import (
    LANES,
    LINE,
    add,
    fma,
    largest,
    largest_of_two,
    load,
    load_brain,
    load_number,
    splat,
    store,
    store_number,
    total,
)
from dspark.compiled.weights import CompiledLinear
from dspark.kv_cache import KvCache


@inlined
def _dot(left: int, right: int, size: int) -> float:
    sums = splat(np.float32(0))
    for at in range(0, 4 * size, 4 * LANES):
        sums = fma(load(left + at), load(right + at), sums)
    found: float = total(sums)
    return found


@compiled
def _take_in(
    features: Array,
    rotations: Array,
    keys: Array,
    values: Array,
    slot: int,
    start: int,
    epsilon: float,
    fuse: Linear,
    feature_norm: Array,
    context: Linear,
    key_norms: Array,
) -> None:
    rows, wide = features.shape
    size = feature_norm.shape[0]
    layers, slots, kv_heads, places, head_dim = keys.shape
    head_bytes = 4 * head_dim
    width = 2 * layers * kv_heads * head_dim
    fused_bytes, both_bytes = 4 * rows * size, 4 * rows * width
    room = np.empty(
        fused_bytes
        + both_bytes
        + max(product_room(rows, wide), product_room(rows, size))
        + 3 * LINE,
        np.uint8,
    )
    fused = aligned(first_address(room))
    both = aligned(fused + fused_bytes)
    digits = aligned(both + both_bytes)
    product(
        rows, first_address(features), 4 * wide, fuse[0], fuse[1], fuse[2], 0, wide, size, digits,
        fused,
    )  # fmt: skip
    for row in range(rows):
        at = fused + 4 * row * size
        rms_norm(at, first_address(feature_norm), size, epsilon, at)
    product(rows, fused, 4 * size, context[0], context[1], context[2], 0, size, width, digits, both)
    for row in range(rows):
        cosines = first_address(rotations) + row * head_bytes
        for layer in range(layers):
            at = both + 4 * row * width + 2 * layer * kv_heads * head_bytes
            for head in range(kv_heads):
                key = at + head * head_bytes
                rms_norm(key, row_address(key_norms, layer), head_dim, epsilon, key)
                rotate(key, cosines, cosines + head_bytes // 2, head_dim)
                place = ((layer * slots + slot) * kv_heads + head) * places + start + row
                copied(key, first_address(keys) + place * head_bytes, head_dim)
                value = key + kv_heads * head_bytes
                copied(value, first_address(values) + place * head_bytes, head_dim)
    in_use(room)


@inlined
def _penalise(logits: int, seen: Array, factor: float) -> None:
    for token in range(len(seen)):
        if seen[token]:
            logit = load_number(logits + 4 * token)
            penalised = logit / factor if logit > 0 else logit * factor
            store_number(logits + 4 * token, np.float32(penalised))


@inlined
def _best(logits: int, vocab: int) -> int:
    """The first of the largest; the last of all if none is a number."""
    top = load(logits)
    for at in range(4 * LANES, 4 * vocab, 4 * LANES):
        top = largest_of_two(top, load(logits + at))
    most = largest(top)
    token = 0
    while token < vocab - 1 and load_number(logits + 4 * token) != most:
        token += 1
    return token


@compiled
def _propose(
    hidden: Array,
    tokens: Array,
    seconds: Array,
    confidences: Array,
    seen: Array,
    penalties: Array,
    ids: Array,
    epsilon: float,
    norm: Array,
    head: Linear,
    embedding: Array,
    spread: Linear,
    confidence: Array,
    doubt: float,
) -> None:
    """Fill `tokens [anchors, 1 + block]`, whose first column is there, from left to right.

    And `seconds [anchors, …]` with the second likeliest of as many places. `seen [anchors, drafted
    vocabulary]` says which tokens are penalised, and is written to.
    """
    rows, size = hidden.shape
    anchors, block = confidences.shape
    vocab, rank = ids.shape[0], embedding.shape[1]
    normed_bytes, base_bytes = 4 * rows * size, 4 * rows * vocab
    most_digits = max(product_room(rows, size), product_room(1, rank))
    room = np.empty(
        normed_bytes + base_bytes + 4 * vocab + 4 * rank + most_digits + 5 * LINE, np.uint8
    )
    normed = aligned(first_address(room))
    base = aligned(normed + normed_bytes)
    bias = aligned(base + base_bytes)
    before = aligned(bias + 4 * vocab)
    digits = aligned(before + 4 * rank)
    for row in range(rows):
        at = 4 * row * size
        rms_norm(first_address(hidden) + at, first_address(norm), size, epsilon, normed + at)
    product(rows, normed, 4 * size, head[0], head[1], head[2], 0, size, vocab, digits, base)
    for anchor in range(anchors):
        factor = penalties[anchor]
        for place in range(block):
            row = anchor * block + place
            at = first_address(embedding) + 2 * rank * tokens[anchor, place]
            for index in range(0, rank, LANES):
                store(before + 4 * index, load_brain(at + 2 * index))
            weight = first_address(confidence)
            confidences[anchor, place] = np.float32(doubt) + (
                _dot(normed + 4 * row * size, weight, size) + _dot(before, weight + 4 * size, rank)
            )
            product(1, before, 4 * rank, spread[0], spread[1], spread[2], 0, rank, vocab, digits,
                    bias)  # fmt: skip
            for at in range(0, 4 * vocab, 4 * LANES):
                store(bias + at, add(load(base + 4 * row * vocab + at), load(bias + at)))
            if factor != 1:
                _penalise(bias, seen[anchor], factor)
            best = _best(bias, vocab)
            seen[anchor, best] = True
            tokens[anchor, place + 1] = ids[best]
            if place < seconds.shape[1]:
                store_number(bias + 4 * best, np.float32(-np.inf))
                seconds[anchor, place] = ids[_best(bias, vocab)]
    in_use(room)


@dataclass(frozen=True)
class DraftingWeights:
    """What of a drafter's weights this takes, all compiled or float32 but for `embedding`.

    Attributes:
        fuse: tapped outputs to features.
        context: features to the keys and values of all layers.
        head: hidden states to logits.
        spread: `[drafted vocabulary, rank]`, from the token before to the logits' correction.
        embedding: `[vocab, rank]` bfloat16, of the token before.
        feature_norm: `[hidden]`.
        key_norms: `[layers, head_dim]`.
        norm: `[hidden]`, before the head.
        ids: `[drafted vocabulary]` int64, the target's ids.
        confidence: `[hidden + rank]`.
        doubt: its bias.
        epsilon: of the norms.
        taps: how many layers of the target are read.
    """

    fuse: CompiledLinear
    context: CompiledLinear
    head: CompiledLinear
    spread: CompiledLinear
    embedding: Tensor
    feature_norm: Tensor
    key_norms: Tensor
    norm: Tensor
    ids: Tensor
    confidence: Tensor
    doubt: float
    epsilon: float
    taps: int


class CompiledDrafting:
    """Takes features in and chooses greedy blocks, as `DSparkDrafter` does with torch."""

    def __init__(self, weights: DraftingWeights) -> None:
        self._weights = weights
        self._embedding = weights.embedding.view(torch.int16).numpy()
        self._ids = weights.ids.numpy()
        # Each step asks for these, and telling numpy of a tensor takes longer than it looks.
        self._norm = weights.norm.numpy()
        self._feature_norm = weights.feature_norm.numpy()
        self._key_norms = weights.key_norms.numpy()
        self._doubts = weights.confidence.numpy()
        self._fuse, self._context = _linear(weights.fuse), _linear(weights.context)
        self._head, self._spread = _linear(weights.head), _linear(weights.spread)
        self._prepare()

    def _prepare(self) -> None:
        """Have everything compiled now, as `CompiledStack` does."""
        weights = self._weights
        layers, head_dim = weights.key_norms.shape
        cache = KvCache(
            layers=layers,
            slots=1,
            kv_heads=weights.context.out_features // (2 * layers * head_dim),
            context_tokens=1,
            head_dim=head_dim,
            dtype=torch.float32,
            device=torch.device("cpu"),
        )
        rotations = np.zeros((1, 2, head_dim // 2), np.float32)
        self.take_in(cache, 0, 0, torch.zeros(1, weights.taps * len(weights.norm)), rotations)
        self.propose(torch.zeros(1, len(weights.norm)), [0], [[]], [1.0])

    def take_in(
        self, cache: KvCache, slot: int, start: int, features: Tensor, rotations: Array
    ) -> None:
        """Put keys and values of `features [tokens, taps × hidden]` into the cache.

        Args:
            cache: the drafter's.
            slot: where.
            start: the first token's position.
            features: float32.
            rotations: `[tokens, 2, head_dim / 2]` float32, cosines and sines.
        """
        weights = self._weights
        _take_in(
            features.contiguous().numpy(),
            rotations,
            cache.keys.numpy(),
            cache.values.numpy(),
            slot,
            start,
            weights.epsilon,
            self._fuse,
            self._feature_norm,
            self._context,
            self._key_norms,
        )

    def propose(
        self,
        hidden: Tensor,
        anchors: Sequence[int],
        said: Sequence[Sequence[int]],
        penalties: Sequence[float],
        seconds: int = 0,
    ) -> tuple[list[list[int]], list[list[int]], Tensor]:
        """The likeliest token at each place, given the likeliest before it.

        Args:
            hidden: `[anchors × block, hidden]` float32, before the final norm.
            anchors: the token before each block.
            said: for each, what the repetition penalty counts, as places in the vocabulary.
            penalties: the repetition penalties; 1 for none.
            seconds: for how many of the first places the second likeliest is wanted too.

        Returns:
            For each its tokens and its second ones, and the confidences' logits `[anchors, block]`.
        """
        weights = self._weights
        block = len(hidden) // len(anchors)
        tokens = np.empty((len(anchors), 1 + block), np.int64)
        tokens[:, 0] = anchors
        seen = np.zeros((len(anchors), len(self._ids)), np.bool_)
        for row, places in enumerate(said):
            seen[row, list(places)] = True
        confidences = torch.empty(len(anchors), block)
        runners_up = np.empty((len(anchors), min(seconds, block)), np.int64)
        _propose(
            hidden.numpy(),
            tokens,
            runners_up,
            confidences.numpy(),
            seen,
            np.array(penalties, np.float32),
            self._ids,
            weights.epsilon,
            self._norm,
            self._head,
            self._embedding,
            self._spread,
            self._doubts,
            weights.doubt,
        )
        return tokens[:, 1:].tolist(), runners_up.tolist(), confidences


def _linear(layer: CompiledLinear) -> Linear:
    return layer.weights.numpy(), layer.scales.numpy(), layer.biases.numpy()
