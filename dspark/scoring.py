"""How likely given tokens are to come next, read off a prompt's own computation."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(eq=False)
class Scoring:
    """What is asked of the last tokens of a prompt, and what was found.

    Attributes:
        groups: sets of token ids; a set's probability is that of any of them coming next.
        last: how many of the prompt's last tokens are asked about.
        found: for the position of a token, the natural logarithm of each group's probability.
    """

    groups: Sequence[Collection[int]]
    last: int = 1
    found: dict[int, tuple[float, ...]] = field(default_factory=dict)

    def rows(self, length: int, start: int, stop: int) -> int:
        """How many rows of logits are wanted where `start … stop-1` of `length` are computed."""
        return max(0, stop - max(start, length - self.last))

    def take(self, logits: Tensor, stop: int) -> None:
        """Take the logits `[rows, vocab]` of the tokens that end before position `stop`."""
        log_probabilities = logits.float().log_softmax(-1)
        for row, position in enumerate(range(stop - len(logits), stop)):
            self.found[position] = tuple(
                float(log_probabilities[row, list(group)].logsumexp(-1)) for group in self.groups
            )
