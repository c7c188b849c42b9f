"""The sequential stage of a DSpark draft: each token's logits are corrected for the one before.

Source: arXiv 2607.05147. A block's hidden states come from one parallel pass, so position k
cannot know what was drawn at k-1; a low-rank bias of the vocabulary tells it. The kind `none` does
without, which shows what the stage brings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from dspark.checkpoint import Weights
from dspark.errors import UnsupportedArchitecture
from dspark.linear import FloatLinear


class SequentialHead(Protocol):
    """Corrects one position after the other, for several sequences at once."""

    @property
    def spread(self) -> Tensor:
        """`[vocab, rank]`, which makes a bias of a correction; where weights are floats."""
        ...

    def start(self, rows: int) -> Tensor:
        """The state before the first position: `[rows, rank]`, or `[rows, 0]` if there is none."""
        ...

    def __call__(self, hidden: Tensor, previous: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One position.

        Args:
            hidden: `[rows, hidden]`, the block's output there.
            previous: `[rows, rank]`, the embedding of the token before.
            state: from `start` or the position before.

        Returns:
            The bias `[rows, vocab]` and the next state.
        """
        ...

    def correction(self, hidden: Tensor, previous: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The same before the bias is spread over the vocabulary: `[rows, rank]`, and the state."""
        ...


class NoHead:
    """No sequential stage: a rank of 0, so each position is what the parallel pass made of it."""

    def __init__(self, weights: Weights, vocab: int, hidden: int, rank: int) -> None:
        self._vocab = vocab
        self._dtype, self._device = weights.precision.activations, weights.device

    @property
    def spread(self) -> Tensor:
        """See `SequentialHead`; nothing is spread."""
        return torch.empty((self._vocab, 0), dtype=self._dtype, device=self._device)

    def start(self, rows: int) -> Tensor:
        """No state."""
        return torch.empty((rows, 0), device=self._device)

    def __call__(self, hidden: Tensor, previous: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See `SequentialHead`; a bias of zero."""
        return hidden.new_zeros(()).expand(len(hidden), self._vocab), state

    def correction(self, hidden: Tensor, previous: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See `SequentialHead`."""
        return previous, state


class VanillaHead:
    """A Markov chain: the bias depends on the previous token alone.

    Attributes:
        out: makes a bias of a correction.
    """

    def __init__(self, weights: Weights, vocab: int, hidden: int, rank: int) -> None:
        self._rank = rank
        self.out = weights.linear(["markov_head.markov_w2"], [vocab], rank)
        self._device = weights.device

    @property
    def spread(self) -> Tensor:
        """See `SequentialHead`."""
        assert isinstance(self.out, FloatLinear)
        return self.out.weight

    def start(self, rows: int) -> Tensor:
        """No state."""
        return torch.empty((rows, 0), device=self._device)

    def __call__(self, hidden: Tensor, previous: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See `SequentialHead`."""
        correction, state = self.correction(hidden, previous, state)
        return self.out(correction), state

    def correction(self, hidden: Tensor, previous: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See `SequentialHead`."""
        return previous, state


class GatedHead(VanillaHead):
    """The block's own hidden state decides which parts of the chain's bias apply."""

    def __init__(self, weights: Weights, vocab: int, hidden: int, rank: int) -> None:
        super().__init__(weights, vocab, hidden, rank)
        bias = "markov_head.gate_proj.bias" in weights.checkpoint
        self._gate = weights.linear(["markov_head.gate_proj"], [rank], hidden + rank, bias=bias)

    def correction(self, hidden: Tensor, previous: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See `SequentialHead`."""
        gate = self._gate(torch.cat((hidden, previous), -1)).sigmoid()
        return gate * previous, state


class RecurrentHead(VanillaHead):
    """A gated recurrent state remembers all tokens drawn in the block so far."""

    def __init__(self, weights: Weights, vocab: int, hidden: int, rank: int) -> None:
        super().__init__(weights, vocab, hidden, rank)
        bias = "markov_head.joint_proj.bias" in weights.checkpoint
        self._joint = weights.linear(
            ["markov_head.joint_proj"], [3 * rank], hidden + 2 * rank, bias=bias
        )
        self._dtype = weights.precision.activations

    def start(self, rows: int) -> Tensor:
        """Zeros."""
        return torch.zeros((rows, self._rank), dtype=self._dtype, device=self._device)

    def correction(self, hidden: Tensor, previous: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """See `SequentialHead`."""
        gate, candidate, output = self._joint(torch.cat((state, previous, hidden), -1)).chunk(3, -1)
        state = torch.lerp(candidate.tanh(), state, gate.sigmoid())
        return output.tanh(), state


class ConfidenceHead:
    """Estimates whether a drafted token will be accepted, before it is drawn.

    Attributes:
        weight: `[1, hidden]`, or `[1, hidden + rank]` if it sees the token before.
        bias: `[1]`.
    """

    def __init__(self, weights: Weights, hidden: int, rank: int, with_markov: bool) -> None:
        width = hidden + rank if with_markov else hidden
        name = "confidence_head.proj"
        self.weight = weights.dense(f"{name}.weight", (1, width))
        self.bias = weights.dense(f"{name}.bias", (1,))
        self._with_markov = with_markov

    def __call__(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """`[…, hidden]` and the token before it, `[…, rank]` → logits `[…]`."""
        inputs = torch.cat((hidden, previous), -1) if self._with_markov else hidden
        return functional.linear(inputs, self.weight, self.bias).squeeze(-1).float()


NONE = "none"
_HEADS: Mapping[str, Callable[[Weights, int, int, int], SequentialHead]] = MappingProxyType(
    {NONE: NoHead, "vanilla": VanillaHead, "gated": GatedHead, "rnn": RecurrentHead}
)


def sequential_head(
    kind: object, weights: Weights, vocab: int, hidden: int, rank: int
) -> SequentialHead:
    """The head that a drafter's configuration names in `markov_head_type`."""
    if kind not in _HEADS:
        raise UnsupportedArchitecture(
            f"the drafter's markov_head_type is {kind!r}; known are {', '.join(_HEADS)}"
        )
    return _HEADS[str(kind)](weights, vocab, hidden, rank)
