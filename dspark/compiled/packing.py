"""Weights in the order in which the compiled tiles read them."""

from __future__ import annotations

import torch
from torch import Tensor

from dspark.compiled.tiles import GROUP
from dspark.compiled.vectors import LANES


def packed_int4(codes: Tensor, scales: Tensor, offsets: Tensor) -> Tensor:
    """4-bit tiles (see `dspark.compiled.tiles`).

    Args:
        codes: `[outputs, inputs]` uint8, from 0 to 15.
        scales: `[outputs, groups]`.
        offsets: the same: a weight is code x scale + offset.

    Returns:
        `[bytes]` uint8.
    """
    tiles, groups = len(codes) // LANES, codes.shape[1] // GROUP
    # inputs of a group: half, vector, place in its four
    parts = codes.view(tiles, LANES, groups, 2, GROUP // 8, 4)
    halves = parts[:, :, :, 0] | (parts[:, :, :, 1] << 4)  # tiles, lanes, groups, vectors, four
    bytes_ = halves.permute(0, 2, 3, 1, 4).reshape(tiles, groups, -1)
    grids = [
        each.view(tiles, LANES, groups).transpose(1, 2).half().contiguous().view(torch.uint8)
        for each in (scales, offsets)
    ]
    return torch.cat((bytes_, *grids), -1).flatten()


def packed_int8(digits: Tensor) -> Tensor:
    """8-bit tiles of `[outputs, inputs]` int8, as `[bytes]` uint8."""
    tiles = len(digits) // LANES
    quads = digits.view(tiles, LANES, -1, 4).transpose(1, 2)
    return (quads.to(torch.int16) + 128).to(torch.uint8).flatten()
