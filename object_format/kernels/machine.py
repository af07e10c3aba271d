"""What numba has no word for, said to LLVM: moving memory, prefetching, and hashing eight keys at once.

Nothing here checks anything: callers have. Where numba's bounds checking is on (NUMBA_BOUNDSCHECK), copies
touch the last byte of both ranges by an index first, so that it sees them too.
"""

# ruff: noqa: ARG001 -- an intrinsic's parameters are types; what it is called with comes as a list

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]  # it has no types
from numba import njit, types
from numba.core import cgutils, config
from numba.extending import intrinsic

if TYPE_CHECKING:
    from object_format.kernels.signatures import ByteArray, Integer, Numbers

Opaque: TypeAlias = Any
"""What numba and llvmlite hand around while they generate code; neither has types."""

_intrinsic: Opaque = intrinsic
_cgutils: Opaque = cgutils

LANES = 8
"""How many keys are hashed at once: as many 64-bit numbers as the widest registers hold."""

_CHECKED = bool(getattr(config, "BOUNDSCHECK", False))
_I8 = ir.IntType(8)
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
_VECTOR = ir.VectorType(_I64, LANES)
_SIP_CONSTANTS = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


def _element(context: Opaque, builder: Opaque, kind: Opaque, array: Opaque, index: Opaque) -> Opaque:
    """The address of an element of a one-dimensional array, as bytes."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), _I8.as_pointer())


@_intrinsic
def _move(
    _typing: Opaque, target: Opaque, at: Opaque, source: Opaque, start: Opaque, count: Opaque
) -> Opaque:
    """C's memmove, for `count` elements."""
    signature = types.void(target, types.uint64, source, types.uint64, types.uint64)
    width = target.dtype.bitwidth // 8

    def generate(context: Opaque, builder: Opaque, kinds: Opaque, values: Opaque) -> Opaque:
        goal = _element(context, builder, kinds.args[0], values[0], values[1])
        origin = _element(context, builder, kinds.args[2], values[2], values[3])
        _cgutils.raw_memmove(builder, goal, origin, values[4], width)
        return context.get_dummy_value()

    return signature, generate


@_intrinsic
def _copy(
    _typing: Opaque, target: Opaque, at: Opaque, source: Opaque, start: Opaque, count: Opaque
) -> Opaque:
    """C's memcpy, for `count` elements."""
    signature = types.void(target, types.uint64, source, types.uint64, types.uint64)
    width = target.dtype.bitwidth // 8

    def generate(context: Opaque, builder: Opaque, kinds: Opaque, values: Opaque) -> Opaque:
        goal = _element(context, builder, kinds.args[0], values[0], values[1])
        origin = _element(context, builder, kinds.args[2], values[2], values[3])
        _cgutils.raw_memcpy(builder, goal, origin, values[4], width)
        return context.get_dummy_value()

    return signature, generate


@_intrinsic
def borrowed(_typing: Opaque, array: Opaque) -> Opaque:
    """The same array, without numba's counting of references to it, which costs two atomic additions a call.

    Only for a kernel's own use of an argument: the caller holds that while the kernel runs.
    """

    def generate(context: Opaque, builder: Opaque, kinds: Opaque, values: Opaque) -> Opaque:
        struct = context.make_array(kinds.args[0])(context, builder, values[0])
        struct.meminfo = _cgutils.get_null_value(struct.meminfo.type)
        struct.parent = _cgutils.get_null_value(struct.parent.type)
        return struct._getvalue()  # noqa: SLF001 -- numba's own way

    return array(array), generate


@_intrinsic
def address_of(_typing: Opaque, array: Opaque, index: Opaque) -> Opaque:
    """The address of an element, which must exist where anything is read or written through it."""
    signature = types.int64(array, types.int64)

    def generate(context: Opaque, builder: Opaque, kinds: Opaque, values: Opaque) -> Opaque:
        return builder.ptrtoint(_element(context, builder, kinds.args[0], *values), _I64)

    return signature, generate


@_intrinsic
def call_c(_typing: Opaque, function: Opaque, arguments: Opaque) -> Opaque:
    """Call the C function at an address; its arguments and its result are all taken as 64-bit numbers."""
    numbers: Opaque = types.UniTuple(types.int64, len(arguments))  # type: ignore[no-untyped-call]

    def generate(_context: Opaque, builder: Opaque, _kinds: Opaque, values: Opaque) -> Opaque:
        given = _cgutils.unpack_tuple(builder, values[1])
        kind = ir.FunctionType(_I64, [_I64] * len(given))
        return builder.call(builder.inttoptr(values[0], kind.as_pointer()), given)

    return types.int64(types.int64, numbers), generate


@_intrinsic
def prefetch(_typing: Opaque, array: Opaque, index: Opaque) -> Opaque:
    """Ask for the cache line of an element that will be read soon. Any index will do: nothing is accessed."""
    signature = types.void(array, types.int64)

    def generate(context: Opaque, builder: Opaque, kinds: Opaque, values: Opaque) -> Opaque:
        address = _element(context, builder, kinds.args[0], values[0], values[1])
        kind = ir.FunctionType(ir.VoidType(), [_I8.as_pointer(), _I32, _I32, _I32])
        function = _cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(function, [address, _I32(0), _I32(3), _I32(1)])
        return context.get_dummy_value()

    return signature, generate


