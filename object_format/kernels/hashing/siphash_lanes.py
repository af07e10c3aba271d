"""SipHash of eight keys at once, one per lane of a vector register; same steps as `siphash`.

Nothing is checked here; `fingerprints.fingerprint_keys` does that.
"""

# ruff: noqa: ARG001 -- an intrinsic's parameters are types; its arguments come as a list

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir  # type: ignore[import-untyped]  # it has no types
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from object_format.kernels.hashing.siphash import FINAL_ROUNDS, WORD_ROUNDS
from object_format.kernels.runtime.intrinsics import element

if TYPE_CHECKING:
    from collections.abc import Callable

    from object_format.kernels.runtime.intrinsics import Opaque

_intrinsic: Opaque = intrinsic
_cgutils: Opaque = cgutils

LANES = 8
"""Number of keys hashed at once: 64-bit lanes of the widest registers."""

_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
_VECTOR = ir.VectorType(_I64, LANES)
_HALVES = ir.VectorType(_I32, 2 * LANES)
_CONSTANTS = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


def _all(number: int) -> Opaque:
    return _VECTOR([number] * LANES)


def _splat(builder: Opaque, scalar: Opaque) -> Opaque:
    return _gathered(builder, [scalar] * LANES)


def _gathered(builder: Opaque, scalars: list[Opaque]) -> Opaque:
    vector = ir.Constant(_VECTOR, ir.Undefined)
    for lane, scalar in enumerate(scalars):
        vector = builder.insert_element(vector, scalar, _I32(lane))
    return vector


def _rotate(builder: Opaque, value: Opaque, bits: int) -> Opaque:
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    function = _cgutils.get_or_insert_function(builder.module, kind, f"llvm.fshl.v{LANES}i64")
    return builder.call(function, [value, value, _all(bits)])


def _rounds(builder: Opaque, state: list[Opaque], count: int) -> list[Opaque]:
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


def _absorb(builder: Opaque, state: list[Opaque], word: Opaque) -> list[Opaque]:
    v0, v1, v2, v3 = state
    v0, v1, v2, v3 = _rounds(builder, [v0, v1, v2, builder.xor(v3, word)], WORD_ROUNDS)
    return [builder.xor(v0, word), v1, v2, v3]


def _begin(builder: Opaque, k0: Opaque, k1: Opaque) -> list[Opaque]:
    """Return the four state variables in memory, as loops in LLVM need them."""
    keys = [_splat(builder, each) for each in (k0, k1)]
    state = []
    for i, constant in enumerate(_CONSTANTS):
        variable = _cgutils.alloca_once(builder, _VECTOR)
        builder.store(builder.xor(keys[i % 2], _all(constant ^ (0xEE if i == 1 else 0))), variable)
        state.append(variable)
    return state


def _finish(builder: Opaque, state: list[Opaque]) -> list[Opaque]:
    """Return the two halves of the hashes."""
    v0, v1, v2, v3 = state
    v2 = builder.xor(v2, _all(0xEE))
    halves = []
    for half in range(2):
        if half:
            v1 = builder.xor(v1, _all(0xDD))
        v0, v1, v2, v3 = _rounds(builder, [v0, v1, v2, v3], FINAL_ROUNDS)
        halves.append(builder.xor(builder.xor(v0, v1), builder.xor(v2, v3)))
    return halves


def _fingerprints(builder: Opaque, halves: list[Opaque]) -> Opaque:
    """Return three 32-bit words per hash, concatenated; the first word is never 0."""
    first, second = (builder.bitcast(half, _HALVES) for half in halves)
    ones = _HALVES([1, 0] * LANES)
    first = builder.select(builder.icmp_unsigned("<", first, ones), ones, first)
    positions = [
        position for lane in range(LANES) for position in (2 * lane, 2 * lane + 1, 2 * LANES + 2 * lane)
    ]
    return builder.shuffle_vector(first, second, ir.VectorType(_I32, len(positions))(positions))


