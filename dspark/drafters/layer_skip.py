"""Self-speculation: the target's first layers draft, and its own cache is all they need.

The hidden states of an early layer go straight to the final norm and the head (LayerSkip, arXiv
2404.16710; Draft & Verify, arXiv 2309.08168). That adds no weights, and no keys and values: those
before the anchor are the target's own, and what drafting puts behind them the step that verifies
overwrites. How good the drafts are depends on whether the model was trained to have such exits.
"""

from __future__ import annotations

from collections.abc import Sequence

from dspark.drafters.autoregressive import DEFAULT_BLOCK_SIZE, AutoregressiveDrafter
from dspark.drafters.protocol import Anchor, ReadsTargetCache
from dspark.errors import InvalidRequest
from dspark.kv_cache import KvCache
from dspark.target import Span, Target


class LayerSkipDrafter(AutoregressiveDrafter, ReadsTargetCache):
    """Drafts with the target's first layers; see `AutoregressiveDrafter`.

    Args:
        target: the model itself.
        layers: how many of its layers draft.
        block_size: how many tokens are proposed.

    Raises:
        InvalidRequest: the target has no more layers than that.
    """

    def __init__(self, target: Target, layers: int, block_size: int = DEFAULT_BLOCK_SIZE) -> None:
        decoder = target.decoder
        if not 1 <= layers < decoder.config.layers:
            raise InvalidRequest(
                f"layer-skip is to draft with {layers} layers; it must be at least 1 and below "
                f"the target's {decoder.config.layers}"
            )
        early = Target(target.folder, decoder.first_layers(layers), target.threads)
        super().__init__(early, target.vocab_size, block_size)

    def new_cache(self, slots: int, context_tokens: int) -> KvCache:
        """A stand-in for the target's cache, where nobody has one (to measure, say)."""
        return self.model.new_cache(slots, context_tokens + self.block_size)

    def first_span(self, cache: KvCache, anchor: Anchor, tokens_left: int) -> Span:
        """The anchor: the target has computed everything before it."""
        return Span(anchor.slot, anchor.position, [anchor.token])

    def computed(self, cache: KvCache, slot: int, stop: int, tokens: Sequence[int]) -> None:
        """The target computes it all again."""
