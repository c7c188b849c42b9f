"""The second stage: what the target computed at every token of the corpus, kept on disk.

Training looks at each dialogue many times; the target has to only once. Kept are the tapped hidden
states of every token, in bfloat16, whose range they need, and for the tokens of answers the last
hidden state behind the final norm, in float16, with the logarithm of its softmax's denominator.
From these two any part of the target's distribution is exact without the rest of the vocabulary:
`p(v) = exp(head[v] · hidden - log_normaliser)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from dspark.errors import InvalidRequest
from dspark.linear import PRECISIONS
from dspark.target import Span, Target
from dspark.training.corpus import Corpus
from dspark.training.dialogues import Progress
from dspark.training.fingerprint import fingerprint
from dspark.training.frame import load_frame
from dspark.training.storage import Rows, settle

_TOGETHER = 8  # dialogues in one forward
_HEAD_ROWS = 128  # whole-vocabulary logits at a time


@dataclass(frozen=True)
class DialogueFeatures:
    """What the target computed for one dialogue.

    Attributes:
        taps: `[tokens, taps × hidden]` bfloat16.
        finals: `[answer tokens, hidden]` float16, behind the final norm.
        log_normalisers: `[answer tokens]` float32, of the logits that `finals` gives.
    """

    taps: Tensor
    finals: Tensor
    log_normalisers: Tensor


class FeatureStore:
    """The features of a corpus, dialogue by dialogue in its order.

    Where a dialogue's rows lie follows from the lengths of those before it, and how many are done
    from how many rows there are.
    """

    def __init__(self, folder: Path, corpus: Corpus, taps: int, hidden: int) -> None:
        self._corpus = corpus
        # NumPy has no bfloat16: its bits are kept as integers.
        self._taps = Rows(folder / "taps.bf16", taps * hidden, np.int16)
        self._finals = Rows(folder / "finals.f16", hidden, np.float16)
        self._normalisers = Rows(folder / "normalisers.f32", 1, np.float32)
        self._token_ends = corpus.tokens.cumsum()
        self._answer_ends = (corpus.tokens - corpus.prompt_tokens).cumsum()
        self.refresh()

    def refresh(self) -> None:
        """Map what has been written since."""
        self._mapped = [rows.mapped() for rows in (self._taps, self._finals, self._normalisers)]

    def __len__(self) -> int:
        """Of how many dialogues everything is there."""
        taps, finals, normalisers = map(len, self._mapped)
        by_tokens = np.searchsorted(self._token_ends, taps, side="right")
        by_answers = np.searchsorted(self._answer_ends, min(finals, normalisers), side="right")
        return int(min(by_tokens, by_answers))

    def __getitem__(self, number: int) -> DialogueFeatures:
        if not 0 <= number < len(self):
            raise IndexError(number)
        tokens = slice(_start(self._token_ends, number), int(self._token_ends[number]))
        answer = slice(_start(self._answer_ends, number), int(self._answer_ends[number]))
        taps, finals, normalisers = self._mapped
        return DialogueFeatures(
            torch.from_numpy(taps[tokens].astype(np.int16)).view(torch.bfloat16),
            torch.from_numpy(finals[answer].astype(np.float16)),
            torch.from_numpy(normalisers[answer, 0].astype(np.float32)),
        )

    def cut(self) -> None:
        """Drop the rows of a dialogue that was not finished."""
        done = len(self)
        self._taps.truncate(_start(self._token_ends, done))
        self._finals.truncate(_start(self._answer_ends, done))
        self._normalisers.truncate(_start(self._answer_ends, done))
        self.refresh()

    def append(self, features: DialogueFeatures) -> None:
        """Add the next dialogue's; `refresh` shows them."""
        self._taps.append(features.taps.view(torch.int16).numpy())
        self._finals.append(features.finals.numpy())
        self._normalisers.append(features.log_normalisers[:, None].numpy())


def extend_features(
    folder: Path,
    corpus: Corpus,
    target: Target,
    taps: Sequence[int],
    *,
    on_progress: Progress = lambda done, total: None,
) -> FeatureStore:
    """Compute the features of all dialogues that have none yet.

    Raises:
        RunMismatch: they were begun with another target or other taps.
        InvalidRequest: the target has no such layers.
    """
    layers = target.decoder.config.layers
    if not taps or not all(-1 <= tap < layers - 1 for tap in taps):
        raise InvalidRequest(f"the taps are {list(taps)}; the target offers -1 … {layers - 2}")
    made_with = {
        "target": fingerprint(target.folder),
        "dtype": _dtype(target),
        "taps": list(taps),
    }
    settle(folder / "features.json", made_with, "features")
    store = FeatureStore(folder, corpus, len(taps), target.decoder.config.hidden_size)
    store.cut()
    done, total = len(store), len(corpus)
    on_progress(done, total)
    if done == total:
        return store
    hidden = target.decoder.config.hidden_size
    frame = load_frame(target.folder, target.decoder.device)
    cache = target.new_cache(_TOGETHER, int(corpus.tokens.max()))
    while done < total:
        numbers = range(done, min(done + _TOGETHER, total))
        dialogues = [corpus[number] for number in numbers]
        spans = [Span(slot, 0, each.tokens, logits=0) for slot, each in enumerate(dialogues)]
        with torch.inference_mode():
            # The last layer's output is not for drafters, but here it is what is wanted.
            found = target.forward(spans, cache, (*taps, layers - 1)).features
            assert found is not None  # there are taps
            for dialogue, rows in zip(dialogues, found, strict=True):
                assert rows is not None  # and no drafter that takes them in by itself
                tapped, last = torch.split(rows, [len(taps) * hidden, hidden], -1)
                store.append(_compact(frame, tapped, last[len(dialogue.prompt) :]))
        done = numbers.stop
        on_progress(done, total)
    store.refresh()
    return store


def _compact(frame: Target, tapped: Tensor, last: Tensor) -> DialogueFeatures:
    decoder = frame.decoder
    weight = decoder.final_norm
    normed = functional.rms_norm(last.float(), weight.shape, weight, decoder.config.norm_epsilon)
    finals = normed.half()
    # Of the rounded states, so that the probabilities computed from them sum to exactly one.
    parts = torch.split(finals.float(), _HEAD_ROWS)
    normalisers = [decoder.head(rows).logsumexp(-1) for rows in parts]
    return DialogueFeatures(tapped.bfloat16().cpu(), finals.cpu(), torch.cat(normalisers).cpu())


def _dtype(target: Target) -> str:
    """What `load_target` was asked for."""
    return next(name for name, each in PRECISIONS.items() if each == target.decoder.precision)


def _start(ends: np.ndarray[tuple[int], np.dtype[np.int64]], number: int) -> int:
    return int(ends[number - 1]) if number else 0
