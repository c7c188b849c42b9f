"""A drafter's own vocabulary, a part of its target's: tokens by their places in it.

Choosing among a few thousand tokens takes a fraction of what choosing among all of them does, and
every token that the drafter cannot say has probability 0 either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dspark.sampling import Choice, Sampler

_NOWHERE = -1


class PartVocabulary:
    """Some of the target's tokens.

    Args:
        ids: `[drafted]` int64, the target's ids of the tokens, in the order of the logits.
        vocab_size: how many tokens the target has.
    """

    def __init__(self, ids: Tensor, vocab_size: int) -> None:
        self.ids = ids
        self._vocab_size = vocab_size
        self._tokens: list[int] = ids.tolist()
        self._places = [_NOWHERE] * vocab_size
        for place, token in enumerate(self._tokens):
            self._places[token] = place

    def __len__(self) -> int:
        return len(self._tokens)

    def sampler(self, whole: Sampler) -> Sampler:
        """One that chooses among the places as `whole` does among the tokens.

        It has the same random numbers, and the same history but for what has no place.
        """
        params = whole.params
        if params.logit_bias:
            bias = {
                self._places[token]: value
                for token, value in params.logit_bias.items()
                if self._places[token] != _NOWHERE
            }
            params = replace(params, logit_bias=bias)
        if not params.depends_on_history:
            return Sampler(params, (), (), whole.rng)
        return Sampler(params, self.places(whole.prompt), self.places(whole.answer), whole.rng)

    def choice(self, place: Choice) -> Choice:
        """What was chosen among the places, in tokens."""
        if place.distribution is None:
            return Choice(self._tokens[place.token], None)
        whole = torch.zeros(self._vocab_size, device=self.ids.device)
        whole[self.ids] = place.distribution
        return Choice(self._tokens[place.token], whole)

    def spread(self, logits: Tensor) -> Tensor:
        """`[rows, drafted]` → `[rows, vocab]`, -infinity for all other tokens."""
        whole = logits.new_full((len(logits), self._vocab_size), -torch.inf)
        whole[:, self.ids] = logits
        return whole

    def places(self, tokens: Sequence[int]) -> list[int]:
        """Those of tokens; what has none is left out."""
        places = self._places
        return [places[token] for token in tokens if places[token] != _NOWHERE]
