"""Whether integer layers are computed by code compiled on this machine, or by torch.

Nothing here imports the compiler, which takes half a second, before it is needed.
"""

from __future__ import annotations

import importlib.util
import logging
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from dspark.int4 import has_int4_kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from dspark.compiled.drafting import CompiledDrafting
    from dspark.compiled.stack import CompiledStack
    from dspark.decoder import DecoderConfig, DecoderLayer
    from dspark.linear import Linear, WeightFormat

    BatchAttention = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

logger = logging.getLogger(__name__)

_WORTH_OF_THREADS = 2
_NEEDED = {"x86_64": ("avx2", "fma", "f16c"), "aarch64": ("neon",)}


@cache
def compiles() -> bool:
    """Whether compiled code can be had here: numba, and a processor that it is fast on."""
    if importlib.util.find_spec("numba") is None:
        return False
    try:
        import llvmlite.binding as llvm
    except (ImportError, OSError) as error:
        logger.warning("numba cannot be used (%s): torch computes instead", error)
        return False
    architecture = llvm.get_process_triple().partition("-")[0].replace("arm64", "aarch64")
    features = llvm.get_host_cpu_features()
    return architecture in _NEEDED and all(features.get(each) for each in _NEEDED[architecture])


def compiled_version() -> str:
    """Tells apart what may be compiled here: it changes with this package."""
    if not compiles():
        return "not compiled"
    from dspark.compiled.jit import VERSION

    return VERSION


def compiled_linear(weight: Tensor, bias: Tensor | None, kept_in: WeightFormat) -> Linear | None:
    """A layer in 4 or 8 bits, if it can be compiled for.

    Compiled steps run in one thread. That is as fast as torch in two; if more are to be used,
    torch is left to use them, where it can.
    """
    if kept_in == "float" or not compiles():
        return None
    if torch.get_num_threads() > _WORTH_OF_THREADS and has_int4_kernel():
        return None
    from dspark.compiled.weights import CompiledLinear

    if not CompiledLinear.fits(weight):
        return None
    make = CompiledLinear.in_int4 if kept_in == "int4" else CompiledLinear.in_int8
    return make(weight, bias)


def compiled_stack(config: DecoderConfig, layers: Sequence[DecoderLayer]) -> CompiledStack | None:
    """All layers in one call, if every one of them is compiled."""
    if not compiles():
        return None
    from dspark.compiled.stack import CompiledStack

    return CompiledStack(config, layers) if CompiledStack.fits(config, layers) else None


def compiled_drafting(
    *, fuse: Linear, context: Linear, head: Linear, spread: Linear, embedding: Tensor, **rest: Any
) -> CompiledDrafting | None:
    """Drafting beside the layers in one call, if all of its linear ones are compiled.

    See `dspark.compiled.drafting.DraftingWeights`, of which these are the attributes.
    """
    if not compiles() or embedding.dtype != torch.bfloat16 or embedding.shape[1] % 32:
        return None
    from dspark.compiled.drafting import CompiledDrafting, DraftingWeights
    from dspark.compiled.weights import CompiledLinear

    if (
        isinstance(fuse, CompiledLinear)
        and isinstance(context, CompiledLinear)
        and isinstance(head, CompiledLinear)
        and isinstance(spread, CompiledLinear)
    ):
        return CompiledDrafting(DraftingWeights(fuse, context, head, spread, embedding, **rest))
    return None


def compiled_batch_attention(keys: Tensor) -> BatchAttention | None:
    """`dspark.compiled.batch_attention.attend_each`, if it is for such a cache."""
    fits = keys.device.type == "cpu" and keys.dtype == torch.bfloat16 and not keys.shape[-1] % 32
    if not fits or not compiles():
        return None
    from dspark.compiled.batch_attention import attend_each

    return attend_each
