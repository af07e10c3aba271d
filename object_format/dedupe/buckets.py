"""Pass 1 for partitions beyond one key table: fingerprints are distributed to buckets.

All records of a key belong to the same bucket, so each bucket can be processed separately, on any worker,
with a separate key table. Records are sent as *blobs*. A blob contains the records of one bucket from one
chunk of the partition, as columns. If splitters process disjoint ranges of the log, the blobs of a bucket do
not overlap in their offsets, and processing them newest first is correct.

A blob of n records, little-endian::

    8 bytes     base: the offset that packed offsets count from
    12 n bytes  fingerprints, three 32-bit words each
    4 n bytes   packed offsets: (offset - base) << 4 | flags, ascending
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from core.errors import CorruptDataError, FatalError, InvalidInputError
from object_format.buffers import readable
from object_format.dedupe.fingerprints import Columns, Fingerprinter
from object_format.dedupe.survivors import SurvivorCollector, Survivors
from object_format.kernels.dedupe.buckets import FLAG_BITS, MAX_BLOB_SPAN, split_into_buckets
from object_format.kernels.dedupe.fingerprints import WORDS

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from typing_extensions import Buffer

    from object_format.dedupe.key_table import KeyTable
    from object_format.record_batch.decompression import Scratch

CHUNK_RECORDS: Final = 1 << 20
"""Records that a splitter collects before it splits them: 38 MB of columns before and after."""

BLOB_RECORDS: Final = 1 << 16
"""Maximum number of records in a blob: 1 MiB."""

MAX_BUCKET_BITS: Final = 16
"""Maximum number of fingerprint bits that select a bucket."""
BLOB_RECORD_BYTES: Final = 16
"""Size of a record in a blob."""
_BASE: Final = struct.Struct("<q")


class Blob(NamedTuple):
    """Records of one bucket, in offset order.

    `first_offset` is the offset of the first record. Blobs of a bucket are processed from the highest
    `first_offset` to the lowest.
    """

    bucket: int
    first_offset: int
    data: bytes

    @property
    def records(self) -> int:
        """Number of records."""
        return (len(self.data) - _BASE.size) // BLOB_RECORD_BYTES


class BucketSplitter:
    """Splits the records of a partition, fed oldest first, into blobs of 2^`bits` buckets.

    `seed`, `now_ms` and `scratch` are those of `SurvivorFinder`. `feed` yields blobs after every
    `chunk_records` records. `flush` yields the remaining ones, and ends a contiguous range of the log.
    """

    def __init__(
        self,
        seed: bytes,
        *,
        bits: int,
        now_ms: int,
        chunk_records: int = CHUNK_RECORDS,
        scratch: Scratch | None = None,
    ) -> None:
        if not 0 <= bits <= MAX_BUCKET_BITS:
            raise InvalidInputError(f"{bits} leading bits are not in 0..{MAX_BUCKET_BITS}")
        self._fingerprinter = Fingerprinter(seed, now_ms=now_ms, scratch=scratch)
        self._bits = bits
        self._ends = np.empty(1 << bits, np.int64)
        self._columns = Columns(chunk_records)
        self.records = 0

    @property
    def nbytes(self) -> int:
        """Memory of the columns before and after a split, and of the ends of buckets."""
        return self._columns.nbytes + self._columns.offsets.size * BLOB_RECORD_BYTES + self._ends.nbytes

    @property
    def max_opened_bytes(self) -> int:
        """Size of the largest array that batches were decompressed to."""
        return self._fingerprinter.max_opened_bytes

    def feed(self, batches: Buffer, *, offset_shift: int) -> Iterator[Blob]:
        """Add complete batches in offset order. Raises MalformedBatchError."""
        array = readable(batches)
        found = self._fingerprinter.scan(array, offset_shift)
        for _full in self._fingerprinter.fill(self._columns, array, found, offset_shift=offset_shift):
            yield from self.flush()

    def flush(self) -> Iterator[Blob]:
        """Yield the remaining blobs. The next range may have any higher offsets."""
        done = 0
        while done < self._columns.count:
            done = yield from self._split(done)
        self.records += self._columns.count
        self._columns.count = 0

    def _split(self, start: int) -> Generator[Blob, None, int]:
        """Yield the blobs of a prefix of the records from `start` on, and return the end of that prefix.

        The prefix ends before the first offset that is too far from its base for a packed offset.
        """
        columns = self._columns
        offsets = columns.offsets[start : columns.count]
        count = int(np.searchsorted(offsets, offsets[0] + MAX_BLOB_SPAN))
        words = np.empty(count * WORDS, np.uint32)
        packed_offsets = np.empty(count, np.uint32)
        split_into_buckets(
            columns.words[start * WORDS :],
            offsets,
            columns.flags[start:],
            count,
            self._bits,
            self._ends,
            words,
            packed_offsets,
        )
        base = int(offsets[0])
        begin = 0
        for bucket, end in enumerate(self._ends.tolist()):
            for first in range(begin, end, BLOB_RECORDS):
                last = min(first + BLOB_RECORDS, end)
                data = b"".join(
                    (
                        _BASE.pack(base),
                        words[first * WORDS : last * WORDS].data,
                        packed_offsets[first:last].data,
                    )
                )
                yield Blob(bucket, base + (int(packed_offsets[first]) >> FLAG_BITS), data)
            begin = end
        return start + count


class BucketSurvivorFinder:
    """Finds the survivors of one bucket of one partition. The table is cleared first.

    `reaches_log_start` and `expected_keys` are those of `SurvivorFinder`.
    """

    def __init__(self, table: KeyTable, *, reaches_log_start: bool, expected_keys: int | None = None) -> None:
        self._collector = SurvivorCollector(table, expected_keys=expected_keys)
        self._reaches_log_start = reaches_log_start
        self._decided_from: int | None = None

    def feed(self, data: Buffer) -> int:
        """Process the next older blob; return its number of records.

        Raises CorruptDataError if the bytes are not a blob, and FatalError if blobs are out of order.
        """
        words, offsets, flags = read_blob(data)
        if self._decided_from is not None and offsets[-1] >= self._decided_from:
            raise FatalError(
                f"a blob reaches offset {offsets[-1]}, but offset {self._decided_from} was processed before"
            )
        self._decided_from = int(offsets[0])
        self._collector.decide(
            words,
            offsets,
            flags,
            offsets.size,
            newest_last=True,
            drop_tombstones=self._reaches_log_start,
        )
        return int(offsets.size)

    def finish(self) -> Survivors:
        """Return the survivors after the last blob."""
        return self._collector.finish(max_buffer_bytes=BLOB_RECORDS * BLOB_RECORD_BYTES)


def read_blob(
    data: Buffer,
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return the fingerprints, offsets and flags of a blob. Raises CorruptDataError if it is not one."""
    view = memoryview(data)
    count, remainder = divmod(view.nbytes - _BASE.size, BLOB_RECORD_BYTES)
    if count < 1 or remainder:
        raise CorruptDataError(f"{view.nbytes} bytes are not a blob of fingerprints")
    (base,) = _BASE.unpack_from(view)
    values = np.frombuffer(view, np.uint32, offset=_BASE.size)
    packed_offsets = values[count * WORDS :]
    offsets = base + (packed_offsets >> FLAG_BITS).astype(np.int64)
    # Copied because the bytes are read-only and unaligned; the kernel is compiled for neither.
    return (
        values[: count * WORDS].copy(),
        offsets,
        (packed_offsets & ((1 << FLAG_BITS) - 1)).astype(np.uint8),
    )
