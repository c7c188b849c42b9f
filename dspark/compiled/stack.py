"""A decoder's layers as one compiled call a step."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dspark.cached_rows import CachedRows, Whole
from dspark.compiled.layers import Array, run_layers
from dspark.compiled.tiles import GROUP
from dspark.compiled.weights import CompiledLinear, stacked
from dspark.kv_cache import KvCache

if TYPE_CHECKING:
    from dspark.decoder import DecoderConfig, DecoderLayer


class CompiledStack:
    """All layers' weights, laid one after the other.

    Args:
        config: the decoder's shape.
        layers: as `fits` wants them; they keep working, on the same weights.
    """

    def __init__(self, config: DecoderConfig, layers: Sequence[DecoderLayer]) -> None:
        self._config = config
        self._attention_norms = torch.stack([each.attention_norm.weight for each in layers]).numpy()
        self._mlp_norms = torch.stack([each.mlp_norm.weight for each in layers]).numpy()
        self._qk_norms: Array = np.empty((len(layers), 0), np.float32)
        if config.qk_norm:
            norms = [torch.cat(each.head_norms) for each in layers if each.head_norms is not None]
            self._qk_norms = torch.stack(norms).numpy()
        self._qkv, self._output, self._gate_up, self._down = (
            stacked([_compiled(getattr(layer, name)) for layer in layers]) for name in _LINEARS
        )
        self._nothing_kept = np.full(len(layers), -1)
        self._rotations: Array = np.empty((0, 2, config.head_dim // 2), np.float32)
        self._prepare(layers[0])

    def _prepare(self, layer: DecoderLayer) -> None:
        """Have everything compiled now: it takes some seconds once, which no request should wait.

        Later starts read what the first one compiled.
        """
        config = self._config
        cache = KvCache(
            layers=len(self._attention_norms),
            slots=1,
            kv_heads=config.kv_heads,
            context_tokens=1,
            head_dim=config.head_dim,
            dtype=torch.float32,
            device=torch.device("cpu"),
        )
        hidden = torch.zeros(1, config.hidden_size)
        layer.qkv(hidden)
        self(hidden, torch.zeros(1, dtype=torch.int64), CachedRows.of(cache, [(0, 0, 1)]))

    @staticmethod
    def fits(config: DecoderConfig, layers: Sequence[DecoderLayer]) -> bool:
        """Whether there are layers, all linear ones are compiled, and heads are whole vectors."""
        linears = [getattr(layer, name) for layer in layers for name in _LINEARS]
        compiled = bool(linears) and all(isinstance(each, CompiledLinear) for each in linears)
        return compiled and config.head_dim % GROUP == 0

    def first(self, count: int) -> CompiledStack:
        """The first layers alone, on the same weights."""
        early = copy(self)
        early._attention_norms = self._attention_norms[:count]
        early._nothing_kept = self._nothing_kept[:count]
        return early

    def __call__(
        self, hidden: Tensor, positions: Tensor | Whole, rows: CachedRows, taps: Sequence[int] = ()
    ) -> Tensor | None:
        """Run every layer on `hidden [rows, size]`, in place; see `Decoder.hidden_states`.

        Returns:
            The tapped outputs `[rows, taps × size]`, if there are taps.
        """
        config = self._config
        tapped = torch.empty(len(hidden), len(taps), config.hidden_size)
        kept_at = np.full(len(self._attention_norms), -1) if taps else self._nothing_kept
        for index, tap in enumerate(taps):
            if tap < 0:
                tapped[:, index] = hidden
            else:
                kept_at[tap] = index
        run_layers(
            hidden.numpy(),
            self.rotations_at(positions.numpy() if isinstance(positions, Tensor) else positions),
            rows.places,
            rows.tails,
            rows.cache.keys.numpy(),
            rows.cache.values.numpy(),
            kept_at,
            tapped.numpy(),
            config.heads,
            config.intermediate_size,
            config.norm_epsilon,
            self._attention_norms,
            self._mlp_norms,
            self._qk_norms,
            self._qkv,
            self._output,
            self._gate_up,
            self._down,
        )
        return tapped.flatten(1) if taps else None

    def rotations_at(self, positions: Whole) -> Array:
        """`[rows, 2, head_dim / 2]`: cosines and sines of positions."""
        found: Array = self._rotations_to(int(positions.max()))[positions]
        return found

    def rotations_between(self, start: int, stop: int) -> Array:
        """The same of positions `start … stop-1`."""
        found: Array = self._rotations_to(stop - 1)[start:stop]
        return found

    def _rotations_to(self, last: int) -> Array:
        """Those of all positions up to the last at least, in a table that grows as it is needed."""
        if last >= len(self._rotations):
            config = self._config
            known = torch.arange(max(2 * len(self._rotations), last + 1, 512))
            angles = known.float()[:, None] * config.rope.inverse_wavelengths(config.head_dim)
            self._rotations = torch.stack((angles.cos(), angles.sin()), 1).numpy()
        return self._rotations


_LINEARS = ("qkv", "output", "gate_up", "down")


def _compiled(linear: object) -> CompiledLinear:
    assert isinstance(linear, CompiledLinear)
    return linear
