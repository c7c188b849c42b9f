"""Vectors of sixteen numbers as a type that compiled functions compute with.

LLVM is free to vectorise plain loops, and then to sum in whatever order suits the processor.
Here the order of every sum is part of the result: a token's bits must not depend on the tokens
computed beside it. So kernels spell their vectors out. A processor with narrower registers takes
several for one vector, in the same order.

Addresses are plain integers, in bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.ir as ir
from numba.core import cgutils, types
from numba.extending import intrinsic, models, register_model

LANES = 16
LINE = 64
"""Bytes that memory is read in."""

Builder = Any
"""llvmlite's builders and values carry no types of their own."""

Vector = Any
"""Sixteen float32 numbers, where compiled functions compute with them."""

emitting: Callable[[Callable[..., Any]], Callable[..., Any]] = intrinsic
"""Makes a function that compiled functions call out of one that says what LLVM code it stands for.
"""

HALF, FLOAT = ir.HalfType(), ir.FloatType()
I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))


def vector(element: ir.Type, lanes: int = LANES) -> ir.VectorType:
    """LLVM's type of so many numbers."""
    return ir.VectorType(element, lanes)


class Floats(types.Type):
    """Sixteen float32 numbers."""

    def __init__(self) -> None:
        super().__init__(name="Floats16")


floats = Floats()


@register_model(Floats)
class _FloatsModel(models.PrimitiveModel):
    def __init__(self, manager: Any, numba_type: types.Type) -> None:
        super().__init__(manager, numba_type, vector(FLOAT))  # type: ignore[no-untyped-call]


# --- pieces of LLVM code -------------------------------------------------------------------------


def pointer(builder: Builder, address: Any, element: ir.Type) -> Any:
    """The pointer that an address stands for."""
    return builder.inttoptr(address, element.as_pointer())


def load_vector(builder: Builder, address: Any, element: ir.Type, lanes: int = LANES) -> Any:
    """A vector from memory, wherever it lies."""
    return builder.load(pointer(builder, address, vector(element, lanes)), align=1)


def prefetch(builder: Builder, address: Any, size: int) -> None:
    """Have so many bytes brought into the second-level cache, if they are anywhere at all."""
    place = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [place, I32, I32, I32])
    function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
        builder.module, kind, "llvm.prefetch.p0"
    )
    to_read, second_level, data = (ir.Constant(I32, each) for each in (0, 2, 1))
    for line in range(0, size, LINE):
        at = builder.inttoptr(builder.add(address, ir.Constant(I64, line)), place)
        builder.call(function, [at, to_read, second_level, data])


def splat_value(builder: Builder, value: Any, lanes: int = LANES) -> Any:
    """One number in every lane."""
    kind = vector(value.type, lanes)
    single = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(I32, 0))
    zeros = ir.Constant(vector(I32, lanes), [0] * lanes)
    return builder.shuffle_vector(single, single, zeros)


def constant(element: ir.Type, value: float, lanes: int = LANES) -> ir.Constant:
    """The same number in every lane, known beforehand."""
    return ir.Constant(vector(element, lanes), [value] * lanes)


