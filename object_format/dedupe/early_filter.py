"""Early filter: pass 2 for compressed batches during pass 1, so that they are decompressed only once.

A *piece* is the batches of one call of `SurvivorFinder.feed`, usually one DATA block. The early filter
retains the stored pieces of a section while there is memory. At the end of the section, the pieces are opened
a few at a time, newest first. `SurvivorFinder` decides on their records, and the early filter compresses the
survivors and keeps the result until pass 2 writes it. Pass 2 reads and filters all other pieces: those that
did not fit, and uncompressed ones. Both ways produce the same bytes.

The delete horizon of tombstones depends on whether the survivors of the whole partition are exact, which is
not known at the end of a section. The early filter assumes that they are, and discards the affected pieces if
they are not.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from object_format.buffers import Bytes, readable
from object_format.codecs.native import SCRATCH_BYTES, native_codec_table
from object_format.dedupe.filter import MAX_RECORDS, SurvivorWindows, filter_rows, within_one_epoch
from object_format.dedupe.recompression import write_checksums
from object_format.dedupe.rewrite import FilteredBatches, RewriteOptions, new_totals, sum_up_filtered
from object_format.errors import MalformedBatchError
from object_format.kernels.codecs.native import compress_batches, decompress_rows
from object_format.kernels.dedupe.rewrite import filter_opened
from object_format.offset_set import ArrayWindow
from object_format.record_batch.decompression import (
    UNTIMED,
    CodecTimers,
    OpenRuns,
    already_open_batches,
    open_all_batches,
)
from object_format.record_batch.headers import offset_range

if TYPE_CHECKING:
    from object_format.codecs.native import CodecTable
    from object_format.dedupe.survivors import SurvivingOffsets
    from object_format.record_batch.headers import BatchRows, OrderedBatches

MAX_RETAINED_BYTES: Final = 32 << 20
"""Memory for the stored batches of one section and their rows.

A section of an ingestion file has up to 8 MiB of batches, and as much again of rows if batches have only one
or two records.
"""

MAX_OPEN_BYTES: Final = 16 << 20
"""Memory for the uncompressed records of open pieces.

A piece of a segment file has 256 KiB as stored, unless it is one larger batch.
"""

MAX_OUTPUT_BYTES: Final = 64 << 20
"""Memory for the filtered pieces of a partition, as they will be stored."""

MAX_PIECE_BYTES: Final = 8 << 20
"""A partition with a larger stored piece, or with a batch of more than `MAX_RECORDS`, is left to pass 2.

Such batches need the memory that would otherwise be used for retained and filtered pieces.
"""

_NO_CODEC: Final = -1


class FilteredPiece(NamedTuple):
    """Result of filtering one piece with `records_in` records.

    With `requires_exact`, it is valid only if the survivors of the partition are exact.
    """

    filtered: FilteredBatches
    records_in: int
    requires_exact: bool


class FilteredSection:
    """Filtered pieces of a section in the order in which they were fed; None is left to pass 2."""

    def __init__(self) -> None:
        self.pieces: list[FilteredPiece | None] = []

    @property
    def is_complete(self) -> bool:
        """True if pass 2 need not read the section."""
        return bool(self.pieces) and None not in self.pieces


class RetainedPiece(NamedTuple):
    """Stored batches that wait until all later records are decided; `piece_index` counts in the section.

    `record_count` is the sum of the headers' record counts.
    """

    piece_index: int
    data: Bytes
    rows: BatchRows
    offset_shift: int
    leader_epoch: int
    origin: str
    record_count: int


class _Memory:
    """Fixed amount of memory that is allocated on first use."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._array: Bytes | None = None
        self.used = self.peak = 0

    @property
    def array(self) -> Bytes:
        if self._array is None:
            self._array = np.empty(self._size, np.uint8)
        return self._array

    def release_memory(self) -> None:
        """Free the memory once no view of it exists. The next use must begin with `used` = 0."""
        self._array = None

    @property
    def left(self) -> int:
        return self._size - self.used

    def unused(self, reserved: int = 0) -> Bytes:
        """Return the unused memory except for the last `reserved` bytes."""
        return self.array[self.used : max(self._size - reserved, self.used)]

    def take(self, size: int) -> Bytes:
        """Use the next `size` bytes, which must be available."""
        start = self.used
        self.used += size
        self.touch(0)
        return self.array[start : self.used]

    def touch(self, size: int) -> None:
        """Account for temporary use of `size` unused bytes."""
        self.peak = max(self.peak, self.used + size)


