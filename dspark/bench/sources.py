"""Where the bench's models come from: checkpoints, or shapes with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Protocol

from dspark.bench.bandwidth import bytes_of_shape, bytes_per_token
from dspark.bench.prompts import BenchPrompt, tokenised
from dspark.checkpoint import Checkpoint, read_json
from dspark.decoder import DecoderConfig
from dspark.drafters import Drafter, load_drafter
from dspark.random_weights import SHAPES, Config, random_drafter, random_target
from dspark.target import Target, load_target

RANDOM_DRAFTER = "random"
"""What a DSpark drafter of the published shape is called beside a target of random weights."""

_TAPS = 5  # of the published drafters

_KNOWN_TOKENS, _OWN_TOKENS = 48, 16  # of a random prompt: what all begin with, and what follows


class Source(Protocol):
    """Gives the models of a comparison."""

    @property
    def path(self) -> str | Path | None:
        """What others load; None if there is nothing that they could."""
        ...

    def target(self, device: str, dtype: str, threads: int) -> Target:
        """The target in some precision."""
        ...

    def drafter(self, name: str, target: Target) -> Drafter:
        """A drafter for it, by what it is called on the command line."""
        ...

    def prompts(self, target: Target, questions: Sequence[str]) -> tuple[BenchPrompt, ...]:
        """A prompt for each question."""
        ...

    def weight_bytes(self, target_folder: Path, dtype: str) -> int:
        """What a plain step reads from memory."""
        ...


@dataclass(frozen=True)
class Stored:
    """A checkpoint, as `load_target` takes it."""

    path: str | Path

    def target(self, device: str, dtype: str, threads: int) -> Target:
        """See `Source`."""
        return load_target(self.path, device, dtype, threads)

    def drafter(self, name: str, target: Target) -> Drafter:
        """See `Source`."""
        return load_drafter(name, target)

    def prompts(self, target: Target, questions: Sequence[str]) -> tuple[BenchPrompt, ...]:
        """See `Source`."""
        return tokenised(questions, target.tokenizer)

    def weight_bytes(self, target_folder: Path, dtype: str) -> int:
        """See `Source`."""
        return bytes_per_token(Checkpoint(target_folder), dtype)


@dataclass(frozen=True)
class RandomWeights:
    """A model of this shape that has learnt nothing: as fast as a trained one.

    Its answers are noise, and what drafters propose hardly ever stands, so of drafters too it
    shows costs only. Prompts are random, as many as there are questions.

    Attributes:
        shape: one of `SHAPES`, or a folder that holds a `config.json`.
    """

    shape: str
    path: None = None

    def target(self, device: str, dtype: str, threads: int) -> Target:
        """See `Source`."""
        return random_target(self._config, device, dtype, threads)

    def drafter(self, name: str, target: Target) -> Drafter:
        """See `Source`; `random` is a DSpark drafter of the published shape."""
        if name != RANDOM_DRAFTER:
            return load_drafter(name, target)
        return random_drafter(target, taps=min(_TAPS, target.decoder.config.layers - 1))

    def prompts(self, target: Target, questions: Sequence[str]) -> tuple[BenchPrompt, ...]:
        """See `Source`."""
        rng = Random(0)

        def tokens(count: int) -> tuple[int, ...]:
            return tuple(rng.randrange(target.vocab_size) for _ in range(count))

        known = tokens(_KNOWN_TOKENS)
        return tuple(
            BenchPrompt((*known, *tokens(_OWN_TOKENS)), tokens(_KNOWN_TOKENS + _OWN_TOKENS))
            for _ in questions
        )

    def weight_bytes(self, target_folder: Path, dtype: str) -> int:
        """See `Source`."""
        config = DecoderConfig.from_config(read_json(target_folder / "config.json"))
        return bytes_of_shape(config, dtype)

    @property
    def _config(self) -> Config | str:
        if self.shape in SHAPES or not Path(self.shape).is_dir():
            return self.shape
        return read_json(Path(self.shape) / "config.json")
