"""What pass 2 leaves of batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

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
