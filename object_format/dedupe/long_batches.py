"""Pass 2 for one batch with very many records: memory per record is needed for the result only.

The survivors are processed in chunks of offsets, twice. The first run computes the size of the result, so
that no more memory is allocated. The result is the same as that of `kernels.dedupe.filter` for the whole
batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from object_format.codecs.codec import MAX_DECOMPRESSED_BATCH_BYTES
from object_format.errors import Fault, MalformedBatchError
from object_format.kernels.batches.layout import BATCH_OVERHEAD, CODEC_MASK
from object_format.kernels.dedupe.long_batches import filter_chunk, measure_chunk, write_chunked_header

if TYPE_CHECKING:
    import numpy.typing as npt

    from object_format.buffers import Bytes
    from object_format.offset_set import ArrayWindow, SetWindow
    from object_format.record_batch.headers import BatchRows

CHUNK_OFFSETS: Final = 1 << 18
"""Offsets per chunk; their survivors take up to 2 MiB."""

_INT64: Final = np.iinfo(np.int64)


class _OffsetChunk(NamedTuple):
    """Records of a batch in an offset range, and their position."""

    first_offset: int
    last_offset: int
    start: int
    end: int
    record_count: int


class LongBatch:
    """One opened batch, rows[0], whose records are in `records`, and its surviving offsets.

    With `horizon`, its tombstones get this delete horizon. Exception: if the batch is compressed and would
    exceed the size limit of a batch, its tombstones wait until a later job finds fewer records. Raises
    MalformedBatchError.
    """

    def __init__(
        self,
        records: Bytes,
        rows: BatchRows,
        survivors: SetWindow | ArrayWindow,
        *,
        offset_shift: int,
        horizon: int | None,
    ) -> None:
        self._records, self._rows = records, rows
        self._survivors = survivors
        self._shift = offset_shift
        row = rows[0]
        self._position = int(row["position"])
        self._compressed = bool(int(row["attributes"]) & CODEC_MASK)
        self.horizon = horizon
        self._timestamp_shift = 0 if horizon is None else int(row["base_timestamp"]) - horizon
        self._chunks: list[_OffsetChunk] = []
        unchanged_size, rebased_size = self._measure(row)
        if self._compressed and rebased_size > MAX_DECOMPRESSED_BATCH_BYTES:
            self.horizon, self._timestamp_shift = None, 0
        self._records_size = rebased_size if self._timestamp_shift else unchanged_size

    def _measure(self, row: np.void) -> tuple[int, int]:
        """Compute the chunks, and the size of the survivors without and with the delete horizon."""
        first = int(row["base_offset"]) + self._shift
        last = first + int(row["last_offset_delta"])
        position, left = int(row["records_start"]), int(row["record_count"])
        unchanged_size = rebased_size = 0
        for begin in range(first, last + 1, CHUNK_OFFSETS):
            end = min(begin + CHUNK_OFFSETS - 1, last)
            fault, next_position, count, chunk_unchanged, chunk_rebased = measure_chunk(
                self._records,
                self._rows,
                position,
                left,
                end + 1,
                self._shift,
                self._survivors.between(begin, end),
                self._timestamp_shift,
            )
            self._check(fault, next_position)
            self._chunks.append(_OffsetChunk(begin, end, position, next_position, count))
            unchanged_size, rebased_size = unchanged_size + chunk_unchanged, rebased_size + chunk_rebased
            position, left = next_position, left - count
        if left:
            self._check(Fault.RECORD_OFFSET, position)
        if position != int(row["records_end"]):
            self._check(Fault.TRAILING_BYTES, position)
        return unchanged_size, rebased_size

    def write(self, data: Bytes, *, leader_epoch: int, totals: npt.NDArray[np.int64]) -> Bytes:
        """Return the uncompressed result without its CRC; the batch's header is in `data`."""
        out = np.empty(BATCH_OVERHEAD + self._records_size, np.uint8)
        timestamp_range = np.array([_INT64.max, _INT64.min])
        part = self._rows.copy()
        at, kept_count = BATCH_OVERHEAD, 0
        for chunk in self._chunks:
            kept = self._survivors.between(chunk.first_offset, chunk.last_offset)
            kept_count += kept.size
            part["records_start"], part["records_end"] = chunk.start, chunk.end
            part["record_count"] = chunk.record_count
            fault, position, at = filter_chunk(
                self._records, part, self._shift, kept, self._timestamp_shift, out, at, timestamp_range
            )
            self._check(fault, position)
        write_chunked_header(
            data,
            self._rows,
            self._shift,
            leader_epoch,
            kept_count,
            self.horizon is not None,
            self.horizon or 0,
            timestamp_range,
            out,
            totals,
        )
        return out

    def _check(self, fault: int, position: int) -> None:
        if fault:
            raise MalformedBatchError.at(fault, self._position if self._compressed else position)
