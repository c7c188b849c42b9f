"""Attention of many slots' newest tokens: a softmax over each slot's own tokens."""

from __future__ import annotations

import pytest
import torch

from dspark.fast_path import compiled_batch_attention, compiles

needs_compiler = pytest.mark.skipif(not compiles(), reason="nothing can be compiled here")


@needs_compiler
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(9, 3, 64), (4, 4, 32), (12, 2, 96)])
def test_every_slot_attends_to_its_own_first_tokens(
    heads: int, kv_heads: int, head_dim: int
) -> None:
    torch.manual_seed(1)
    counts = torch.tensor([1, 5, 16, 17, 90, 128])
    slots, context = len(counts), 128
    # A slot more than there are rows, as in a cache whose last slot is shared.
    keys, values = (
        torch.randn(slots + 1, kv_heads, context, head_dim).bfloat16()[:slots] for _ in range(2)
    )
    for slot, count in enumerate(counts):
        keys[slot, :, count:] = torch.nan  # nobody may look there
    queries = torch.randn(slots, heads, head_dim).bfloat16()
    attend = compiled_batch_attention(keys)
    assert attend is not None
    found = attend(queries, keys, values, counts)
    for slot, count in enumerate(counts):
        seen = [
            each[slot, :, :count].float().repeat_interleave(heads // kv_heads, 0)
            for each in (keys, values)
        ]
        scores = torch.einsum("hd,hcd->hc", queries[slot].float(), seen[0]) * head_dim**-0.5
        expected = torch.einsum("hc,hcd->hd", scores.softmax(-1), seen[1])
        torch.testing.assert_close(found[slot].float(), expected, rtol=0.01, atol=0.01)


@pytest.mark.parametrize(
    ("shape", "dtype"), [((2, 1, 64, 64), torch.float32), ((2, 1, 64, 16), torch.bfloat16)]
)
def test_other_caches_are_left_to_torch(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    assert compiled_batch_attention(torch.zeros(shape, dtype=dtype)) is None
