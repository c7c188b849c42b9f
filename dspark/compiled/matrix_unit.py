"""Intel's matrix unit (AMX): one instruction multiplies 16 rows of 64 bytes with 16 columns.

Its registers are tiles of up to 16 rows of 64 bytes, and a thread has to say which shape each of
them has before it uses them. (Intel, Architecture Instruction Set Extensions Programming
Reference, chapter 3.)
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
from numba.core import cgutils, types

from dspark.compiled.processor import MATRIX_UNIT
from dspark.compiled.vectors import I8, I64, Builder, emitting

CONFIG_BYTES = 64
"""What the shapes of all tiles take in memory."""

SUMS, SIGNED, UNSIGNED = range(3)
"""The tiles that are in use."""


def _instruction(builder: Builder, name: str, *arguments: Any) -> None:
    kind = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
    function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
        builder.module, kind, f"llvm.x86.{name}"
    )
    builder.call(function, arguments)


def _tile(number: int) -> Any:
    return ir.Constant(I8, number)


def _at(builder: Builder, address: Any) -> Any:
    return builder.inttoptr(address, I8.as_pointer())


def clear_tile(builder: Builder, number: int) -> None:
    """Make all of a tile 0."""
    _instruction(builder, "tilezero", _tile(number))


def load_tile(builder: Builder, number: int, address: Any, stride: Any) -> None:
    """Fill a tile with rows that lie `stride` bytes apart."""
    _instruction(builder, "tileloadd64", _tile(number), _at(builder, address), stride)


def store_tile(builder: Builder, number: int, address: Any, stride: Any) -> None:
    """Write a tile's rows `stride` bytes apart."""
    _instruction(builder, "tilestored64", _tile(number), _at(builder, address), stride)


def add_products(builder: Builder, sums: int, signed: int, unsigned: int) -> None:
    """Add the product of two tiles of bytes to one of int32.

    Of the unsigned tile, row v holds in lane i column i's numbers 4v … 4v+3.
    """
    _instruction(builder, "tdpbsud", _tile(sums), _tile(signed), _tile(unsigned))


@emitting
def configure(typing: Any, config: Any, rows: Any) -> Any:
    """From here on `SUMS` and `SIGNED` have so many rows, and `UNSIGNED` has 16, of 64 bytes each.

    `config` is the address of room for the shapes. Does nothing where there is no matrix unit.
    """

    def emit(context: Any, builder: Builder, _signature: Any, arguments: Any) -> Any:
        if MATRIX_UNIT:
            _emit_configuration(builder, *arguments)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), emit


def _emit_configuration(builder: Builder, config: Any, rows: Any) -> None:
    def put(offset: int, value: Any) -> None:
        place = builder.add(config, ir.Constant(I64, offset))
        builder.store(value, _at(builder, place), align=1)

    for offset in range(CONFIG_BYTES):
        put(offset, ir.Constant(I8, 0))
    put(0, ir.Constant(I8, 1))  # the only palette there is
    few = builder.trunc(rows, I8)
    for number, count in ((SUMS, few), (SIGNED, few), (UNSIGNED, ir.Constant(I8, 16))):
        put(16 + 2 * number, ir.Constant(I8, 64))
        put(48 + number, count)
    _instruction(builder, "ldtilecfg", _at(builder, config))


@emitting
def release(typing: Any) -> Any:
    """Say that tiles are not used any more, which makes switching threads cheap again."""

    def emit(context: Any, builder: Builder, _signature: Any, _arguments: Any) -> Any:
        if MATRIX_UNIT:
            _instruction(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), emit