class EarlyFilter:
    """Early filter for one partition after the other. It is not thread-safe.

    `SurvivorFinder` calls it in pass 1. Afterwards, `sections` contains the results until the next partition
    begins.
    """

    def __init__(
        self,
        *,
        retained_bytes: int = MAX_RETAINED_BYTES,
        open_bytes: int = MAX_OPEN_BYTES,
        output_bytes: int = MAX_OUTPUT_BYTES,
        timers: CodecTimers = UNTIMED,
    ) -> None:
        self._retained = _Memory(retained_bytes)
        self._open = _Memory(open_bytes)
        self._output = _Memory(output_bytes)
        self._timers = timers
        self._opened_natively: set[int] = set()
        self._peak_rows_bytes = 0
        self.sections: list[FilteredSection] = []
        """Filtered sections in the order of pass 1: newest first."""
        self.begin_partition(RewriteOptions(delete_horizon_ms=None))

    @property
    def _records(self) -> Bytes:
        """Read-only view of the records of open pieces."""
        return readable(self._open.array[: self._open.used].data)

    @property
    def peak_bytes(self) -> int:
        """Upper bound of the memory that retained, open and filtered pieces used at a time."""
        return self._retained.peak + self._peak_rows_bytes + self._open.peak + self._output.peak

    def begin_partition(self, options: RewriteOptions) -> None:
        """Discard the previous partition. `options` are those of pass 2 if the survivors are exact."""
        self._options = options
        self._full = self._gave_up = False
        self._output.used = 0
        self.sections = []
        self.release()

    def begin_section(self) -> None:
        """Begin the next older section."""
        self.sections.append(FilteredSection())
        self._full = self._gave_up
        self.release()

    def give_up(self) -> None:
        """Leave the whole partition to pass 2 and free the output, because a batch needs the memory."""
        self._full = self._gave_up = True
        for section in self.sections:
            section.pieces = [None] * len(section.pieces)
        self._output.release_memory()

    def retain(
        self,
        data: Bytes,
        batches: OrderedBatches,
        *,
        offset_shift: int,
        leader_epoch: int,
        is_stable: bool,
        origin: str,
    ) -> RetainedPiece | None:
        """Return the section's next piece, or None if it is left to pass 2.

        The data is copied unless it `is_stable`, that is, unchanged until the piece is filtered. `origin` is
        used in errors.
        """
        section = self.sections[-1]
        section.pieces.append(None)
        rows, is_large = batches.rows, batches.record_count > MAX_RECORDS
        if data.size > MAX_PIECE_BYTES or (
            batches.compressed and is_large and rows["record_count"].max() > MAX_RECORDS
        ):
            self.give_up()
        if self._full or not batches.compressed or is_large:
            return None
        copied_bytes = 0 if is_stable else data.size
        if (
            self._output.left - self._reserved < data.size
            or self._retained.left - self._rows_bytes < copied_bytes + rows.nbytes
        ):
            self._full = True
            return None
        self._reserved += data.size
        self._rows_bytes += rows.nbytes
        self._peak_rows_bytes = max(self._peak_rows_bytes, self._rows_bytes)
        if not is_stable:
            copy = self._retained.take(data.size)
            copy[:] = data
            data = readable(copy.data)
        piece_index = len(section.pieces) - 1
        return RetainedPiece(
            piece_index, data, rows, offset_shift, leader_epoch, origin, batches.record_count
        )

    def open(self, piece: RetainedPiece) -> OpenRuns | None:
        """Open a piece until `close`; return None if it is not suitable or does not fit."""
        codec_table = native_codec_table()
        if codec_table is not None:
            with self._timers.decompress():
                done, end = decompress_rows(
                    piece.data,
                    piece.rows,
                    np.arange(piece.rows.size),
                    0,
                    self._open.array,
                    self._open.used,
                    codec_table,
                )
            self._open.touch(end - self._open.used)
            if done == piece.rows.size:
                self._open.take(end - self._open.used)
                self._opened_natively.add(piece.piece_index)
                return [(self._records, piece.rows)]
        runs, end = open_all_batches(piece.data, piece.rows, self._open.array, self._open.used, self._timers)
        if runs is not None:
            self._open.take(end - self._open.used)
        return runs

    def close(self) -> None:
        """Close all open pieces after they were filtered."""
        self._open.used = 0
        self._opened_natively.clear()

    def filter(self, piece: RetainedPiece, surviving: SurvivingOffsets, *, exact: bool) -> None:
        """Filter an open piece whose survivors are among `surviving`.

        `exact` is True if the survivors are exact so far.
        """
        self._reserved -= piece.data.size
        if self._gave_up:
            return
        options = self._options if exact else self._options._replace(delete_horizon_ms=None)
        options = within_one_epoch(options, piece.data, piece.rows, piece.leader_epoch)
        filtered = self._filtered_natively(piece, surviving, options) or self._filtered_generally(
            piece, surviving, options
        )
        if filtered is None:
            return
        tombstones = ArrayWindow(surviving.tombstones).count(*offset_range(piece.rows, piece.offset_shift))
        requires_exact = options.delete_horizon_ms is not None and tombstones > 0
        self.sections[-1].pieces[piece.piece_index] = FilteredPiece(
            filtered, piece.record_count, requires_exact=requires_exact
        )

    def _filtered_natively(
        self, piece: RetainedPiece, surviving: SurvivingOffsets, options: RewriteOptions
    ) -> FilteredBatches | None:
        """Filter a piece with kernels; return None if a kernel does not support it, or if it does not fit."""
        codec_table = native_codec_table()
        if codec_table is None or piece.piece_index not in self._opened_natively:
            return None
        work, target = self._open.unused(), self._output.unused(self._reserved)
        filtered, worked = _filter_natively(
            piece, self._records, surviving, options, work, target, codec_table, self._timers
        )
        self._open.touch(worked)
        if filtered is not None:
            self._output.take(filtered.size)
        return filtered

    def _filtered_generally(
        self, piece: RetainedPiece, surviving: SurvivingOffsets, options: RewriteOptions
    ) -> FilteredBatches | None:
        """Filter a piece with `filter_rows`, which supports all codecs."""
        filtered = filter_rows(
            piece.data,
            piece.rows,
            SurvivorWindows(ArrayWindow(surviving.offsets), ArrayWindow(surviving.tombstones)),
            options,
            offset_shift=piece.offset_shift,
            leader_epoch=piece.leader_epoch,
            opener=partial(already_open_batches, records=self._records),
            timers=self._timers,
        )
        if filtered.size > self._output.left - self._reserved:
            return None
        return self._keep(filtered)

    def finish(self, *, exact: bool) -> None:
        """End pass 1: discard what depends on exact survivors if they are not `exact`."""
        if exact:
            return
        for section in self.sections:
            section.pieces = [None if piece and piece.requires_exact else piece for piece in section.pieces]

    def release(self) -> None:
        """Release all retained pieces after they were decided."""
        self._retained.used = self._open.used = self._rows_bytes = self._reserved = 0
        if self._gave_up:
            self._retained.release_memory()
            self._open.release_memory()

    def _keep(self, filtered: FilteredBatches) -> FilteredBatches:
        """Copy the buffers to the output memory."""
        if not filtered.size:
            return filtered._replace(buffers=())
        kept = self._output.take(filtered.size)
        at = 0
        for buffer in filtered.buffers:
            kept[at : at + len(buffer)] = buffer
            at += len(buffer)
        return filtered._replace(buffers=(kept.data,))


