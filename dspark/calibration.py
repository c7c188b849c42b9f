"""Confidences that mean what they say: a line through their logits, fitted from left to right.

What the scheduler weighs is survival, the product of confidences, so that is what is calibrated:
the temperature of a position is the one that makes what became of the product up to there
likeliest, with the earlier positions fixed (sequential temperature scaling: DSpark, arXiv
2607.05147). A drafter that met few dialogues expects too much of new ones everywhere, which no
temperature mends, so each comes with an offset that makes survival right on average. Both together
are a monotone map of one confidence, which looks at nothing else, so calibrated schedules are as
lossless as others.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dspark.errors import CheckpointError, InvalidRequest

FILE_NAME = "calibration.json"
BINS = 15
_GRID = np.geomspace(0.1, 10.0, 201)  # 2.3 % apart, with 1 in the middle
_FARTHEST, _HALVINGS = 8.0, 30  # of offsets
_EPSILON = 1e-6  # keeps certainty finite as a logit

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Calibration:
    """Temperatures of the confidences' logits; above 1 they become more doubtful.

    Attributes:
        temperatures: one a position of the block. Later positions use the last one; with none
            confidences stay as they are.
        offsets: as many, added to the logits behind the temperatures; or none.
    """

    temperatures: tuple[float, ...] = ()
    offsets: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.offsets and len(self.offsets) != len(self.temperatures):
            raise InvalidRequest("there must be as many offsets as temperatures, or none")
        if not all(map(math.isfinite, self.offsets)):
            raise InvalidRequest(f"the offsets are {self.offsets}; they must be finite")
        if not all(0 < each < math.inf for each in self.temperatures):
            raise InvalidRequest(
                f"the temperatures are {self.temperatures}; they must be above zero and finite"
            )

    def apply(self, confidence: Sequence[float]) -> tuple[float, ...]:
        """The calibrated confidences of one draft."""
        if not self.temperatures:
            return tuple(confidence)
        return tuple(self.at(position, each) for position, each in enumerate(confidence))

    def at(self, position: int, confidence: float) -> float:
        """The calibrated confidence of a token at a position of the block."""
        if not self.temperatures:
            return confidence
        place = min(position, len(self.temperatures) - 1)
        offset = self.offsets[place] if self.offsets else 0.0
        return _scaled(confidence, self.temperatures[place], offset)

    @classmethod
    def parse(cls, content: Mapping[str, object]) -> Calibration:
        """From an object of JSON.

        Raises:
            InvalidRequest: it is no calibration.
        """
        if "temperatures" not in content:
            raise InvalidRequest("it has no temperatures")
        return cls(_numbers(content, "temperatures"), _numbers(content, "offsets"))

    def as_json(self) -> dict[str, list[float]]:
        """What `parse` reads."""
        return {"temperatures": list(self.temperatures), "offsets": list(self.offsets)}


@dataclass(frozen=True)
class Calibrations:
    """Those of a drafter: a token that is the likeliest stands more often than one that was drawn.

    Attributes:
        sampled: for requests whose tokens are drawn.
        greedy: for requests that take the likeliest token; that of the others if None.
    """

    sampled: Calibration = Calibration()
    greedy: Calibration | None = None

    def of(self, *, greedy: bool) -> Calibration:
        """The one for a request."""
        return self.greedy if greedy and self.greedy is not None else self.sampled

    @classmethod
    def of_checkpoint(cls, folder: Path) -> Calibrations:
        """Read `calibration.json` beside a drafter's weights; without the file, none.

        Raises:
            CheckpointError: the file is there, and is no calibration.
        """
        path = folder / FILE_NAME
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{path} cannot be read as JSON ({error}): calibrate again, or delete it to use "
                "the drafter uncalibrated"
            ) from error
        try:
            if not isinstance(content, Mapping):
                raise InvalidRequest("it is no object")
            greedy = content.get("greedy")
            if greedy is not None and not isinstance(greedy, Mapping):
                raise InvalidRequest("greedy is no object")
            return cls(
                Calibration.parse(content), None if greedy is None else Calibration.parse(greedy)
            )
        except InvalidRequest as error:
            raise CheckpointError(
                f"{path} is no calibration ({error}): calibrate again, or delete it to use the "
                "drafter uncalibrated"
            ) from error

    def write(self, folder: Path) -> None:
        """Store as `calibration.json` in a checkpoint's folder, whole or not at all."""
        content: dict[str, object] = {**self.sampled.as_json()}
        if self.greedy is not None:
            content["greedy"] = self.greedy.as_json()
        with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder) as unfinished:
            path = Path(unfinished) / FILE_NAME
            path.write_text(json.dumps(content, indent=2), encoding="utf-8")
            path.replace(folder / FILE_NAME)


