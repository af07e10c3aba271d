"""Generates the record batches of a partition for the dedupe benchmark, at memory speed.

Keys have 36 characters like those of a UUID, and values are slices of synthetic JSON. As in ingestion files,
a section has at most 8 MiB, is divided into blocks, and has relative base offsets. Checksums of batches are
0: neither pass reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from numba import njit

from object_format.buffers import readable
from object_format.codecs.codec import Codec, compress
from object_format.kernels.batches.layout import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    BATCH_LENGTH,
    BATCH_OVERHEAD,
    LAST_OFFSET_DELTA,
    LENGTH_OVERHEAD,
    MAGIC,
    MAX_TIMESTAMP,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    RECORD_COUNT,
)
from object_format.kernels.runtime.intrinsics import copy_bytes
from object_format.kernels.runtime.primitives import store, varlong_size, write_varlong

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import ByteArray, IntArray, Integer

KEY_BYTES = 36
_SECTION_BYTES = 8 << 20
_BLOCK_BYTES = 256 << 10
_TIME = 1_700_000_000_000
_MAX_RECORD = 2 + KEY_BYTES + 24
_POOL_BYTES = 4 << 20


@dataclass(frozen=True)
class Section:
    """Blocks of complete batches, and the difference to absolute offsets."""

    blocks: tuple[memoryview, ...]
    shift: int


@dataclass(frozen=True)
class Case:
    """Parameters of a partition."""

    keys: int
    records: int
    value_bytes: int = 100
    batch_records: int = 500
    codec: Codec = Codec.NONE
    zipf: bool = False

    @property
    def name(self) -> str:
        """Description for people."""
        codec = "uncompressed" if self.codec is Codec.NONE else self.codec.name.lower()
        keys = f"{self.keys // 1_000_000} M keys" if self.keys >= 1_000_000 else f"{self.keys} keys"
        spread = "zipf" if self.zipf else "uniform"
        return f"{codec}, {self.value_bytes}-byte values, {keys} {spread}, batches of {self.batch_records}"


def draw_keys(case: Case, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return the key number of each record.

    If uniform, each key occurs at least once if there are enough records.
    """
    if case.zipf:
        return (case.keys ** rng.random(case.records)).astype(np.int64) - 1  # exponent 1
    ids = np.arange(case.records, dtype=np.int64)
    ids[case.keys :] = rng.integers(0, case.keys, max(case.records - case.keys, 0))
    rng.shuffle(ids)
    return ids


@njit(nogil=True, cache=True)
def mix(value: Integer) -> Integer:
    """Return a bijection of 64 bits (splitmix64)."""
    value = np.uint64(value) + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@njit(nogil=True, cache=True)
def write_key(out: ByteArray, at: Integer, number: Integer) -> None:
    """Write 36 characters: the hexadecimal digits of 128 bits, with four hyphens."""
    bits = mix(number)
    digits = 0
    for i in range(KEY_BYTES):
        if i == 8 or i == 13 or i == 18 or i == 23:  # noqa: PLR1714 -- numba would build a set each time
            out[at + i] = 45
            continue
        if digits == 16:
            bits = mix(bits)
        digit = np.uint8(bits >> np.uint64(4 * (digits & 15)) & np.uint64(15))
        out[at + i] = digit + (np.uint8(48) if digit < 10 else np.uint8(87))
        digits += 1


