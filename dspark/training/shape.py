"""What a new drafter looks like beside its target, in the words of the released checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dspark.checkpoint import read_json
from dspark.decoder import DecoderConfig
from dspark.drafters.heads import NONE
from dspark.errors import InvalidRequest
from dspark.target import Target

HEADS = (NONE, "vanilla", "gated", "rnn")
_ROPE_KEYS = ("rope_theta", "rope_scaling", "rope_parameters")
_FEW_LAYERS = 8


@dataclass(frozen=True)
class DrafterShape:
    """The choices that a drafter's size and speed depend on.

    Attributes:
        layers: how many decoder layers it has.
        block: how many tokens it proposes.
        taps: which target layers it reads; spread over the target if empty.
        rank: of the sequential head, where there is one.
        head: `none`, `vanilla`, `gated` or `rnn` (see `dspark.drafters.heads`).
        draft_vocabulary: from how many tokens it drafts; 0 is the whole vocabulary.
        intermediate: width of its feed-forward networks; the target's if None.
    """

    layers: int = 2
    block: int = 5
    taps: tuple[int, ...] = ()
    rank: int = 64
    head: str = "vanilla"
    draft_vocabulary: int = 8192
    intermediate: int | None = None

    def __post_init__(self) -> None:
        for name in ("layers", "block", "rank"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.head not in HEADS:
            raise InvalidRequest(f"the head is {self.head!r}; known are {', '.join(HEADS)}")
        if self.draft_vocabulary < 0:
            raise InvalidRequest("draft_vocabulary must be 0 (every token) or more")

    def taps_of(self, target: Target) -> tuple[int, ...]:
        """The layers it reads."""
        return self.taps or spread_taps(target.decoder.config.layers)


def spread_taps(layers: int, count: int = 3) -> tuple[int, ...]:
    """Taps at equal distances, from an early layer to a late one; the very last is none."""
    first, last = (1, layers - 3) if layers >= _FEW_LAYERS else (-1, layers - 2)
    steps = max(1, count - 1)
    return tuple(sorted({round(first + (last - first) * step / steps) for step in range(count)}))


def drafter_config(
    target: Target,
    shape: DrafterShape,
    *,
    mask_token: int,
    anchors: int,
    drafted: int | None,
) -> Mapping[str, object]:
    """The `config.json` of a drafter.

    Args:
        target: what it drafts for.
        shape: what was chosen.
        mask_token: stands for the tokens of the block that are not known yet.
        anchors: how many blocks of a dialogue it is trained on at a time.
        drafted: size of a reduced vocabulary, None for the target's.
    """
    config: DecoderConfig = target.decoder.config
    of_target = read_json(target.folder / "config.json")
    taps: Sequence[int] = shape.taps_of(target)
    sequential = shape.head != NONE
    return {
        "architectures": ["Qwen3DSparkModel"],
        "model_type": "qwen3",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": shape.intermediate or config.intermediate_size,
        "num_hidden_layers": shape.layers,
        "num_target_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.norm_epsilon,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "layer_types": ["full_attention"] * shape.layers,
        "block_size": shape.block,
        "mask_token_id": mask_token,
        "target_layer_ids": list(taps),
        "target_stop_token_ids": sorted(
            target.stop_token_ids
        ),  # of no use but to tell models apart
        "num_anchors": anchors,
        "markov_rank": shape.rank if sequential else 0,
        "markov_head_type": shape.head,
        "enable_confidence_head": True,
        "confidence_head_with_markov": sequential,
        **({} if drafted is None else {"draft_vocab_size": drafted}),
        **{key: of_target[key] for key in _ROPE_KEYS if of_target.get(key) is not None},
    }
