"""Speculation with a separate, smaller model of the same vocabulary (arXiv 2211.17192).

It has a cache of its own, in which it remembers what it has computed. So it follows the target's
sequences by itself: what of a draft was accepted is there already, what was refused is overwritten,
and a prompt that begins like one before is taken over with the slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

import torch

from dspark.drafters.autoregressive import DEFAULT_BLOCK_SIZE, AutoregressiveDrafter
from dspark.drafters.protocol import Anchor
from dspark.errors import DrafterMismatch, TokenizerError
from dspark.kv_cache import KvCache
from dspark.target import Span, Target, load_model
from dspark.tokenizer import Tokenizer


class TokenCache(KvCache):
    """Keys and values that know which tokens they are of.

    Attributes:
        tokens: of each slot, those computed, from position 0.
    """

    def __init__(
        self,
        *,
        layers: int,
        slots: int,
        kv_heads: int,
        context_tokens: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__(
            layers=layers,
            slots=slots,
            kv_heads=kv_heads,
            context_tokens=context_tokens,
            head_dim=head_dim,
            dtype=dtype,
            device=device,
        )
        self.tokens: list[list[int]] = [[] for _ in range(slots)]

    def copy(self, source: int, destination: int, stop: int) -> None:
        """Copy positions `0 … stop-1`, as far as they are computed."""
        super().copy(source, destination, stop)
        self.tokens[destination] = self.tokens[source][:stop]


class DraftModel(AutoregressiveDrafter):
    """Drafts with another language model; see `AutoregressiveDrafter`.

    Args:
        model: drafts; it knows the target's tokens by the same ids.
        target: the model that verifies.
        block_size: how many tokens are proposed.

    Raises:
        DrafterMismatch: the vocabularies do not fit.
    """

    def __init__(self, model: Target, target: Target, block_size: int = DEFAULT_BLOCK_SIZE) -> None:
        check_vocabularies(model, target)
        super().__init__(model, target.vocab_size, block_size)

    @classmethod
    def load(
        cls, source: str | Path, target: Target, block_size: int = DEFAULT_BLOCK_SIZE
    ) -> DraftModel:
        """Load it from a folder, a `.gguf` file or a hub id, in the target's precision."""
        decoder = target.decoder
        model = load_model(source, decoder.precision, decoder.device, target.threads)
        return cls(model, target, block_size)

    def new_cache(self, slots: int, context_tokens: int) -> TokenCache:
        """Of the model's own size, with room for a block behind the context."""
        config = self.model.decoder.config
        return TokenCache(
            layers=config.layers,
            slots=slots,
            kv_heads=config.kv_heads,
            context_tokens=context_tokens + self.block_size,
            head_dim=config.head_dim,
            dtype=self.model.decoder.dtype,
            device=self.model.decoder.device,
        )

    def first_span(self, cache: KvCache, anchor: Anchor, tokens_left: int) -> Span:
        """What the model has not computed yet, and in any case the anchor."""
        assert isinstance(cache, TokenCache)
        sampler, computed = anchor.sampler, cache.tokens[anchor.slot]
        tokens = self.known([*sampler.prompt, *sampler.answer])
        pairs = zip(computed, tokens[: anchor.position], strict=False)
        start = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        missing = tokens[start : anchor.position + 1]
        if len(missing) > tokens_left:
            return Span(anchor.slot, start, missing[:tokens_left], logits=0)
        return Span(anchor.slot, start, missing)

    def computed(self, cache: KvCache, slot: int, stop: int, tokens: Sequence[int]) -> None:
        """Remember it."""
        assert isinstance(cache, TokenCache)
        cache.tokens[slot][stop:] = tokens


def check_vocabularies(model: Target, target: Target) -> None:
    """Raise `DrafterMismatch` unless a token id means the same to both models.

    Tables of different lengths are alright if both models have a tokenizer and those agree: some
    families pad their embeddings.
    """
    sizes = (model.vocab_size, target.vocab_size)
    vocabularies = [_vocabulary(each) for each in (model, target)]
    if None in vocabularies:
        fits, why = sizes[0] == sizes[1], f"{sizes[0]} tokens, and the target {sizes[1]}"
    else:
        fits = vocabularies[0] == vocabularies[1]
        why = "another vocabulary than the target's"
    if not fits:
        raise DrafterMismatch(
            f"the draft model in {model.folder} has {why}: choose a smaller model of the target's "
            "own family, or draft with layer-skip or prompt-lookup"
        )


def _vocabulary(model: Target) -> dict[str, int] | None:
    """Token to id; None if the model comes without a tokenizer."""
    try:
        return Tokenizer.from_folder(model.folder).vocabulary
    except TokenizerError:
        return None