@njit(nogil=True, cache=True)
def copy_bytes(source: ByteArray, start: Integer, target: ByteArray, at: Integer, count: Integer) -> None:
    """Copy `count` bytes between arrays that do not overlap; both ranges exist."""
    if count > 0:
        if _CHECKED:
            target[at + count - 1] = source[start + count - 1]
        _copy(target, np.uint64(at), source, np.uint64(start), np.uint64(count))


@njit(nogil=True, cache=True)
def shift_up(array: Numbers, start: Integer, count: Integer, by: Integer) -> None:
    """Move `count` elements `by` places on; both ranges exist."""
    if count > 0:
        if _CHECKED:
            array[start + by + count - 1] = array[start + by + count - 1]
        _move(array, np.uint64(start + by), array, np.uint64(start), np.uint64(count))


def _rotate(builder: Opaque, value: Opaque, bits: int) -> Opaque:
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    function = _cgutils.get_or_insert_function(builder.module, kind, f"llvm.fshl.v{LANES}i64")
    return builder.call(function, [value, value, _VECTOR([bits] * LANES)])


def _sip_rounds(builder: Opaque, state: list[Opaque], count: int) -> list[Opaque]:
    v0, v1, v2, v3 = state
    for _ in range(count):
        v0 = builder.add(v0, v1)
        v1 = builder.xor(_rotate(builder, v1, 13), v0)
        v0 = _rotate(builder, v0, 32)
        v2 = builder.add(v2, v3)
        v3 = builder.xor(_rotate(builder, v3, 16), v2)
        v0 = builder.add(v0, v3)
        v3 = builder.xor(_rotate(builder, v3, 21), v0)
        v2 = builder.add(v2, v1)
        v1 = builder.xor(_rotate(builder, v1, 17), v2)
        v2 = _rotate(builder, v2, 32)
    return [v0, v1, v2, v3]


def _sip_absorb(builder: Opaque, state: list[Opaque], word: Opaque) -> list[Opaque]:
    v0, v1, v2, v3 = state
    v0, v1, v2, v3 = _sip_rounds(builder, [v0, v1, v2, builder.xor(v3, word)], 2)
    return [builder.xor(v0, word), v1, v2, v3]


def _splat(builder: Opaque, scalar: Opaque) -> Opaque:
    vector = ir.Constant(_VECTOR, ir.Undefined)
    for lane in range(LANES):
        vector = builder.insert_element(vector, scalar, _I32(lane))
    return vector


def _sip_generate(context: Opaque, builder: Opaque, kinds: Opaque, values: Opaque) -> Opaque:
    """The loop over words, with one lane a key; the same steps as `siphash.siphash128`."""
    data, starts, first, count, tails, k0, k1, out = values
    addresses = []
    for lane in range(LANES):
        place = _element(context, builder, kinds.args[1], starts, builder.add(first, _I64(lane)))
        start = builder.load(builder.bitcast(place, _I64.as_pointer()))
        addresses.append(_element(context, builder, kinds.args[0], data, start))
    keys = [_splat(builder, each) for each in (k0, k1)]
    state = []
    for i, constant in enumerate(_SIP_CONSTANTS):
        extra = 0xEE if i == 1 else 0
        variable = _cgutils.alloca_once(builder, _VECTOR)
        builder.store(builder.xor(keys[i % 2], _VECTOR([constant ^ extra] * LANES)), variable)
        state.append(variable)
    with _cgutils.for_range(builder, count, intp=_I64) as loop:
        word = ir.Constant(_VECTOR, ir.Undefined)
        at = builder.mul(loop.index, _I64(8))
        for lane, address in enumerate(addresses):
            source = builder.bitcast(builder.gep(address, [at]), _I64.as_pointer())
            word = builder.insert_element(word, builder.load(source, align=1), _I32(lane))
        absorbed = _sip_absorb(builder, [builder.load(each) for each in state], word)
        for variable, value in zip(state, absorbed, strict=True):
            builder.store(value, variable)
    origin = _element(context, builder, kinds.args[4], tails, _I64(0))
    tail = builder.load(builder.bitcast(origin, _VECTOR.as_pointer()), align=8)
    v0, v1, v2, v3 = _sip_absorb(builder, [builder.load(each) for each in state], tail)
    v2 = builder.xor(v2, _VECTOR([0xEE] * LANES))
    for half in range(2):
        if half:
            v1 = builder.xor(v1, _VECTOR([0xDD] * LANES))
        v0, v1, v2, v3 = _sip_rounds(builder, [v0, v1, v2, v3], 4)
        answer = builder.xor(builder.xor(v0, v1), builder.xor(v2, v3))
        goal = _element(context, builder, kinds.args[7], out, _I64(half * LANES))
        builder.store(answer, builder.bitcast(goal, _VECTOR.as_pointer()), align=8)
    return context.get_dummy_value()


@_intrinsic
def siphash128_lanes(
    _typing: Opaque,
    data: Opaque,
    starts: Opaque,
    first: Opaque,
    count: Opaque,
    tails: Opaque,
    k0: Opaque,
    k1: Opaque,
    out: Opaque,
) -> Opaque:
    """Hash `LANES` keys of `count` whole words each, which begin in `data` at starts[first] and on.

    `tails` is uint64[LANES]: the last word of each, with its length. `out` is uint64[2 * LANES] and takes
    first the lower, then the upper words of the hashes.
    """
    signature = types.void(data, starts, types.int64, types.int64, tails, types.uint64, types.uint64, out)
    return signature, _sip_generate
