"""Which tokens a drafter drafts from: those that its target really says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from dspark.training.corpus import Dialogue, Split


def count_tokens(dialogues: Iterable[Dialogue]) -> tuple[Counter[int], frozenset[int]]:
    """How often each token is said in answers that train, and all tokens that occur anywhere."""
    said: Counter[int] = Counter()
    seen: set[int] = set()
    for dialogue in dialogues:
        seen.update(dialogue.tokens)
        if dialogue.split is Split.TRAIN:
            said.update(dialogue.answer)
    return said, frozenset(seen)


def draft_vocabulary(said: Counter[int], size: int, vocab_size: int) -> tuple[int, ...] | None:
    """The ids of the `size` most frequent tokens, ascending; None where that is all there are.

    Where fewer are ever said, the lowest ids follow: tokenizers number their commonest pieces
    first.
    """
    if size == 0 or size >= vocab_size:
        return None
    ranked = sorted(range(vocab_size), key=lambda token: (-said[token], token))
    return tuple(sorted(ranked[:size]))


def mask_token(seen: frozenset[int], vocab_size: int) -> int:
    """A token to stand for unknown ones: the last that never occurs, so that it means nothing."""
    unseen = (token for token in range(vocab_size - 1, -1, -1) if token not in seen)
    return next(unseen, vocab_size - 1)
