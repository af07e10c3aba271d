"""How pass 2 writes what is left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from object_format.codecs.codec import Codec
from object_format.kernels.batches.layout import BATCH_OVERHEAD
from object_format.kernels.dedupe.merge import MAX_MERGED_BYTES, MAX_MERGED_COMPRESSED_BYTES

FRAME_OVERHEAD: Final = 512
"""More than any codec puts around what it compresses."""

GROWTH_SHIFT: Final = 7
"""What does not compress grows by less than one byte in 2^7."""

_MAX_MS: Final = (1 << 63) - 1


def delete_horizon(now_ms: int, delete_retention_ms: int) -> int | None:
    """From when on tombstones may go that became clean at `now_ms`; None for never.

    A sum that no timestamp holds is never: what keeps tombstones for ever (`delete.retention.ms` of
    9223372036854775807) leaves their batches as they are, and a shorter retention finds them later.
    """
    horizon_ms = now_ms + delete_retention_ms
    return horizon_ms if horizon_ms <= _MAX_MS else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteOptions:
    """How survivors are written: as `filter_batches` says."""

    delete_horizon_ms: int | None
    merge: bool = True
    merged_codec: Codec | None = None
    max_batch_bytes: int | None = None

    @property
    def merge_limits(self) -> tuple[int, int]:
        """How many bytes of records merged batches get: of those that were not compressed, and that were.

        What is compressed may come to a little more, and then is within `max_batch_bytes` all the same.
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
"""Batches, records, and the lowest and highest timestamp of none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteredBatches:
    """Batches with absolute offsets, ready to be written, in order.

    `max_timestamp` is exact. `min_timestamp` is exact for batches that were opened; for one copied unopened,
    it is that of its first record, or its max timestamp where the header does not tell the first. Both are
    None when no record is left. `merged_bytes_saved` is what merging saved, an estimate where
    merged batches lost records. `buffer_bytes` is the most that was open, or written, at a time.
    """

    buffers: tuple[memoryview, ...]
    size: int
    batch_count: int
    record_count: int
    min_timestamp: int | None
    max_timestamp: int | None
    merged_bytes_saved: int = 0
    buffer_bytes: int = 0


def new_totals() -> npt.NDArray[np.int64]:
    """The totals of no batch."""
    return _NO_TOTALS.copy()


def sum_up_filtered(
    buffers: tuple[memoryview, ...], totals: npt.NDArray[np.int64], saved: int, buffer_bytes: int
) -> FilteredBatches:
    """What `buffers` are, of which `totals` were kept."""
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