@njit(nogil=True, cache=True)
def write_batch(
    out: ByteArray, at: Integer, base: Integer, ids: IntArray, value_bytes: Integer, pool: ByteArray
) -> Integer:
    """Write one batch with the keys `ids`; return the position after it."""
    start = at
    out[at : at + BATCH_OVERHEAD] = 0
    at += BATCH_OVERHEAD
    for i in range(ids.size):
        body = 4 + varlong_size(i) + varlong_size(value_bytes) + KEY_BYTES + value_bytes
        at = write_varlong(out, at, body)
        out[at] = 0
        out[at + 1] = 0
        at = write_varlong(out, at + 2, i)
        at = write_varlong(out, at, KEY_BYTES)
        write_key(out, at, ids[i])
        at = write_varlong(out, at + KEY_BYTES, value_bytes)
        position = np.int64(mix(base + i) % np.uint64(pool.size - value_bytes))
        copy_bytes(pool, position, out, at, value_bytes)
        out[at + value_bytes] = 0
        at += value_bytes + 1
    store(out, start + BASE_OFFSET, base, 8)
    store(out, start + BATCH_LENGTH, at - start - LENGTH_OVERHEAD, 4)
    out[start + MAGIC] = 2
    store(out, start + LAST_OFFSET_DELTA, ids.size - 1, 4)
    store(out, start + BASE_TIMESTAMP, _TIME, 8)
    store(out, start + MAX_TIMESTAMP, _TIME, 8)
    out[start + PRODUCER_ID : start + PRODUCER_EPOCH + 6] = 255
    store(out, start + RECORD_COUNT, ids.size, 4)
    return at


@njit(nogil=True, cache=True)
def write_batches(
    out: ByteArray,
    ids: IntArray,
    batch_records: Integer,
    value_bytes: Integer,
    pool: ByteArray,
    ends: IntArray,
) -> None:
    """Write consecutive batches; `ends` gets their ends."""
    at = 0
    for i in range(ends.size):
        first = i * batch_records
        at = write_batch(out, at, first, ids[first : first + batch_records], value_bytes, pool)
        ends[i] = at


def make_pool(rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Return text to take values from: JSON with varying draws and words."""
    words = np.array(["shipped", "pending", "returned", "Berlin", "Lagos", "Osaka", "Lima", "Oslo"])
    rows = _POOL_BYTES // 80
    draws = rng.integers(0, 1_000_000, (rows, 3)).tolist()
    chosen = words[rng.integers(0, words.size, (rows, 2))].tolist()
    text = "".join(
        f'{{"order":{order},"state":"{state}","city":"{city}",'
        f'"amount":{amount}.{cents % 100:02},"seq":{cents}}}'
        for (order, amount, cents), (state, city) in zip(draws, chosen, strict=True)
    )
    return np.frombuffer(text.encode(), np.uint8)


def make_sections(case: Case) -> list[Section]:
    """Yield the sections of the partition, oldest first."""
    rng = np.random.default_rng(1)
    ids = draw_keys(case, rng)
    pool = make_pool(rng)
    max_batch_bytes = BATCH_OVERHEAD + case.batch_records * (_MAX_RECORD + case.value_bytes)
    step = _SECTION_BYTES // max_batch_bytes * case.batch_records
    sections = []
    for first in range(0, case.records, step):
        part = ids[first : first + step]
        ends = np.empty(-(-part.size // case.batch_records), np.int64)
        out = np.empty(ends.size * max_batch_bytes, np.uint8)
        write_batches(out, part, case.batch_records, case.value_bytes, pool, ends)
        if case.codec is not Codec.NONE:
            out, ends = _compressed(out, ends, case.codec)
        sections.append(Section(_blocks(out[: ends[-1]].copy(), ends), first))
    return sections


def _compressed(
    data: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64], codec: Codec
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    parts: list[bytes] = []
    start = 0
    for end in ends.tolist():
        header = bytearray(data[start : start + BATCH_OVERHEAD].data)
        records = compress(codec, data[start + BATCH_OVERHEAD : end].data)
        size = BATCH_OVERHEAD + len(records)
        header[BATCH_LENGTH : BATCH_LENGTH + 4] = (size - LENGTH_OVERHEAD).to_bytes(4, "big")
        header[ATTRIBUTES + 1] = codec
        parts.append(bytes(header) + records)
        start = end
    return readable(b"".join(parts)), np.cumsum([len(part) for part in parts])


def _blocks(data: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]) -> tuple[memoryview, ...]:
    blocks = []
    start = 0
    view = memoryview(data.data)
    for end, behind in zip(ends.tolist(), [*ends[1:].tolist(), 1 << 62], strict=True):
        if behind - start > _BLOCK_BYTES:
            blocks.append(view[start:end])
            start = end
    return tuple(blocks)
