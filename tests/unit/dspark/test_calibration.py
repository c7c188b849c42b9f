"""Calibration: after it, survival comes true as often as it says."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark.calibration import (
    Calibration,
    Calibrations,
    expected_calibration_error,
    fit,
    survival_errors,
)
from dspark.errors import CheckpointError, InvalidRequest

DRAFTS = 20_000
BLOCK = 5
DISTORTION = (0.4, 0.5, 2.0, 0.5, 0.4)
"""By what the true logits are divided: mostly overconfident, once too doubtful."""

confidences = st.lists(st.floats(0, 1), max_size=8)
temperatures = st.lists(st.floats(0.1, 10), max_size=8).map(tuple)


def miscalibrated(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Confidences that are wrong by known temperatures, and what became of the drafts."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0.8, 1.2, (DRAFTS, BLOCK))
    survives = (rng.random((DRAFTS, BLOCK)) < 1 / (1 + np.exp(-logits))).cumprod(axis=1)
    return 1 / (1 + np.exp(-logits / np.array(DISTORTION))), survives.sum(axis=1)


def calibrated(calibration: Calibration, confidence: np.ndarray) -> np.ndarray:
    return np.array([calibration.apply(row) for row in confidence.tolist()])


def test_miscalibrated_survival_is_set_right_on_drafts_not_seen_in_fitting() -> None:
    calibration = fit(*miscalibrated(seed=1))
    confidence, accepted = miscalibrated(seed=2)
    assert max(survival_errors(confidence, accepted)) > 0.05
    assert max(survival_errors(calibrated(calibration, confidence), accepted)) < 0.015


def test_offsets_set_right_what_expects_too_much_everywhere() -> None:
    rng = np.random.default_rng(5)
    logits = rng.normal(-0.3, 0.8, (2 * DRAFTS, 2))
    survives = (rng.random(logits.shape) < 1 / (1 + np.exp(-logits))).cumprod(axis=1)
    confidence, accepted = 1 / (1 + np.exp(-logits - 0.9)), survives.sum(axis=1)
    calibration = fit(confidence[:DRAFTS], accepted[:DRAFTS])
    assert calibration.offsets == pytest.approx((-0.9, -0.9), abs=0.15)
    rest = confidence[DRAFTS:], accepted[DRAFTS:]
    assert max(survival_errors(*rest)) > 0.15
    assert max(survival_errors(calibrated(calibration, rest[0]), rest[1])) < 0.02


def test_the_temperatures_undo_what_distorted_the_confidences() -> None:
    found = np.array(fit(*miscalibrated(seed=1)).temperatures)
    # Later positions are reached seldom, so that their temperature matters and shows less.
    assert found[:3] == pytest.approx(1 / np.array(DISTORTION[:3]), rel=0.15)


def test_survival_that_is_right_already_is_left_alone() -> None:
    rng = np.random.default_rng(3)
    confidence = rng.uniform(0.2, 1, (DRAFTS, 3))
    accepted = (rng.random(confidence.shape) < confidence).cumprod(axis=1).sum(axis=1)
    assert fit(confidence, accepted).temperatures == pytest.approx((1, 1, 1), rel=0.15)


def test_each_position_is_fitted_behind_those_already_calibrated() -> None:
    confidence, accepted = miscalibrated(seed=1)
    whole = fit(confidence, accepted).temperatures
    assert fit(confidence[:, :2], accepted.clip(max=2)).temperatures == whole[:2]


def test_the_error_is_the_distance_from_the_promised_frequency() -> None:
    promised = np.full(10, 0.9)
    happened = np.arange(10) < 6
    assert expected_calibration_error(promised, happened) == pytest.approx(0.3)


def test_errors_of_different_bins_do_not_cancel() -> None:
    promised = np.array([0.1] * 10 + [0.9] * 10)
    happened = np.array(([True] * 3 + [False] * 7) + ([True] * 7 + [False] * 3))
    assert expected_calibration_error(promised, happened) == pytest.approx(0.2)


def test_certainty_that_is_right_has_no_error() -> None:
    assert expected_calibration_error(np.array([0.0, 1.0]), np.array([False, True])) == 0


@given(confidences, temperatures)
def test_calibrated_confidences_are_probabilities(
    confidence: list[float], temperature: tuple[float, ...]
) -> None:
    applied = Calibration(temperature).apply(confidence)
    assert len(applied) == len(confidence)
    assert all(0 <= each <= 1 for each in applied)


@given(st.lists(st.floats(0.001, 0.999), min_size=2, max_size=2), st.floats(0.1, 10))
def test_the_more_confident_stays_the_more_confident(pair: list[float], temperature: float) -> None:
    applied = [Calibration((temperature,)).apply([each])[0] for each in sorted(pair)]
    assert all(low <= high for low, high in pairwise(applied))


@given(confidences, st.data())
def test_a_confidence_is_calibrated_by_itself(confidence: list[float], data: st.DataObject) -> None:
    kept = data.draw(st.integers(0, len(confidence)))
    calibration = Calibration((0.5, 2.0, 3.0))
    assert calibration.apply(confidence)[:kept] == calibration.apply(confidence[:kept])


def test_without_temperatures_confidences_stay_as_they_are() -> None:
    assert Calibration().apply([0.0, 0.3, 1.0]) == (0.0, 0.3, 1.0)


def test_positions_beyond_the_last_temperature_use_it() -> None:
    applied = Calibration((1.0, 2.0)).apply([0.8, 0.8, 0.8])
    assert applied[0] == pytest.approx(0.8)
    assert applied[1] == applied[2] == pytest.approx(2 / 3)  # odds 4 to 1 become 2 to 1


# --- beside a checkpoint -------------------------------------------------------------------------


@pytest.mark.parametrize("greedy", [None, Calibration((2.0,), (0.5,))])
@pytest.mark.parametrize("offsets", [(), (-0.5, 0.0, 0.25)])
def test_it_is_read_as_it_was_written(
    tmp_path: Path, offsets: tuple[float, ...], greedy: Calibration | None
) -> None:
    calibrations = Calibrations(Calibration((0.5, 1.25, 3.0), offsets), greedy)
    calibrations.write(tmp_path)
    assert Calibrations.of_checkpoint(tmp_path) == calibrations
    assert [path.name for path in tmp_path.iterdir()] == ["calibration.json"]


def test_a_checkpoint_without_the_file_is_uncalibrated(tmp_path: Path) -> None:
    assert Calibrations.of_checkpoint(tmp_path) == Calibrations()


def test_greedy_requests_use_the_sampled_ones_where_they_have_none_of_their_own() -> None:
    sampled, greedy = Calibration((2.0,)), Calibration((0.5,))
    assert Calibrations(sampled).of(greedy=True) is sampled
    assert Calibrations(sampled, greedy).of(greedy=True) is greedy
    assert Calibrations(sampled, greedy).of(greedy=False) is sampled


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[1.0]",
        "{}",
        '{"temperatures": 1}',
        '{"temperatures": ["1"]}',
        '{"temperatures": [true]}',
        '{"temperatures": [1, 0]}',
        '{"temperatures": [-1]}',
        '{"temperatures": [Infinity]}',
        '{"temperatures": [NaN]}',
        '{"temperatures": [1], "offsets": 1}',
        '{"temperatures": [1], "offsets": [1, 2]}',
        '{"temperatures": [1], "offsets": [Infinity]}',
        '{"temperatures": [1], "greedy": 1}',
        '{"temperatures": [1], "greedy": {}}',
        '{"temperatures": [1], "greedy": {"temperatures": [0]}}',
    ],
)
def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path, content: str) -> None:
    (tmp_path / "calibration.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"calibration\.json.*calibrate again, or delete it"):
        Calibrations.of_checkpoint(tmp_path)


def test_other_entries_of_the_file_do_not_disturb(tmp_path: Path) -> None:
    content = {"temperatures": [2], "fitted_on": "a note"}
    (tmp_path / "calibration.json").write_text(json.dumps(content))
    assert Calibrations.of_checkpoint(tmp_path) == Calibrations(Calibration((2.0,)))


@pytest.mark.parametrize(
    ("confidence", "accepted"),
    [
        (np.ones((0, 3)), np.ones(0, int)),
        (np.ones(3), np.ones(3, int)),
        (np.ones((3, 2)), np.ones(2, int)),
    ],
)
def test_measurements_that_do_not_belong_together_are_refused(
    confidence: np.ndarray, accepted: np.ndarray
) -> None:
    with pytest.raises(InvalidRequest, match="do not belong together"):
        fit(confidence, accepted)
