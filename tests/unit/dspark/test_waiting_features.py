"""However late a drafter takes features in, it has taken in what stands, in order."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from dspark.waiting_features import ROOM_TOKENS, WaitingFeatures

SLOTS = 3
LENGTHS = st.one_of(st.integers(1, 4), st.integers(ROOM_TOKENS - 4, ROOM_TOKENS + 4))
Rows = list[list[float]]  # by slot, the feature of each position


class FakeCache:
    """Holds one number a position."""

    def __init__(self) -> None:
        self.rows: Rows = [[] for _ in range(SLOTS)]

    def write(self, slot: int, start: int, numbers: list[float]) -> None:
        rows = self.rows[slot]
        rows += [math.nan] * (start - len(rows))
        rows[start : start + len(numbers)] = numbers

    def copy(self, source: int, destination: int, stop: int) -> None:
        self.rows[destination] = self.rows[source][:stop]


class FakeDrafter:
    """Writes features into the cache as they are."""

    def __init__(self) -> None:
        self.calls = 0
        self.broken = False

    def extend(self, cache: FakeCache, slot: int, start: int, features: torch.Tensor) -> None:
        self.calls += 1
        if self.broken:
            raise RuntimeError("it is broken")
        assert start <= len(cache.rows[slot]), "positions were left out"
        cache.write(slot, start, features[:, 0].tolist())


def waiting() -> tuple[Any, FakeDrafter, FakeCache]:
    drafter, cache = FakeDrafter(), FakeCache()
    parts: tuple[Any, Any] = drafter, cache
    return WaitingFeatures(*parts, slots=SLOTS, width=1, like=torch.empty(0)), drafter, cache


@given(st.data())
def test_what_is_taken_in_late_is_what_would_have_been_taken_in_at_once(
    data: st.DataObject,
) -> None:
    late, _, cache = waiting()
    at_once: Rows = [[] for _ in range(SLOTS)]
    slots = st.integers(0, SLOTS - 1)
    for number in range(data.draw(st.integers(1, 12))):
        slot = data.draw(slots)
        what = data.draw(st.sampled_from(["add", "add", "elsewhere", "copy", "take in"]))
        start = data.draw(st.integers(0, len(at_once[slot])))
        new = [float(1000 * number + place) for place in range(data.draw(LENGTHS))]
        if what == "elsewhere":  # as a static step takes them in by itself
            late.void(slot, start)
            cache.write(slot, start, new)
            at_once[slot][start:] = new
        elif what == "add":
            features = torch.tensor(new)[:, None]
            late.add(slot, start, features)
            features.fill_(-1)  # the next step may write there
            at_once[slot][start:] = new
        elif what == "copy":
            source = data.draw(slots.filter(lambda each, slot=slot: each != slot))  # type: ignore[arg-type]
            stop = data.draw(st.integers(0, len(at_once[source])))
            late.copy(source, slot, stop)
            at_once[slot] = at_once[source][:stop]
        else:
            late.take_in(slot)
            assert cache.rows[slot][: len(at_once[slot])] == at_once[slot]
    for slot in range(SLOTS):
        late.take_in(slot)
        assert cache.rows[slot][: len(at_once[slot])] == at_once[slot]


def test_tokens_one_after_the_other_are_taken_in_together() -> None:
    late, drafter, cache = waiting()
    for position in range(5):
        late.add(1, position, torch.full((1, 1), float(position)))
    assert drafter.calls == 0
    late.take_in(1)
    late.take_in(1)
    assert drafter.calls == 1
    assert cache.rows[1] == [0, 1, 2, 3, 4]


def test_a_long_rest_takes_in_many_at_a_time() -> None:
    late, drafter, cache = waiting()
    tokens = 3 * ROOM_TOKENS
    for position in range(tokens):
        late.add(1, position, torch.full((1, 1), float(position)))
    assert drafter.calls == 2
    late.take_in(1)
    assert drafter.calls == 3
    assert cache.rows[1] == list(range(tokens))


def test_what_cannot_be_taken_in_is_not_tried_again() -> None:
    late, drafter, cache = waiting()
    late.add(0, 0, torch.zeros(2, 1))
    drafter.broken = True
    try:
        late.take_in(0)
    except RuntimeError:
        drafter.broken = False
    assert not drafter.broken, "it was not told"
    late.take_in(0)
    assert cache.rows[0] == []