def _generate(context: Opaque, builder: Opaque, kinds: Opaque, values: Opaque) -> Opaque:
    data, starts, lengths, first, min_words, max_words, k0, k1, words, at = values

    def number(kind: int, array: Opaque, lane: int) -> Opaque:
        position = element(context, builder, kinds.args[kind], array, builder.add(first, _I64(lane)))
        return builder.load(builder.bitcast(position, _I64.as_pointer()))

    def loaded(offsets: list[Opaque]) -> Opaque:
        """Eight bytes of each key."""
        positions = (element(context, builder, kinds.args[0], data, offset) for offset in offsets)
        return _gathered(
            builder,
            [builder.load(builder.bitcast(position, _I64.as_pointer()), align=1) for position in positions],
        )

    begins = [number(1, starts, lane) for lane in range(LANES)]
    sizes = [number(2, lengths, lane) for lane in range(LANES)]
    tails = [builder.sub(builder.add(*pair), _I64(8)) for pair in zip(begins, sizes, strict=True)]
    state = _begin(builder, k0, k1)

    def absorb(first: Opaque, end: Opaque, word: Callable[[Opaque], tuple[Opaque, Opaque]]) -> None:
        with _cgutils.for_range(builder, builder.sub(end, first), intp=_I64) as loop:
            before = [builder.load(each) for each in state]
            bytes_, taken = word(builder.add(first, loop.index))
            after = _absorb(builder, before, bytes_)
            for variable, old, new in zip(state, before, after, strict=True):
                builder.store(new if taken is None else builder.select(taken, new, old), variable)

    def common_word(index: Opaque) -> tuple[Opaque, Opaque]:
        offset = builder.shl(index, _I64(3))
        return loaded([builder.add(begin, offset) for begin in begins]), None

    def partial_word(index: Opaque) -> tuple[Opaque, Opaque]:
        offset = builder.shl(index, _I64(3))
        positions = []
        for begin, tail in zip(begins, tails, strict=True):
            position = builder.add(begin, offset)
            positions.append(builder.select(builder.icmp_signed("<=", position, tail), position, tail))
        word_counts = builder.lshr(_gathered(builder, sizes), _all(3))
        return loaded(positions), builder.icmp_unsigned("<", _splat(builder, index), word_counts)

    absorb(_I64(0), min_words, common_word)
    absorb(min_words, max_words, partial_word)
    size = _gathered(builder, sizes)
    tail_bits = builder.shl(builder.and_(size, _all(7)), _all(3))
    tail = builder.lshr(builder.lshr(loaded(tails), builder.sub(_all(56), tail_bits)), _all(8))
    tail = builder.or_(tail, builder.shl(size, _all(56)))
    halves = _finish(builder, _absorb(builder, [builder.load(each) for each in state], tail))
    fingerprints = _fingerprints(builder, halves)
    target = element(context, builder, kinds.args[8], words, at)
    builder.store(fingerprints, builder.bitcast(target, fingerprints.type.as_pointer()), align=4)
    return context.get_dummy_value()


@_intrinsic
def fingerprint_lanes(
    _typing: Opaque,
    data: Opaque,
    starts: Opaque,
    lengths: Opaque,
    first: Opaque,
    min_words: Opaque,
    max_words: Opaque,
    k0: Opaque,
    k1: Opaque,
    words: Opaque,
    at: Opaque,
) -> Opaque:
    """Write the fingerprints of `LANES` keys to `words` from index `at` on.

    int64 `starts` and `lengths` from `first` on are the locations of the keys in `data`; eight bytes must
    exist before the end of each key. Each key has at least `min_words` words of eight bytes, and at most
    `max_words`.
    """
    i64, u64 = types.int64, types.uint64
    signature = types.void(data, starts, lengths, i64, i64, i64, u64, u64, words, i64)
    return signature, _generate