def _filter_natively(
    piece: RetainedPiece,
    records: Bytes,
    surviving: SurvivingOffsets,
    options: RewriteOptions,
    work: Bytes,
    target: Bytes,
    codec_table: CodecTable,
    timers: CodecTimers,
) -> tuple[FilteredBatches | None, int]:
    """Do the work of `filter_rows` with kernels, for a piece that kernels opened to `records`.

    The result is written to `target`; `work` takes the uncompressed intermediate result. Returns the result
    and the number of bytes used in `work`. The result is None if the memory is too small or a codec is not
    supported. Raises MalformedBatchError.
    """
    totals = new_totals()
    rewritten = np.empty((piece.rows.size, 4), np.int64)
    fault, position, length, count = filter_opened(
        piece.data,
        records,
        piece.rows,
        piece.offset_shift,
        piece.leader_epoch,
        surviving.offsets,
        surviving.tombstones,
        options.delete_horizon_ms is not None,
        options.horizon,
        options.merge,
        *options.merge_limits,
        SCRATCH_BYTES,
        work,
        rewritten,
        totals,
    )
    if fault:
        raise MalformedBatchError.at(fault, position)
    if length < 0:
        return None, ~length
    rewritten = rewritten[:count]
    merged_codec = _NO_CODEC if options.merged_codec is None else int(options.merged_codec)
    with timers.compress():
        size = compress_batches(work, length, rewritten, merged_codec, target, codec_table)
    if size < 0:
        return None, length
    written = target[:size].data
    saved = write_checksums(written, rewritten)
    return sum_up_filtered((written,) if size else (), totals, saved, 0), length
