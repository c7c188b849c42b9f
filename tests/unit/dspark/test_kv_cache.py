"""A prompt goes where most of it already lies, and never reads what belongs to another."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from dspark.kv_cache import KvCache, Slot, SlotPool

CONTEXT = 12


def new_cache(slots: int) -> KvCache:
    return KvCache(
        layers=2,
        slots=slots,
        kv_heads=1,
        context_tokens=CONTEXT,
        head_dim=1,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


def compute(cache: KvCache, slot: Slot, tokens: list[int]) -> None:
    """Store each token's id as its own key, and its negative as its value, as a forward would."""
    start = len(slot.tokens)
    rows = torch.tensor(tokens[start:], dtype=torch.float32)[:, None, None]
    for layer in range(2):
        cache.append(layer, slot.index, start, rows, -rows)
    slot.tokens += tokens[start:]


def held(cache: KvCache, slot: Slot) -> list[tuple[float, float]]:
    """Key and value of each position of the second layer."""
    keys, values = cache.by_layer(slot.index, 0, len(slot.tokens))[1]
    return list(zip(keys.flatten().tolist(), values.flatten().tolist(), strict=True))


def run(pool: SlotPool, cache: KvCache, tokens: list[int]) -> tuple[Slot, int]:
    """Serve one prompt from start to end: its slot, and how much was reused."""
    slot = pool.take(tokens)
    assert slot is not None
    cached = len(slot.tokens)
    compute(cache, slot, tokens)
    pool.release(slot)
    return slot, cached


def test_the_longest_common_prefix_decides() -> None:
    cache = new_cache(3)
    pool = SlotPool(3, [cache])
    run(pool, cache, [1, 2, 3])
    longer, _ = run(pool, cache, [5, 6, 7, 8])
    slot, cached = run(pool, cache, [5, 6, 7, 8, 9])
    assert (slot.index, cached) == (longer.index, 4)


def test_the_last_token_is_always_computed() -> None:
    cache = new_cache(1)
    pool = SlotPool(1, [cache])
    run(pool, cache, [1, 2, 3])
    assert run(pool, cache, [1, 2, 3])[1] == 2


def test_two_dialogues_behind_one_system_prompt_keep_their_own_slots() -> None:
    cache = new_cache(2)
    pool = SlotPool(2, [cache])
    system = [1, 2]
    first, _ = run(pool, cache, [*system, 3, 4, 5, 6])
    second, cached = run(pool, cache, [*system, 7, 8, 9])
    assert (second.index != first.index, cached) == (True, len(system))
    again, cached = run(pool, cache, [*system, 3, 4, 5, 6, 10])
    assert (again.index, cached) == (first.index, 6)


def test_a_prefix_in_use_is_copied_and_its_owner_undisturbed() -> None:
    cache = new_cache(2)
    pool = SlotPool(2, [cache])
    owner = pool.take([1, 2, 3, 4])
    assert owner is not None
    compute(cache, owner, [1, 2, 3, 4])
    other, cached = run(pool, cache, [1, 2, 3, 9])
    assert (other.index != owner.index, cached) == (True, 3)
    assert held(cache, owner) == [(token, -token) for token in [1, 2, 3, 4]]


def test_a_slot_idle_for_longest_goes_first() -> None:
    cache = new_cache(2)
    pool = SlotPool(2, [cache])
    first, _ = run(pool, cache, [1, 2])
    run(pool, cache, [3, 4])
    assert run(pool, cache, [5, 6])[0] is first


def test_a_full_pool_has_no_slot() -> None:
    pool = SlotPool(1, [new_cache(1)])
    assert pool.take([1]) is not None
    assert pool.take([1]) is None
    assert pool.free == 0


def test_rolling_back_forgets_the_tail() -> None:
    cache = new_cache(1)
    pool = SlotPool(1, [cache])
    slot, _ = run(pool, cache, [1, 2, 3, 4])
    slot.roll_back(2)
    compute(cache, slot, [1, 2, 8])
    assert held(cache, slot) == [(1, -1), (2, -2), (8, -8)]


@given(
    st.lists(
        st.tuples(st.lists(st.integers(1, 2), min_size=1, max_size=CONTEXT), st.booleans()),
        max_size=20,
    )
)
def test_every_sequence_finds_exactly_its_own_tokens(
    requests: list[tuple[list[int], bool]],
) -> None:
    cache = new_cache(3)
    pool = SlotPool(3, [cache])
    running: list[tuple[Slot, list[int]]] = []
    for tokens, finishes_another in requests:
        if running and (finishes_another or pool.free == 0):
            pool.release(running.pop(0)[0])
        slot = pool.take(tokens)
        assert slot is not None
        assert len(slot.tokens) < len(tokens)
        compute(cache, slot, tokens)
        running.append((slot, tokens))
        for slot, tokens in running:
            assert held(cache, slot) == [(token, -token) for token in tokens]
