"""CRC-32C over ranges of arrays, for kernels that process the checksums of many blocks and batches.

Processors with SSE 4.2 have an instruction for eight bytes. numba's cache is separate for each set of
processor features, so compiled code never meets a processor without it. Elsewhere, tables for eight bytes at
a time are used (M. Kounavis and F. Berry, "A systematic approach to building high performance software-based
CRC generators", 2005). The library `crc32c` is faster for long data, and costs a call for each range.
"""

# ruff: noqa: ARG001 -- an intrinsic's parameters are types; its arguments come as a list

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from llvmlite import binding, ir  # type: ignore[import-untyped]  # it has no types
from numba import njit, types
from numba.core import cgutils, config
from numba.extending import intrinsic

from object_format.kernels.hashing.checksums import byte_table
from object_format.kernels.runtime.intrinsics import CHECKED, Opaque, element

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import ByteArray, IntArray, Integer

_intrinsic: Opaque = intrinsic
_cgutils: Opaque = cgutils

_I64 = ir.IntType(64)
_MASK: Final = np.uint64(0xFFFFFFFF)
_WORD: Final = 8


def _has_instruction() -> bool:
    """Return True if compiled code may use the instruction of x86."""
    # With one of these settings, numba compiles for another processor than this one.
    if getattr(config, "CPU_NAME", None) or getattr(config, "CPU_FEATURES", None):
        return False
    if not binding.get_process_triple().startswith("x86_64"):
        return False
    return bool(binding.get_host_cpu_features().get("sse4.2"))


_HAS_INSTRUCTION: Final = _has_instruction()


@_intrinsic
def _by_instruction(_typing: Opaque, state: Opaque, data: Opaque, at: Opaque) -> Opaque:
    """Return the state after eight bytes, which must exist."""
    signature = types.uint64(types.uint64, data, types.uint64)

    def generate(context: Opaque, builder: Opaque, kinds: Opaque, values: Opaque) -> Opaque:
        address = element(context, builder, kinds.args[1], values[1], values[2])
        word = builder.load(builder.bitcast(address, _I64.as_pointer()), align=1)
        kind = ir.FunctionType(_I64, [_I64, _I64])
        function = _cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse42.crc32.64.64")
        return builder.call(function, [values[0], word])

    return signature, generate


def _word_tables() -> IntArray:
    """Return the effect of a byte of the state after 0 to 7 more zero bytes, at [bytes, value]."""
    tables = np.empty((_WORD, 256), np.uint64)
    tables[0] = byte_table()
    for row in range(1, _WORD):
        before = tables[row - 1]
        tables[row] = tables[0][(before & np.uint64(0xFF)).astype(np.intp)] ^ before >> np.uint64(8)
    return tables


_TABLES: Final = _word_tables()


@njit(nogil=True, cache=True)
def extend_by_tables(state: Integer, data: ByteArray, start: Integer, words: Integer) -> Integer:
    """Return the state after `words` times eight bytes from `start` on, without special instructions."""
    at = np.uint64(start)
    for _ in range(words):
        result = np.uint64(0)
        for byte in range(_WORD):
            value = np.uint64(data[at + np.uint64(byte)])
            if byte < 4:
                value ^= state >> np.uint64(8 * byte) & np.uint64(0xFF)
            result ^= _TABLES[_WORD - 1 - byte, value]
        state = result
        at += np.uint64(_WORD)
    return state


@njit(nogil=True, cache=True)
def extend_by_range(checksum: Integer, data: ByteArray, start: Integer, end: Integer) -> Integer:
    """Return the CRC-32C `checksum` after data[start:end], a range that must exist."""
    if CHECKED and end > start:
        _touched = data[start] ^ data[end - 1]
    state = np.uint64(checksum) ^ _MASK
    words = (np.int64(end) - np.int64(start)) >> 3
    at = np.uint64(start)
    if _HAS_INSTRUCTION:
        for _ in range(words):
            state = _by_instruction(state, data, at)
            at += np.uint64(_WORD)
    else:
        state = extend_by_tables(state, data, start, words)
        at += np.uint64(_WORD * words)
    while at < np.uint64(end):
        state = _TABLES[0, (state ^ np.uint64(data[at])) & np.uint64(0xFF)] ^ state >> np.uint64(8)
        at += np.uint64(1)
    return np.int64(state ^ _MASK)
