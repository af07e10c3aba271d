"""SipHash-1-3 with 128 bits of output: a keyed hash whose collisions cannot be computed without the key.

Source: J.-P. Aumasson and D. J. Bernstein, "SipHash: a fast short-input PRF" (2012), and the 128-bit variant
of the reference implementation. The fewer rounds are those of the hash tables of Python and Rust. Without the
key, the best known collisions have a probability of 2^-167 (C. Dobraunig, F. Mendel and M. Schläffer,
"Differential Cryptanalysis of SipHash", 2014), far below that of equal fingerprints by chance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import ByteArray, Integer, Integers

WORD_ROUNDS = 1
FINAL_ROUNDS = 3
"""Rounds for each word of the input, and before each half of the output."""

_V0 = np.uint64(0x736F6D6570736575)
_V1 = np.uint64(0x646F72616E646F6D)
_V2 = np.uint64(0x6C7967656E657261)
_V3 = np.uint64(0x7465646279746573)
_EE = np.uint64(0xEE)
_DD = np.uint64(0xDD)


@njit(nogil=True, cache=True)
def load_word(data: ByteArray, at: Integer) -> Integer:
    """Load eight bytes as a little-endian integer; they must exist."""
    at = np.uint64(at)
    return (
        np.uint64(data[at])
        | np.uint64(data[at + np.uint64(1)]) << np.uint64(8)
        | np.uint64(data[at + np.uint64(2)]) << np.uint64(16)
        | np.uint64(data[at + np.uint64(3)]) << np.uint64(24)
        | np.uint64(data[at + np.uint64(4)]) << np.uint64(32)
        | np.uint64(data[at + np.uint64(5)]) << np.uint64(40)
        | np.uint64(data[at + np.uint64(6)]) << np.uint64(48)
        | np.uint64(data[at + np.uint64(7)]) << np.uint64(56)
    )


@njit(nogil=True, cache=True)
def rotate(value: Integer, bits: Integer) -> Integer:
    """Rotate 64 bits to the left."""
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@njit(nogil=True, cache=True)
def sip_round(v0: Integer, v1: Integer, v2: Integer, v3: Integer) -> Integers:
    """Compute one round of the permutation."""
    v0 += v1
    v1 = rotate(v1, 13) ^ v0
    v0 = rotate(v0, 32)
    v2 += v3
    v3 = rotate(v3, 16) ^ v2
    v0 += v3
    v3 = rotate(v3, 21) ^ v0
    v2 += v1
    v1 = rotate(v1, 17) ^ v2
    v2 = rotate(v2, 32)
    return v0, v1, v2, v3


@njit(nogil=True, cache=True)
def siphash128(data: ByteArray, start: Integer, length: Integer, k0: Integer, k1: Integer) -> Integers:
    """Return the hash of data[start : start + length] as two 64-bit words; the key is two words, too."""
    v0 = k0 ^ _V0
    v1 = k1 ^ _V1 ^ _EE
    v2 = k0 ^ _V2
    v3 = k1 ^ _V3
    at = start
    for _ in range(length >> 3):
        word = load_word(data, at)
        v3 ^= word
        for _ in range(WORD_ROUNDS):
            v0, v1, v2, v3 = sip_round(v0, v1, v2, v3)
        v0 ^= word
        at += 8
    word = np.uint64(length & 0xFF) << np.uint64(56)
    for i in range(length & 7):
        word |= np.uint64(data[np.uint64(at + i)]) << np.uint64(8 * i)
    v3 ^= word
    for _ in range(WORD_ROUNDS):
        v0, v1, v2, v3 = sip_round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= _EE
    for _ in range(FINAL_ROUNDS):
        v0, v1, v2, v3 = sip_round(v0, v1, v2, v3)
    first = v0 ^ v1 ^ v2 ^ v3
    v1 ^= _DD
    for _ in range(FINAL_ROUNDS):
        v0, v1, v2, v3 = sip_round(v0, v1, v2, v3)
    return first, v0 ^ v1 ^ v2 ^ v3
