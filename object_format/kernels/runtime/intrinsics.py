"""LLVM intrinsics that numba does not provide: moving memory, prefetching, calling C functions.

Nothing is checked here; callers do that. If numba's bounds checking is enabled (NUMBA_BOUNDSCHECK), copies
first access the last byte of both ranges by index, so that it covers them, too.
"""

# ruff: noqa: ARG001 -- an intrinsic's parameters are types; its arguments come as a list

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]  # it has no types
from numba import njit, types
from numba.core import cgutils, config
from numba.extending import intrinsic

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import ByteArray, IntArray, Integer

Opaque: TypeAlias = Any
"""Objects of numba and llvmlite during code generation; neither has types."""

_intrinsic: Opaque = intrinsic
_cgutils: Opaque = cgutils

CHECKED = bool(getattr(config, "BOUNDSCHECK", False))
"""True if numba checks bounds. Functions that bypass the checks then access the ends of their ranges by
index."""

_I8 = ir.IntType(8)
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)


def element(context: Opaque, builder: Opaque, kind: Opaque, array: Opaque, index: Opaque) -> Opaque:
    """Return the address of an element of a one-dimensional array, as a byte pointer."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), _I8.as_pointer())


@_intrinsic
def _move(
    _typing: Opaque, target: Opaque, at: Opaque, source: Opaque, start: Opaque, count: Opaque
) -> Opaque:
    """C's memmove for `count` elements."""
    signature = types.void(target, types.uint64, source, types.uint64, types.uint64)
    width = target.dtype.bitwidth // 8

    def generate(context: Opaque, builder: Opaque, kinds: Opaque, values: Opaque) -> Opaque:
        target_at = element(context, builder, kinds.args[0], values[0], values[1])
        source_at = element(context, builder, kinds.args[2], values[2], values[3])
        _cgutils.raw_memmove(builder, target_at, source_at, values[4], width)
        return context.get_dummy_value()

    return signature, generate


@_intrinsic
def _copy(
    _typing: Opaque, target: Opaque, at: Opaque, source: Opaque, start: Opaque, count: Opaque
) -> Opaque:
    """C's memcpy for `count` elements."""
    signature = types.void(target, types.uint64, source, types.uint64, types.uint64)
    width = target.dtype.bitwidth // 8

    def generate(context: Opaque, builder: Opaque, kinds: Opaque, values: Opaque) -> Opaque:
        target_at = element(context, builder, kinds.args[0], values[0], values[1])
        source_at = element(context, builder, kinds.args[2], values[2], values[3])
        _cgutils.raw_memcpy(builder, target_at, source_at, values[4], width)
        return context.get_dummy_value()

    return signature, generate


@_intrinsic
def borrowed(_typing: Opaque, array: Opaque) -> Opaque:
    """Return the same array without numba's reference counting, which costs two atomic additions per call.

    This is safe for arguments of a kernel: the caller holds a reference while the kernel runs.
    """

    def generate(context: Opaque, builder: Opaque, kinds: Opaque, values: Opaque) -> Opaque:
        struct = context.make_array(kinds.args[0])(context, builder, values[0])
        struct.meminfo = _cgutils.get_null_value(struct.meminfo.type)
        struct.parent = _cgutils.get_null_value(struct.parent.type)
        return struct._getvalue()  # noqa: SLF001 -- numba's own way

    return array(array), generate


@_intrinsic
def address_of(_typing: Opaque, array: Opaque, index: Opaque) -> Opaque:
    """Return the address of an element. It must exist if memory is accessed through the address."""
    signature = types.int64(array, types.int64)

    def generate(context: Opaque, builder: Opaque, kinds: Opaque, values: Opaque) -> Opaque:
        return builder.ptrtoint(element(context, builder, kinds.args[0], *values), _I64)

    return signature, generate


@_intrinsic
def call_c(_typing: Opaque, function: Opaque, arguments: Opaque) -> Opaque:
    """Call the C function at an address. Its arguments and its result are passed as 64-bit integers."""
    argument_types: Opaque = types.UniTuple(types.int64, len(arguments))  # type: ignore[no-untyped-call]

    def generate(_context: Opaque, builder: Opaque, _kinds: Opaque, values: Opaque) -> Opaque:
        arguments_list = _cgutils.unpack_tuple(builder, values[1])
        kind = ir.FunctionType(_I64, [_I64] * len(arguments_list))
        return builder.call(builder.inttoptr(values[0], kind.as_pointer()), arguments_list)

    return types.int64(types.int64, argument_types), generate


@_intrinsic
def prefetch(_typing: Opaque, array: Opaque, index: Opaque) -> Opaque:
    """Prefetch the cache line of an element. The index need not be valid, as nothing is accessed."""
    signature = types.void(array, types.int64)

    def generate(context: Opaque, builder: Opaque, kinds: Opaque, values: Opaque) -> Opaque:
        address = element(context, builder, kinds.args[0], values[0], values[1])
        kind = ir.FunctionType(ir.VoidType(), [_I8.as_pointer(), _I32, _I32, _I32])
        function = _cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(function, [address, _I32(0), _I32(3), _I32(1)])
        return context.get_dummy_value()

    return signature, generate


@njit(nogil=True, cache=True)
def copy_bytes(source: ByteArray, start: Integer, target: ByteArray, at: Integer, count: Integer) -> None:
    """Copy `count` bytes between arrays that do not overlap; both ranges must exist."""
    if count > 0:
        if CHECKED:
            target[at + count - 1] = source[start + count - 1]
        _copy(target, np.uint64(at), source, np.uint64(start), np.uint64(count))


@njit(nogil=True, cache=True)
def shift_up(array: IntArray, start: Integer, count: Integer, distance: Integer) -> None:
    """Move `count` elements up by `distance` elements; both ranges must exist."""
    if count > 0:
        if CHECKED:
            array[start + distance + count - 1] = array[start + distance + count - 1]
        _move(array, np.uint64(start + distance), array, np.uint64(start), np.uint64(count))
