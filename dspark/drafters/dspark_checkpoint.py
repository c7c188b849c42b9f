"""What a DSpark checkpoint holds beside its layers, checked against the target that it is for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dspark.checkpoint import Checkpoint, Weights
from dspark.decoder import DecoderConfig
from dspark.drafters.part_vocabulary import PartVocabulary
from dspark.errors import DrafterMismatch, UnsupportedArchitecture
from dspark.linear import Linear, linear
from dspark.target import Target, head_weight


def check_match(
    checkpoint: Checkpoint, shape: DecoderConfig, taps: Sequence[int], target: Target
) -> None:
    """Raise `DrafterMismatch` if it was trained for another target."""
    of_target = target.decoder.config
    expected = {
        "vocab_size": (shape.vocab_size, of_target.vocab_size),
        "hidden_size": (shape.hidden_size, of_target.hidden_size),
        "num_target_layers": (
            checkpoint.config.get("num_target_layers", of_target.layers),
            of_target.layers,
        ),
    }
    for name, (drafters, targets) in expected.items():
        if drafters != targets:
            raise DrafterMismatch(
                f"the drafter in {checkpoint.folder} was trained for a target with {name} "
                f"{drafters}, and the target has {targets}: load the two that belong together"
            )
    # The last layer is not a tap: its raw output is not what training recorded there.
    if not all(-1 <= tap < of_target.layers - 1 for tap in taps):
        raise DrafterMismatch(
            f"the drafter in {checkpoint.folder} reads target layers {list(taps)}, and the target "
            f"offers -1 … {of_target.layers - 2}: load the two that belong together"
        )
    copies = ["embed_tokens.weight"]  # of the target's, which are used instead
    if checkpoint.config.get("draft_vocab_size") is None:
        copies.append("lm_head.weight")
    for name in copies:
        if name in checkpoint:
            checkpoint.tensor(name, (of_target.vocab_size, of_target.hidden_size))


def embedding_of_previous(weights: Weights, vocab: int, rank: int) -> Tensor:
    """What the sequential stage knows of the token before: `[vocab, rank]`; nothing at rank 0."""
    if rank == 0:
        return torch.empty((vocab, 0), dtype=weights.precision.activations, device=weights.device)
    return weights.embedding("markov_head.markov_w1.weight", (vocab, rank))


def drafted_vocabulary(
    checkpoint: Checkpoint, vocab: int, weights: Weights
) -> PartVocabulary | None:
    """The target's ids of the drafter's tokens, if it drafts from fewer than there are."""
    size = checkpoint.config.get("draft_vocab_size")
    if size is None:
        return None
    ids = weights.dense("d2t", (integer(checkpoint.config, "draft_vocab_size"),), torch.int64)
    if not bool(((ids >= 0) & (ids < vocab)).all()):
        raise DrafterMismatch(
            f"the drafter in {checkpoint.folder} drafts tokens that the target does not have: "
            "load the two that belong together"
        )
    return PartVocabulary(ids, vocab)


def partial_head(weights: Weights, target: Target, vocabulary: Tensor) -> Linear:
    """The head of a part of the vocabulary: the drafter's, or else those rows of the target's."""
    shape = (len(vocabulary), target.decoder.config.hidden_size)
    if "lm_head.weight" in weights.checkpoint:
        return weights.linear(["lm_head"], shape[:1], shape[1])
    rows = head_weight(target).to(weights.device, weights.precision.activations)[vocabulary]
    return linear(rows, None, weights.precision.layers)


def integer(config: Mapping[str, object], key: str) -> int:
    """A number of the configuration."""
    value = config.get(key)
    if not isinstance(value, int):
        raise UnsupportedArchitecture(
            f"the drafter's config.json has {value!r} as {key!r}: it is no DSpark drafter, or its "
            "download is damaged"
        )
    return value


def tapped_layers(config: Mapping[str, object]) -> tuple[int, ...]:
    """The target layers that it reads."""
    taps = config.get("target_layer_ids")
    if not isinstance(taps, Sequence) or not taps or not all(isinstance(t, int) for t in taps):
        raise UnsupportedArchitecture(
            f"the drafter's config.json has {taps!r} as 'target_layer_ids': it is no DSpark "
            "drafter, or its download is damaged"
        )
    return tuple(taps)
