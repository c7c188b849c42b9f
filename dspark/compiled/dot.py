"""Sums of four products of bytes in each lane: the instruction that integer layers live on.

`dot(builder, sums, unsigned, signed)` adds to sixteen int32 sums the products of 64 unsigned
bytes with 64 signed ones, four neighbours to a sum. All flavours compute the same integers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import llvmlite.ir as ir

from dspark.compiled.vectors import I16, I32, LANES, Builder, call_llvm, constant, vector

Flavour = Literal["avx512vnni", "avxvnni", "avx2", "generic"]
BYTES = 4 * LANES


def flavour_for(features: Mapping[str, bool]) -> Flavour:
    """The fastest that a processor with these features (in LLVM's names) computes."""
    if features.get("avx512vnni") and features.get("avx512bw"):
        return "avx512vnni"
    for flavour in ("avxvnni", "avx2"):
        if features.get(flavour):
            return flavour
    return "generic"


def signed_levels(flavour: Flavour) -> int:
    """How large signed bytes may be, so that sums of two products with 255 fit what holds them."""
    return 63 if flavour == "avx2" else 127


def dot_of(flavour: Flavour) -> Callable[[Builder, Any, Any, Any], Any]:
    """The function that emits it."""
    return _FLAVOURS[flavour]


def _avx512(builder: Builder, sums: Any, unsigned: Any, signed: Any) -> Any:
    words = [builder.bitcast(each, vector(I32)) for each in (unsigned, signed)]
    return call_llvm(builder, "llvm.x86.avx512.vpdpbusd.512", sums.type, sums, *words)


def _avx_vnni(builder: Builder, sums: Any, unsigned: Any, signed: Any) -> Any:
    def half(sums: Any, unsigned: Any, signed: Any) -> Any:
        words = [builder.bitcast(each, vector(I32, 8)) for each in (unsigned, signed)]
        return call_llvm(builder, "llvm.x86.avx512.vpdpbusd.256", sums.type, sums, *words)

    return _by_halves(builder, half, sums, unsigned, signed)


def _avx2(builder: Builder, sums: Any, unsigned: Any, signed: Any) -> Any:
    ones = constant(I16, 1, LANES)

    def half(sums: Any, unsigned: Any, signed: Any) -> Any:
        pairs = call_llvm(
            builder, "llvm.x86.avx2.pmadd.ub.sw", vector(I16, LANES), unsigned, signed
        )
        fours = call_llvm(builder, "llvm.x86.avx2.pmadd.wd", vector(I32, 8), pairs, ones)
        return builder.add(sums, fours)

    return _by_halves(builder, half, sums, unsigned, signed)


def _by_halves(builder: Builder, half: Callable[..., Any], *whole: Any) -> Any:
    def part(values: Any, index: int) -> Any:
        count = values.type.count // 2
        lanes = list(range(index * count, (index + 1) * count))
        return builder.shuffle_vector(values, values, ir.Constant(vector(I32, count), lanes))

    low, high = (half(*(part(values, index) for values in whole)) for index in (0, 1))
    return builder.shuffle_vector(low, high, ir.Constant(vector(I32), list(range(LANES))))


def _generic(builder: Builder, sums: Any, unsigned: Any, signed: Any) -> Any:
    wide = vector(I32, BYTES)
    products = builder.mul(builder.zext(unsigned, wide), builder.sext(signed, wide))
    for place in range(4):
        lanes = ir.Constant(vector(I32), list(range(place, BYTES, 4)))
        sums = builder.add(sums, builder.shuffle_vector(products, products, lanes))
    return sums


_FLAVOURS: Mapping[Flavour, Callable[[Builder, Any, Any, Any], Any]] = {
    "avx512vnni": _avx512,
    "avxvnni": _avx_vnni,
    "avx2": _avx2,
    "generic": _generic,
}
