"""What a step costs: measured robustly, remembered, and measured anew when memory is no good."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark import Target
from dspark.drafters import Draft, PromptLookupDrafter
from dspark.errors import InvalidRequest
from dspark.policies import Drafting
from dspark.step_cost import (
    StepCostTable,
    cache_folder,
    cached_profile,
    drafter_measure,
    machine_name,
    processor_name,
    profile,
    profiled_cost,
    target_measure,
)
from dspark.target import Forward, Span

STAIRS_MS = (10.0, 10.0, 10.0, 10.0, 16.0, 16.0, 16.0, 16.0)
durations = st.floats(0.01, 1000)


class VirtualMachine:
    """Takes what a curve says, and counts how often it is asked."""

    def __init__(self, curve: Callable[[int], float]) -> None:
        self._curve = curve
        self.measurements = 0

    def __call__(self, count: int) -> float:
        self.measurements += 1
        return self._curve(count)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DSPARK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def stairs() -> VirtualMachine:
    return VirtualMachine(lambda tokens: STAIRS_MS[tokens - 1])


def remembered(machine: VirtualMachine, refresh: bool = False) -> tuple[float, ...]:
    return cached_profile("model", "processor", machine, len(STAIRS_MS), refresh=refresh)


def the_file(cache: Path) -> Path:
    (file,) = (cache / "step-cost").iterdir()
    return file


# --- the table -----------------------------------------------------------------------------------


def test_a_table_keeps_stairs_and_goes_on_beyond_them_as_they_rose() -> None:
    table = StepCostTable(STAIRS_MS)
    assert tuple(table.cost_ms(tokens) for tokens in range(1, 9)) == STAIRS_MS
    assert table.cost_ms(15) == pytest.approx(16 + 7 * (16 - 10) / 7)


def test_drafting_costs_by_the_number_of_sequences_and_nothing_for_none() -> None:
    table = StepCostTable(STAIRS_MS, (3.0, 4.0), drafted_token_ms=0.5, sampled_token_ms=0.25)
    assert [table.draft_ms(Drafting(count, count)) for count in range(5)] == [0, 3, 4, 5, 6]
    assert table.draft_ms(Drafting(2, tokens=6)) == 4 + 4 * 0.5
    assert table.draft_ms(Drafting(2, tokens=6, sampled=3)) == 4 + 4 * 0.5 + 3 * 0.25
    assert StepCostTable(STAIRS_MS).draft_ms(Drafting(2, 6)) == 0


def test_a_single_entry_holds_for_all_counts() -> None:
    assert StepCostTable((5.0,)).cost_ms(9) == 5


@pytest.mark.parametrize("step_ms", [(), (0.0,), (1.0, float("nan")), (float("inf"),)])
def test_a_table_without_usable_durations_is_refused(step_ms: tuple[float, ...]) -> None:
    with pytest.raises(InvalidRequest, match="step costs"):
        StepCostTable(step_ms)


# --- measuring -----------------------------------------------------------------------------------


def test_a_quiet_machine_is_measured_as_it_is() -> None:
    assert profile(stairs(), len(STAIRS_MS)) == STAIRS_MS


def test_what_a_first_run_takes_does_not_count() -> None:
    seen: set[int] = set()

    def slow_at_first(tokens: int) -> float:
        first = tokens not in seen
        seen.add(tokens)
        return 500.0 if first else 10.0

    assert profile(slow_at_first, 4, repeats=1) == (10, 10, 10, 10)


def test_a_disturbance_that_lasts_for_a_round_changes_nothing() -> None:
    calls = itertools.count()
    counts, disturbed_round = len(STAIRS_MS), 3

    def disturbed(tokens: int) -> float:
        slow = next(calls) // counts == disturbed_round
        return STAIRS_MS[tokens - 1] * (20 if slow else 1)

    assert profile(disturbed, counts) == STAIRS_MS


def test_a_machine_that_becomes_slower_and_slower_changes_nothing() -> None:
    calls = itertools.count()
    # A third slower at the end; a count and the single one beside it are slowed down alike.
    found = profile(lambda tokens: STAIRS_MS[tokens - 1] * (1 + next(calls) / 360), len(STAIRS_MS))
    ratios = [ms / found[0] for ms in found]
    assert ratios == pytest.approx([ms / STAIRS_MS[0] for ms in STAIRS_MS], rel=0.01)


@given(st.lists(durations, min_size=1, max_size=20))
def test_a_profile_never_falls_keeps_its_mean_and_leaves_rising_curves_alone(
    curve: list[float],
) -> None:
    measured = profile(lambda count: curve[count - 1], len(curve), repeats=1)
    assert list(measured) == sorted(measured)
    assert sum(measured) == pytest.approx(sum(curve))
    rising = sorted(curve)
    found = profile(lambda count: rising[count - 1], len(curve), repeats=1)
    assert list(found) == pytest.approx(rising)


# --- remembering ---------------------------------------------------------------------------------


def test_a_profile_is_measured_once_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        assert remembered(stairs()) == STAIRS_MS
        remembered(stairs())
    assert caplog.text.count("done once") == 1
    again = stairs()
    assert remembered(again) == STAIRS_MS
    assert again.measurements == 0


def test_it_is_measured_again_on_demand_and_then_remembered() -> None:
    remembered(VirtualMachine(lambda _: 99.0))
    assert remembered(stairs(), refresh=True) == STAIRS_MS
    assert remembered(VirtualMachine(lambda _: 99.0)) == STAIRS_MS


def test_other_models_machines_and_lengths_have_their_own() -> None:
    remembered(stairs())
    for subject, machine, counts in (("other", "processor", 8), ("model", "gpu", 8)):
        fresh = VirtualMachine(lambda _: 1.0)
        assert cached_profile(subject, machine, fresh, counts) == (1.0,) * counts
    assert cached_profile("model", "processor", stairs(), 4) == STAIRS_MS[:4]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"ms": 7}',
        '{"ms": [1, 2]}',
        '{"ms": [1, 2, 3, 4, 5, 6, 7, "8"]}',
        '{"ms": [1, 2, 3, 4, 5, 6, 7, -8]}',
        '{"ms": [1, 2, 3, 4, 5, 6, 7, NaN]}',
        b"\xff\xfe\x00",
    ],
)
def test_a_damaged_file_is_replaced_by_a_new_measurement(
    cache: Path, content: str | bytes, caplog: pytest.LogCaptureFixture
) -> None:
    remembered(VirtualMachine(lambda _: 99.0))
    the_file(cache).write_bytes(content.encode() if isinstance(content, str) else content)
    assert remembered(stairs()) == STAIRS_MS
    assert "measuring anew" in caplog.text
    assert json.loads(the_file(cache).read_text())["ms"] == list(STAIRS_MS)


def test_where_nothing_can_be_written_the_measurement_still_counts(
    cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.write_text("a file where the folder should be")
    assert remembered(stairs()) == STAIRS_MS
    assert "cannot be kept" in caplog.text


def test_a_broken_off_write_leaves_the_old_profile(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remembered(stairs())

    def fails(*_: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", fails)
        remembered(VirtualMachine(lambda _: 99.0), refresh=True)
    unmeasured = VirtualMachine(lambda _: 1.0)
    assert remembered(unmeasured) == STAIRS_MS
    assert unmeasured.measurements == 0
    assert the_file(cache).suffix == ".json"


def test_the_cache_is_where_the_environment_says(cache: Path) -> None:
    assert cache_folder() == cache


# --- real steps ----------------------------------------------------------------------------------


def test_a_targets_steps_are_profiled_once(target: Target) -> None:
    table = profiled_cost(target)
    assert len(table.step_ms) > 8
    assert profiled_cost(target) == table
    assert table.draft_ms(Drafting(1, 1)) == 0


def test_other_code_has_other_costs(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    first = profiled_cost(target)
    monkeypatch.setattr("dspark.fast_path.compiled_version", lambda: "another version")
    assert profiled_cost(target) != first


def test_a_step_is_timed_with_logits_for_every_token(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[Span] = []
    forward = target.forward

    def watched(spans: Sequence[Span], *arguments: object) -> Forward:
        computed.extend(spans)
        return forward(spans, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(target, "forward", watched)
    assert target_measure(target)(3) > 0
    (span,) = computed
    assert (len(span.tokens), span.logits) == (3, 3)


def test_a_draft_is_timed_behind_a_step_of_its_target(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is at work, where the step has driven the drafter's weights out of the caches."""
    happened: list[str] = []
    forward, drafter = target.forward, PromptLookupDrafter(target, 3)
    draft = drafter.draft

    def stepping(*arguments: Any) -> Forward:
        happened.append("step")
        return forward(*arguments)

    def drafting(*arguments: Any) -> list[Draft]:
        happened.append("draft")
        return draft(*arguments)

    monkeypatch.setattr(target, "forward", stepping)
    monkeypatch.setattr(drafter, "draft", drafting)
    measure = drafter_measure(target, drafter, single_ms=1.0)
    assert all(measure(sequences, 2, False) > 0 for sequences in (1, 2))
    assert happened == ["step", "draft"] * 2


def test_a_machine_is_named_by_its_processor_and_threads() -> None:
    assert processor_name()
    assert machine_name("cpu", 1) != machine_name("cpu", 2)
    assert processor_name() in machine_name("cpu", 1)
