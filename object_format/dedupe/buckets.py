"""Pass 1 in pieces: fingerprints cut into buckets by some of their bits, and the survivors of each bucket.

All records of a key fall into the same bucket, so buckets are judged apart from each other, anywhere, each
with a key table of its own. A bucket travels as *blobs*: the records that one chunk of a partition has in it,
as columns. Blobs of a bucket never overlap by offset, whoever cut them, as long as each cutter is fed
stretches of the log that no other has; that is all the order that newest-first judging needs.

A blob of n records, little-endian::

    8 bytes     base: the offset that places count from
    12 n bytes  fingerprints, three 32-bit words each
    4 n bytes   places: (offset - base) << 4 | flags, rising
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from bedrock.errors import CorruptDataError, FatalError, InvalidInputError
from object_format.bitmaps import bitmap_of
from object_format.buffers import Bytes, readable
from object_format.dedupe.survivors import Survivors
from object_format.errors import MalformedBatchError
from object_format.kernels.buckets import FLAG_BITS, MOST_SPAN, cut_into_buckets
from object_format.kernels.fingerprints import WORDS, fingerprint_rows
from object_format.kernels.key_table import (
    COUNT_INVALID,
    COUNT_KEYS,
    COUNT_OUTSIDE,
    COUNT_TOMBSTONES_DROPPED,
    KEEP,
    KEEP_TOMBSTONE,
    collect,
)
from object_format.kernels.layout import CODEC_MASK
from object_format.payloads import Scratch, open_batches
from object_format.record_batch import BatchRows, scan_rising_batches

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from typing_extensions import Buffer

    from object_format.dedupe.key_table import KeyTable

CHUNK_RECORDS: Final = 1 << 20
"""Records that a cutter collects before it cuts: 38 MB of columns, cut and uncut."""

BLOB_RECORDS: Final = 1 << 16
"""Records of one blob at most: 1 MiB."""

MOST_BITS: Final = 16
RECORD_BYTES: Final = 16
_BASE: Final = struct.Struct("<q")
_SEED: Final = struct.Struct("<QQ")


class Blob(NamedTuple):
    """Records of one bucket. `first_offset` is that of the first; blobs are judged from the highest down."""

    bucket: int
    first_offset: int
    data: bytes


class BucketCutter:
    """Cuts what it is fed of one partition, oldest first, into blobs of 2^`bits` buckets.

    `seed` and `now_ms` are those of `SurvivorFinder`. Blobs come out of `feed` when `chunk_records` are
    together, and out of `flush`, which also ends a stretch of the log that lies side by side.
    """

    def __init__(self, seed: bytes, *, bits: int, now_ms: int, chunk_records: int = CHUNK_RECORDS) -> None:
        if len(seed) != _SEED.size:
            raise InvalidInputError(f"a fingerprint seed has {_SEED.size} bytes, not {len(seed)}")
        if not 0 <= bits <= MOST_BITS:
            raise InvalidInputError(f"{bits} leading bits are not in 0..{MOST_BITS}")
        k0, k1 = _SEED.unpack(seed)
        self._keys = np.uint64(k0), np.uint64(k1)
        self._bits = bits
        self._scratch = Scratch()
        self._now_ms = now_ms
        self._ends = np.empty(1 << bits, np.int64)
        self._words = np.empty(chunk_records * WORDS, np.uint32)
        self._offsets = np.empty(chunk_records, np.int64)
        self._flags = np.empty(chunk_records, np.uint8)
        self._count = 0
        self._next_offset = 0
        self.records = 0

    @property
    def nbytes(self) -> int:
        """What is held, with the columns that a cut makes."""
        return self._offsets.size * (4 * WORDS + 8 + 1 + RECORD_BYTES)

    def feed(self, batches: Buffer, *, offset_shift: int) -> Iterator[Blob]:
        """The next whole batches, in the order of their offsets, else MalformedBatchError."""
        array = readable(batches)
        rows, self._next_offset = scan_rising_batches(array, offset_shift, self._next_offset)
        for opened, run in open_batches(array, rows, self._scratch):
            yield from self._fingerprint(opened, run, offset_shift)

    def flush(self) -> Iterator[Blob]:
        """What is left; a stretch that is fed next may lie anywhere behind this one."""
        done = 0
        while done < self._count:
            done = yield from self._cut(done)
        self.records += self._count
        self._count = 0

    def _fingerprint(self, data: Bytes, rows: BatchRows, offset_shift: int) -> Iterator[Blob]:
        cursor = np.zeros(4, np.int64)
        while True:
            fault, position, self._count = fingerprint_rows(
                data,
                rows,
                cursor,
                offset_shift,
                *self._keys,
                self._now_ms,
                self._words,
                self._offsets,
                self._flags,
                self._count,
            )
            if fault:
                row = rows[cursor[0]]
                compressed = int(row["attributes"]) & CODEC_MASK
                raise MalformedBatchError.at(fault, int(row["position"]) if compressed else position)
            if cursor[0] == rows.size:
                return
            yield from self.flush()

    def _cut(self, start: int) -> Generator[Blob, None, int]:
        """Blobs of as many records from `start` on as places can tell apart; returns where they end."""
        offsets = self._offsets[start : self._count]
        count = int(np.searchsorted(offsets, offsets[0] + MOST_SPAN))
        words = np.empty(count * WORDS, np.uint32)
        places = np.empty(count, np.uint32)
        cut_into_buckets(
            self._words[start * WORDS :],
            offsets,
            self._flags[start:],
            count,
            self._bits,
            self._ends,
            words,
            places,
        )
        base = int(offsets[0])
        begin = 0
        for bucket, end in enumerate(self._ends.tolist()):
            for first in range(begin, end, BLOB_RECORDS):
                last = min(first + BLOB_RECORDS, end)
                data = b"".join(
                    (_BASE.pack(base), words[first * WORDS : last * WORDS].data, places[first:last].data)
                )
                yield Blob(bucket, base + (int(places[first]) >> FLAG_BITS), data)
            begin = end
        return start + count


class BucketJudge:
    """Finds the survivors of one bucket of one partition; the table is cleared first.

    `drop_tombstones` as `SurvivorFinder.reaches_log_start`; `expected_keys` as there.
    """

    def __init__(self, table: KeyTable, *, reaches_log_start: bool, expected_keys: int | None = None) -> None:
        self._table = table
        table.clear(expected_keys)
        self._reaches_log_start = reaches_log_start
        self._behind: int | None = None
        self._records = 0
        self._offsets = BitMap64()
        self._tombstones = BitMap64()

    def feed(self, data: Buffer) -> None:
        """The next older blob. Raises CorruptDataError for bytes that are none, FatalError out of order."""
        words, offsets, flags = read_blob(data)
        if self._behind is not None and offsets[-1] >= self._behind:
            raise FatalError(
                f"a blob reaches to offset {offsets[-1]}, where {self._behind} was judged before"
            )
        self._behind = int(offsets[0])
        count = offsets.size
        self._records += count
        verdicts = self._table.find_survivors(
            words, flags, count, newest_last=True, drop_tombstones=self._reaches_log_start
        )
        kept = np.empty(count, np.int64)
        self._offsets |= bitmap_of(kept[: collect(offsets, verdicts, count, KEEP, kept)])
        tombstones = collect(offsets, verdicts, count, KEEP_TOMBSTONE, kept)
        if tombstones:
            self._tombstones |= bitmap_of(kept[:tombstones])

    def finish(self) -> Survivors:
        """The answer, when every blob has been fed."""
        counts = self._table.counts
        return Survivors(
            offsets=self._offsets,
            tombstones=self._tombstones,
            records_in=self._records,
            keys=int(counts[COUNT_KEYS]),
            keys_outside_table=int(counts[COUNT_OUTSIDE]),
            tombstones_dropped=int(counts[COUNT_TOMBSTONES_DROPPED]),
            records_invalid=int(counts[COUNT_INVALID]),
            max_buffer_bytes=BLOB_RECORDS * RECORD_BYTES,
        )


def read_blob(
    data: Buffer,
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Fingerprints, offsets and flags of a blob's records; CorruptDataError when it is none."""
    view = memoryview(data)
    count, rest = divmod(view.nbytes - _BASE.size, RECORD_BYTES)
    if count < 1 or rest:
        raise CorruptDataError(f"{view.nbytes} bytes are no blob of fingerprints")
    (base,) = _BASE.unpack_from(view)
    numbers = np.frombuffer(view, np.uint32, offset=_BASE.size)
    places = numbers[count * WORDS :]
    offsets = base + (places >> FLAG_BITS).astype(np.int64)
    # A copy: the bytes are read-only and not aligned, and the kernel is compiled for neither.
    return numbers[: count * WORDS].copy(), offsets, (places & ((1 << FLAG_BITS) - 1)).astype(np.uint8)