def fit(confidence: Array, accepted: NDArray[np.integer]) -> Calibration:
    """The temperatures and offsets that make survival come true as often as it says.

    Args:
        confidence: `[drafts, block]`, uncalibrated.
        accepted: `[drafts]`, how many tokens from the first on were accepted when the whole block
            was verified. Shorter verification would hide what became of the rest.

    Raises:
        InvalidRequest: there are no drafts, or the two do not belong together.
    """
    _check(confidence, accepted)
    survives = np.ones(len(confidence))
    temperatures, offsets = [], []
    for position in range(confidence.shape[1]):
        logits = _logits(confidence[:, position])
        survived = accepted > position
        found = [_offset(logits / temperature, survives, survived) for temperature in _GRID]
        candidates = [
            survives * _sigmoid(logits / temperature + offset)
            for temperature, offset in zip(_GRID, found, strict=True)
        ]
        surprises = [_surprise(each, survived) for each in candidates]
        # Among equally good ones the mildest change.
        best = min(range(len(_GRID)), key=lambda i: (surprises[i], abs(math.log(_GRID[i]))))
        temperatures.append(float(_GRID[best]))
        offsets.append(found[best])
        survives = candidates[best]
    return Calibration(tuple(temperatures), tuple(offsets))


def _offset(logits: Array, survives: Array, survived: NDArray[np.bool_]) -> float:
    """What to add to the logits so that as many survive as are expected to, by bisection."""
    low, high = -_FARTHEST, _FARTHEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if float((survives * _sigmoid(logits + middle)).mean()) < survived.mean():
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _surprise(probability: Array, happened: NDArray[np.bool_]) -> float:
    """Mean log loss. With an offset that is right on average the calibration error says little."""
    clipped = np.clip(probability, _EPSILON, 1 - _EPSILON)
    return -float(np.where(happened, np.log(clipped), np.log1p(-clipped)).mean())


def expected_calibration_error(
    probability: Array, happened: NDArray[np.bool_], bins: int = BINS
) -> float:
    """How far probabilities are from the frequencies they promise, 0 … 1.

    Bins of equal width; the distance in each counts by how many fall into it.
    """
    place = np.minimum((probability * bins).astype(np.int64), bins - 1)
    promised = np.bincount(place, weights=probability, minlength=bins)
    found = np.bincount(place, weights=happened, minlength=bins)
    return float(np.abs(promised - found).sum() / len(probability))


def survival_errors(confidence: Array, accepted: NDArray[np.integer]) -> tuple[float, ...]:
    """The expected calibration error of survival up to each position of the block."""
    _check(confidence, accepted)
    survives = confidence.cumprod(axis=1)
    return tuple(
        expected_calibration_error(survives[:, position], accepted > position)
        for position in range(confidence.shape[1])
    )


def _check(confidence: Array, accepted: NDArray[np.integer]) -> None:
    if confidence.ndim != 2 or not len(confidence) or accepted.shape != confidence.shape[:1]:
        raise InvalidRequest(
            f"confidences of shape {list(confidence.shape)} and accepted lengths of shape "
            f"{list(accepted.shape)} do not belong together: give [drafts, block] and [drafts], "
            "of at least one draft"
        )


def _scaled(confidence: float, temperature: float, offset: float) -> float:
    clipped = min(max(confidence, _EPSILON), 1 - _EPSILON)
    logit = math.log(clipped) - math.log1p(-clipped)
    return 0.5 + 0.5 * math.tanh(
        (logit / temperature + offset) / 2
    )  # the sigmoid, without overflow


def _logits(confidence: Array) -> Array:
    clipped = np.clip(confidence, _EPSILON, 1 - _EPSILON)
    return np.log(clipped) - np.log1p(-clipped)


def _sigmoid(logits: Array) -> Array:
    return 1 / (1 + np.exp(-logits))


def _numbers(content: Mapping[str, object], name: str) -> tuple[float, ...]:
    numbers = content.get(name, [])
    if not isinstance(numbers, list) or not all(map(_is_number, numbers)):
        raise InvalidRequest(f"its {name} are no list of numbers")
    return tuple(float(each) for each in numbers)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
