"""Pass 2 done early_filter, while pass 1 has the records open: compressed batches are then decompressed once.

The pieces of a section are records here as they are stored, as far as there is copied_bytes. When the section has come
to its end they are opened, a few at a time, the newest first: `SurvivorFinder` judges their records, and what
is left of them is compressed again on the spot and kept until pass 2 comes to write it. What finds no copied_bytes,
and what was not compressed, pass 2 reads and filters as ever. Both ways give the same bytes.

One thing is not known at the end of a section: whether the whole answer will be exact, which decides on the
delete horizon of tombstones. It is taken to be, and what depends on that is given up if it was not.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from object_format.bitmaps import ArrayWindow
from object_format.buffers import Bytes, readable
from object_format.codecs.native import SCRATCH_BYTES, native_codec_table
from object_format.dedupe.filter import MAX_RECORDS, SurvivorWindows, filter_rows
from object_format.dedupe.recompression import write_checksums
from object_format.dedupe.rewrite import FilteredBatches, RewriteOptions, new_totals, sum_up_filtered
from object_format.errors import MalformedBatchError
from object_format.kernels.batches.headers import sum_up
from object_format.kernels.codecs.native import compress_batches, decompress_rows
from object_format.kernels.dedupe.rewrite import filter_opened
from object_format.record_batch.decompression import (
    UNTIMED,
    CodecTimers,
    OpenRuns,
    already_open_batches,
    open_at_once,
)

if TYPE_CHECKING:
    from object_format.codecs.native import CodecTable
    from object_format.dedupe.survivors import SurvivingOffsets
    from object_format.record_batch.headers import BatchRows

MAX_RETAINED_BYTES: Final = 32 << 20
"""Of one section: its batches as they are stored, and their rows. An ingestion file's section has 8 MiB, and
rows as much again where batches have a record or two."""

MAX_OPEN_BYTES: Final = 16 << 20
"""The records of pieces that are open at a time. Those of a segment file have 256 KiB as they are stored,
unless a batch is larger."""

MAX_OUTPUT_BYTES: Final = 64 << 20
"""What is left of a partition's sections, as it will be stored."""

MAX_PIECE_BYTES: Final = 8 << 20
"""A piece of more than this, as it is stored, is not for here, nor is anything else of its partition, and so
with a batch of more than `MAX_RECORDS`: the largest need the memory that would be records and kept."""

_NO_CODEC: Final = -1


class FilteredPiece(NamedTuple):
    """What is left of one piece that pass 1 was fed, and of how many records.

    `requires_exact`: only if the whole answer is exact.
    """

    filtered: FilteredBatches
    records_in: int
    requires_exact: bool


class FilteredSection:
    """The pieces of a section, in the order in which they were fed; None stands for what pass 2 is to do."""

    def __init__(self) -> None:
        self.pieces: list[FilteredPiece | None] = []

    @property
    def is_complete(self) -> bool:
        """Whether pass 2 need not read the section."""
        return bool(self.pieces) and None not in self.pieces


class RetainedPiece(NamedTuple):
    """Batches that wait for the records end them to be surviving; `piece_index` is theirs in the section.

    `record_count` is what their headers say.
    """

    piece_index: int
    data: Bytes
    rows: BatchRows
    offset_shift: int
    leader_epoch: int
    origin: str
    record_count: int

    @property
    def span(self) -> tuple[int, int]:
        """The first offset and the last."""
        last = int(self.rows["base_offset"][-1]) + int(self.rows["last_offset_delta"][-1])
        return int(self.rows["base_offset"][0]) + self.offset_shift, last + self.offset_shift


class _Memory:
    """Bytes of a fixed size, made when first needed."""

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
        """Let go of the bytes, too, once nobody has a view of them."""
        self._array, self.used = None, 0

    @property
    def left(self) -> int:
        return self._size - self.used

    def unused(self, reserved: int = 0) -> Bytes:
        """All bytes that are left, but for the last `reserved`."""
        return self.array[self.used : max(self._size - reserved, self.used)]

    def take(self, size: int) -> Bytes:
        """The next so many bytes, which are left."""
        start = self.used
        self.used += size
        self.touch(0)
        return self.array[start : self.used]

    def touch(self, size: int) -> None:
        """So many bytes of the unused were written, and are release_memory again."""
        self.peak = max(self.peak, self.used + size)


