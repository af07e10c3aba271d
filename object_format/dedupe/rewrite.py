"""Options and results of pass 2."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from object_format.codecs.codec import Codec
from object_format.kernels.batches.layout import BATCH_OVERHEAD
from object_format.kernels.dedupe.merge import MAX_MERGED_BYTES, MAX_MERGED_COMPRESSED_BYTES

FRAME_OVERHEAD: Final = 512
"""More bytes than any codec adds around compressed data."""

GROWTH_SHIFT: Final = 7
"""Incompressible data grows by less than one byte in 2^7."""

_MAX_MS: Final = (1 << 63) - 1


def delete_horizon(now_ms: int, delete_retention_ms: int) -> int | None:
    """Return the time from which tombstones that become clean at `now_ms` may be deleted; None for never.

    The result is also None if the sum exceeds the range of timestamps. `delete.retention.ms` of
    9223372036854775807, which keeps tombstones forever, therefore leaves their batches unchanged, and a
    shorter retention applies to them later.
    """
    horizon_ms = now_ms + delete_retention_ms
    return horizon_ms if horizon_ms <= _MAX_MS else None


class RewriteOptions(NamedTuple):
    """How pass 2 writes the survivors; see `filter_batches`."""

    delete_horizon_ms: int | None
    merge: bool = True
    merged_codec: Codec | None = None
    max_batch_bytes: int | None = None

    @property
    def horizon(self) -> int:
        """`delete_horizon_ms` as kernels take it, any number if it is None."""
        return self.delete_horizon_ms or 0

    @property
    def merge_limits(self) -> tuple[int, int]:
        """Maximum bytes of records in merged batches, for uncompressed and for compressed source batches.

        Compression may increase the size slightly. The limits ensure that the result does not exceed
        `max_batch_bytes`.
        """
        uncompressed_limit, compressed_limit = MAX_MERGED_BYTES, MAX_MERGED_COMPRESSED_BYTES
        if self.merged_codec is Codec.NONE:
            compressed_limit = uncompressed_limit
        if self.max_batch_bytes is None:
            return uncompressed_limit, compressed_limit
        max_records_bytes = self.max_batch_bytes - BATCH_OVERHEAD
        max_uncompressed_bytes = max_records_bytes - (max_records_bytes >> GROWTH_SHIFT) - FRAME_OVERHEAD
        return (
            min(uncompressed_limit, max_uncompressed_bytes if self.merged_codec else max_records_bytes),
            min(
                compressed_limit,
                max_records_bytes if self.merged_codec is Codec.NONE else max_uncompressed_bytes,
            ),
        )


_NO_TOTALS: Final = np.array([0, 0, np.iinfo(np.int64).max, np.iinfo(np.int64).min])
"""Number of batches and records, lowest and highest timestamp."""


class FilteredBatches(NamedTuple):
    """Result of pass 2: batches with absolute offsets, in order, ready to be written.

    `max_timestamp` is exact. `min_timestamp` is exact for opened batches. For a batch that was copied
    unopened, it is the timestamp of the first record, or the max timestamp if the header does not contain the
    former. Both are None without records. `merged_bytes_saved` is the number of bytes that merging saved, an
    estimate if merged batches lost records. `buffer_bytes` is the largest amount of memory that was open or
    written at a time.
    """

    buffers: tuple[memoryview, ...]
    size: int
    batch_count: int
    record_count: int
    min_timestamp: int | None
    max_timestamp: int | None
    merged_bytes_saved: int
    buffer_bytes: int


def new_totals() -> npt.NDArray[np.int64]:
    """Return the totals before the first batch."""
    return _NO_TOTALS.copy()


def sum_up_filtered(
    buffers: tuple[memoryview, ...], totals: npt.NDArray[np.int64], saved: int, buffer_bytes: int
) -> FilteredBatches:
    """Return the result for `buffers` with these totals."""
    batches, records, lowest, highest = totals.tolist()
    return FilteredBatches(
        buffers=buffers,
        size=sum(map(len, buffers)),
        batch_count=batches,
        record_count=records,
        min_timestamp=lowest if records else None,
        max_timestamp=highest if records else None,
        merged_bytes_saved=saved,
        buffer_bytes=buffer_bytes,
    )