def call_llvm(builder: Builder, name: str, result: ir.Type, *arguments: Any) -> Any:
    """Call one of LLVM's own functions."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
        builder.module, kind, name
    )
    return builder.call(function, arguments)


def variable(builder: Builder, value: Any) -> Any:
    """A place that holds a value at first; LLVM keeps it in a register."""
    return cgutils.alloca_once_value(builder, value)  # type: ignore[no-untyped-call]


def fused(builder: Builder, left: Any, right: Any, addend: Any) -> Any:
    """`left × right + addend`, rounded once."""
    return call_llvm(builder, "llvm.fma.v16f32", left.type, left, right, addend)


def shuffled(builder: Builder, left: Any, right: Any, lanes: list[int]) -> Any:
    """The chosen lanes of two vectors laid one after the other."""
    return builder.shuffle_vector(left, right, ir.Constant(vector(I32, len(lanes)), lanes))


def sum_of_each(builder: Builder, rows: list[Any]) -> Any:
    """The sums of sixteen vectors, as one vector; every sum in the same order (a balanced tree)."""
    width = 1
    while width < LANES:
        even = [lane for lane in range(LANES) if not lane // width % 2]
        first = [lane + side for pair in _runs(even, width) for side in (0, LANES) for lane in pair]
        second = [lane + width for lane in first]
        rows = [
            builder.fadd(shuffled(builder, a, b, first), shuffled(builder, a, b, second))
            for a, b in zip(rows[::2], rows[1::2], strict=True)
        ]
        width *= 2
    return rows[0]


def _runs(lanes: list[int], width: int) -> list[list[int]]:
    return [lanes[start : start + width] for start in range(0, len(lanes), width)]


def folded(builder: Builder, values: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """All lanes of a vector combined, halves first."""
    width = LANES // 2
    while width:
        upper = [lane ^ width for lane in range(LANES)]
        values = combine(values, shuffled(builder, values, values, upper))
        width //= 2
    return builder.extract_element(values, ir.Constant(I32, 0))


# --- what compiled functions call ----------------------------------------------------------------


@emitting
def load(typing: Any, address: Any) -> Any:
    """Sixteen float32 at an address."""

    def emit(_context: Any, builder: Builder, _signature: Any, arguments: Any) -> Any:
        return load_vector(builder, arguments[0], FLOAT)

    return floats(types.intp), emit


@emitting
def load_brain(typing: Any, address: Any) -> Any:
    """Sixteen bfloat16 at an address."""

    def emit(_context: Any, builder: Builder, _signature: Any, arguments: Any) -> Any:
        halves = builder.zext(load_vector(builder, arguments[0], I16), vector(I32))
        return builder.bitcast(builder.shl(halves, constant(I32, 16)), vector(FLOAT))

    return floats(types.intp), emit


@emitting
def store(typing: Any, address: Any, values: Any) -> Any:
    """Put sixteen float32 at an address."""

    def emit(context: Any, builder: Builder, _signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], pointer(builder, arguments[0], vector(FLOAT)), align=1)
        return context.get_dummy_value()

    return types.void(types.intp, floats), emit


@emitting
def load_number(typing: Any, address: Any) -> Any:
    """One float32 at an address."""

    def emit(_context: Any, builder: Builder, _signature: Any, arguments: Any) -> Any:
        return builder.load(pointer(builder, arguments[0], FLOAT), align=1)

    return types.float32(types.intp), emit


@emitting
def store_number(typing: Any, address: Any, value: Any) -> Any:
    """Put one float32 at an address."""

    def emit(context: Any, builder: Builder, _signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], pointer(builder, arguments[0], FLOAT), align=1)
        return context.get_dummy_value()

    return types.void(types.intp, types.float32), emit


@emitting
def splat(typing: Any, value: Any) -> Any:
    """One number, sixteen times."""

    def emit(_context: Any, builder: Builder, _signature: Any, arguments: Any) -> Any:
        return splat_value(builder, arguments[0])

    return floats(types.float32), emit


@emitting
def fma(typing: Any, left: Any, right: Any, addend: Any) -> Any:
    """`left × right + addend`, rounded once."""

    def emit(_context: Any, builder: Builder, _signature: Any, arguments: Any) -> Any:
        return fused(builder, *arguments)

    return floats(floats, floats, floats), emit


def _binary(operation: str, what: str) -> Callable[..., Any]:
    def wanted(typing: Any, left: Any, right: Any) -> Any:
        def emit(_context: Any, builder: Builder, _signature: Any, arguments: Any) -> Any:
            return getattr(builder, operation)(*arguments)

        return floats(floats, floats), emit

    wanted.__doc__ = what
    wanted.__name__ = operation
    return emitting(wanted)


add = _binary("fadd", "Lane by lane.")
subtract = _binary("fsub", "Lane by lane.")
multiply = _binary("fmul", "Lane by lane.")
divide = _binary("fdiv", "Lane by lane.")


@emitting
def largest_of_two(typing: Any, left: Any, right: Any) -> Any:
    """Lane by lane."""

    def emit(_context: Any, builder: Builder, _signature: Any, arguments: Any) -> Any:
        return _larger(builder, *arguments)

    return floats(floats, floats), emit


def _larger(builder: Builder, left: Any, right: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", left, right), left, right)


@emitting
def magnitude(typing: Any, values: Any) -> Any:
    """Absolute values."""

    def emit(_context: Any, builder: Builder, _signature: Any, arguments: Any) -> Any:
        return call_llvm(builder, "llvm.fabs.v16f32", vector(FLOAT), arguments[0])

    return floats(floats), emit


@emitting
def nearest(typing: Any, values: Any) -> Any:
    """Rounded to whole numbers, halves to the even one."""

    def emit(_context: Any, builder: Builder, _signature: Any, arguments: Any) -> Any:
        return call_llvm(builder, "llvm.rint.v16f32", vector(FLOAT), arguments[0])

    return floats(floats), emit


@emitting
def power_of_two(typing: Any, exponents: Any) -> Any:
    """Two to the power of whole numbers from -126 to 127."""

    def emit(_context: Any, builder: Builder, _signature: Any, arguments: Any) -> Any:
        whole = builder.fptosi(arguments[0], vector(I32))
        biased = builder.add(whole, constant(I32, 127))
        return builder.bitcast(builder.shl(biased, constant(I32, 23)), vector(FLOAT))

    return floats(floats), emit


@emitting
def first_lanes(typing: Any, values: Any, count: Any, otherwise: Any) -> Any:
    """The first `count` lanes of `values`, and `otherwise` in the rest."""

    def emit(_context: Any, builder: Builder, _signature: Any, arguments: Any) -> Any:
        values, count, otherwise = arguments
        numbers = ir.Constant(vector(I64), list(range(LANES)))
        kept = builder.icmp_signed("<", numbers, splat_value(builder, count))
        return builder.select(kept, values, splat_value(builder, otherwise))

    return floats(floats, types.intp, types.float32), emit


@emitting
def total(typing: Any, values: Any) -> Any:
    """The sum of all lanes, halves first."""

    def emit(_context: Any, builder: Builder, _signature: Any, arguments: Any) -> Any:
        return folded(builder, arguments[0], builder.fadd)

    return types.float32(floats), emit


@emitting
def largest(typing: Any, values: Any) -> Any:
    """The largest lane."""

    def emit(_context: Any, builder: Builder, _signature: Any, arguments: Any) -> Any:
        return folded(builder, arguments[0], lambda a, b: _larger(builder, a, b))

    return types.float32(floats), emit


@emitting
def store_bytes(typing: Any, address: Any, values: Any) -> Any:
    """Put sixteen whole numbers from -128 to 127 at an address, a byte each."""

    def emit(context: Any, builder: Builder, _signature: Any, arguments: Any) -> Any:
        whole = builder.fptosi(arguments[1], vector(I32))
        narrow = builder.trunc(whole, vector(I8))
        builder.store(narrow, pointer(builder, arguments[0], vector(I8)), align=1)
        return context.get_dummy_value()

    return types.void(types.intp, floats), emit


@emitting
def load_whole(typing: Any, address: Any) -> Any:
    """One int32 at an address."""

    def emit(_context: Any, builder: Builder, _signature: Any, arguments: Any) -> Any:
        return builder.sext(builder.load(pointer(builder, arguments[0], I32), align=1), I64)

    return types.intp(types.intp), emit


@emitting
def store_whole(typing: Any, address: Any, value: Any) -> Any:
    """Put one int32 at an address."""

    def emit(context: Any, builder: Builder, _signature: Any, arguments: Any) -> Any:
        narrow = builder.trunc(arguments[1], I32)
        builder.store(narrow, pointer(builder, arguments[0], I32), align=1)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), emit