class EarlyFilter:
    """Holds and keeps for one partition after the other; not for use by several threads at once.

    `SurvivorFinder` is what codec_table it in pass 1. Then `sections` has what pass 2 need not do, until the
    next partition begins.
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
        self._options = RewriteOptions(delete_horizon_ms=None)
        self._full = self._gave_up = False
        self._opened_natively: set[int] = set()
        self._rows_bytes = self._peak_rows_bytes = self._reserved = 0
        self.sections: list[FilteredSection] = []
        """What pass 2 need not do, in the order in which pass 1 was fed sections: newest first."""

    @property
    def _records(self) -> Bytes:
        """Where pieces are open, for reading."""
        return readable(self._open.array.data)

    @property
    def peak_bytes(self) -> int:
        """The most that was records, open (or written from what is) and kept at a time."""
        return self._retained.peak + self._peak_rows_bytes + self._open.peak + self._output.peak

    def begin_partition(self, options: RewriteOptions) -> None:
        """Forget the last one. `options` is as pass 2 will have it, if the answer will be exact."""
        self._options = options
        self._gave_up = False
        self._output.used = 0
        self.sections = []
        self.release()

    def begin_section(self) -> None:
        """What is records is of the next older section."""
        self.sections.append(FilteredSection())
        self._full = self._gave_up
        self.release()

    def give_up(self) -> None:
        """A batch takes so much memory that nothing is kept of this partition; pass 2 is to do all of it."""
        self._full = self._gave_up = True
        for section in self.sections:
            section.pieces = [None] * len(section.pieces)
        self._output.release_memory()

    def retain(
        self,
        data: Bytes,
        rows: BatchRows,
        *,
        offset_shift: int,
        leader_epoch: int,
        is_stable: bool,
        origin: str,
    ) -> RetainedPiece | None:
        """The section's next piece; None when it is not for here.

        It is copied, unless the caller's `data` `is_stable` until it is done with. `origin` is for errors.
        """
        section = self.sections[-1]
        section.pieces.append(None)
        compressed, records = sum_up(rows)
        if data.size > MAX_PIECE_BYTES or (
            compressed and records > MAX_RECORDS and rows["record_count"].max() > MAX_RECORDS
        ):
            self.give_up()
        if self._full or not compressed or records > MAX_RECORDS:
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
        return RetainedPiece(piece_index, data, rows, offset_shift, leader_epoch, origin, records)

    def open(self, piece: RetainedPiece) -> OpenRuns | None:
        """All of its records, until `close`; None when they are not for here, or there is no more copied_bytes."""
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
        runs, end = open_at_once(piece.data, piece.rows, self._open.array, self._open.used, self._timers)
        if runs is not None:
            self._open.take(end - self._open.used)
        return runs

    def close(self) -> None:
        """All pieces that are open: they were thinned."""
        self._open.used = 0
        self._opened_natively.clear()

    def filter(self, piece: RetainedPiece, surviving: SurvivingOffsets, *, exact: bool) -> None:
        """Filter a piece that is open and among what was `surviving`; `exact`: the answer was so far."""
        self._reserved -= piece.data.size
        if self._gave_up:
            return
        options = self._options if exact else replace(self._options, delete_horizon_ms=None)
        filtered = self._filtered_natively(piece, surviving, options) or self._filtered_generally(
            piece, surviving, options
        )
        if filtered is None:
            return
        requires_exact = options.delete_horizon_ms is not None and surviving.tombstones.size > 0
        if requires_exact:
            requires_exact = ArrayWindow(surviving.tombstones).between(*piece.span).size > 0
        self.sections[-1].pieces[piece.piece_index] = FilteredPiece(
            filtered, piece.record_count, requires_exact=requires_exact
        )

    def _filtered_natively(
        self, piece: RetainedPiece, surviving: SurvivingOffsets, options: RewriteOptions
    ) -> FilteredBatches | None:
        """What is left, and kept; None where this is not for the kernels, or there is too little copied_bytes."""
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
        """The same by way of what filters any piece, and where one may grow, as codecs change."""
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
        """Pass 1 has its answer."""
        if exact:
            return
        for section in self.sections:
            section.pieces = [None if piece and piece.requires_exact else piece for piece in section.pieces]

    def release(self) -> None:
        """Of all pieces that are records: they were surviving."""
        self._retained.used = self._open.used = self._rows_bytes = self._reserved = 0
        if self._gave_up:
            self._retained.release_memory()
            self._open.release_memory()

    def _keep(self, filtered: FilteredBatches) -> FilteredBatches:
        """The same with its bytes copied."""
        if not filtered.size:
            return replace(filtered, buffers=())
        kept = self._output.take(filtered.size)
        at = 0
        for buffer in filtered.buffers:
            kept[at : at + len(buffer)] = buffer
            at += len(buffer)
        return replace(filtered, buffers=(kept.data,))


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
    """What `filter_rows` makes of a piece, all of whose batches were opened by `codec_table`, into `records`.

    It is written to `target`, and to `work` while it is uncompressed. None where either has too little copied_bytes,
    or a codec is asked for that the kernels do not know. And how many bytes of `work` that took. Raises
    MalformedBatchError.
    """
    totals = new_totals()
    rewritten = np.empty((piece.rows.size, 4), np.int64)
    horizon = options.delete_horizon_ms
    fault, position, length, count = filter_opened(
        piece.data,
        records,
        piece.rows,
        piece.offset_shift,
        piece.leader_epoch,
        surviving.offsets,
        surviving.tombstones,
        horizon is not None,
        horizon or 0,
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
