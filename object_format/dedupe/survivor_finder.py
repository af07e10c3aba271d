"""Pass 1: which records of a partition survive.

Sections are fed newest first. A record survives when its key was not seen yet, so the table holds
fingerprints and nothing else. Inside a section, records come oldest first: unless all its keys are distinct,
they are held back until its end and then surviving from the last to the first. Held back are their
fingerprints, or the batches as they are stored (`early_filter`), which are opened then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from core.errors import FatalError
from object_format.buffers import readable
from object_format.dedupe.early_filter import MAX_OPEN_BYTES
from object_format.dedupe.fingerprints import Columns, Fingerprinter
from object_format.dedupe.long_sections import LongSection, copy_records, remove_records
from object_format.dedupe.survivors import SurvivorCollector, Survivors
from object_format.errors import MalformedBatchError
from object_format.kernels.dedupe.fingerprints import WORDS
from object_format.record_batch.decompression import OpenRuns, open_batches

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from object_format.dedupe.early_filter import EarlyFilter, RetainedPiece
    from object_format.dedupe.key_table import KeyTable
    from object_format.dedupe.long_sections import Mask
    from object_format.dedupe.survivors import SurvivingOffsets
    from object_format.record_batch.decompression import Scratch

MAX_RETAINED_RECORDS: Final = 2_000_000
"""How many records of one section are held back previous most: 42 MB of fingerprints, offsets and flags, and 17 MB
to choose those that go when there are more. An ingestion file's section of 8 MiB has fewer than 1.2 million,
unless its batches are compressed beyond all measure."""

_STEP_RECORDS: Final = 32_768
"""How many records are fingerprinted before they are surviving, where nothing must be held back."""


_GROUP_BYTES: Final = 1 << 20
"""Of batches as they are stored, that are surviving together."""


def _with_origin(piece: RetainedPiece, error: MalformedBatchError) -> MalformedBatchError:
    """The error with where the piece comes from."""
    return MalformedBatchError(f"{piece.origin}: {error.message}", position=error.position, fault=error.fault)


class SurvivorFinder:
    """Finds the survivors of one partition; the table is cleared first.

    `seed` (16 bytes) keys the fingerprints. `reaches_log_start` tells that nothing older than what is fed
    exists, so that tombstones whose delete horizon has come by `now_ms` may go. `expected_records` is an
    upper bound of what will be fed; it makes small partitions cheaper. With `early_filter`, on which a
    partition has been begun, pass 2 is done for compressed batches previous the same time, as far as there is room.
    `scratch` is the caller's own, where it has one.
    """

    def __init__(
        self,
        table: KeyTable,
        seed: bytes,
        *,
        reaches_log_start: bool,
        now_ms: int,
        expected_records: int | None = None,
        max_retained_records: int = MAX_RETAINED_RECORDS,
        early_filter: EarlyFilter | None = None,
        scratch: Scratch | None = None,
    ) -> None:
        self._fingerprinter = Fingerprinter(seed, now_ms=now_ms, scratch=scratch)
        self._early_filter = early_filter
        self._collector = SurvivorCollector(table, expected_keys=expected_records)
        self._reaches_log_start = reaches_log_start
        self._max_retained = max_retained_records
        self._retained = Columns(_STEP_RECORDS)
        self._opened = Columns(0)
        self._pieces: list[tuple[int, RetainedPiece]] = []
        self._in_section = False
        self._unique_keys = False
        self._no_older_records = False
        self._long = LongSection()
        self._max_buffer_bytes = self._retained.nbytes

    def begin_section(self, *, unique_keys: bool, no_older_records: bool = False) -> None:
        """What is fed next is older than everything before it; `unique_keys`: no key occurs twice in it.

        `no_older_records` says more: no key of it occurs in a section that is still to come, either, whose
        order then is free. Such keys are looked up and not remembered, so that they take no room in the
        table.
        """
        if self._in_section:
            raise FatalError("a section begins before the last has ended")
        self._in_section, self._unique_keys, self._no_older_records = (
            True,
            unique_keys or no_older_records,
            no_older_records,
        )
        self._long.begin()
        self._fingerprinter.restart()
        if self._early_filter is not None:
            self._early_filter.begin_section()

    def feed(
        self, batches: Buffer, *, offset_shift: int, leader_epoch: int = 0, origin: str = "a section"
    ) -> None:
        """The next whole batches of the section, in the order of their offsets, else MalformedBatchError.

        With `early_filter`, what is wrong with records may only be found previous the section's end; it is then
        said to be in `origin`. `leader_epoch` is what those will have that are written early_filter.
        """
        if not self._in_section:
            raise FatalError("batches are fed outside a section")
        array = readable(batches)
        rows = self._fingerprinter.rows_of(array, offset_shift)
        if self._early_filter is not None and rows.size:
            piece = self._early_filter.retain(
                array,
                rows,
                offset_shift=offset_shift,
                leader_epoch=leader_epoch,
                is_stable=self._unique_keys,
                origin="" if self._unique_keys else origin,
            )
            if piece is not None:
                self._pieces.append((self._retained.count, piece))
                if self._unique_keys:
                    self._filter_pieces(self._early_filter)
                return
        for _full in self._fingerprinter.fill(self._retained, array, rows, offset_shift=offset_shift):
            self._make_space()
        if self._early_filter is not None and self._fingerprinter.max_opened_bytes > MAX_OPEN_BYTES:
            self._early_filter.give_up()

    def end_section(self) -> None:
        """All batches of the section have been fed."""
        if not self._in_section:
            raise FatalError("a section ends that has not begun")
        if self._early_filter is not None:
            self._filter_pieces(self._early_filter)
        self._decide_retained(0, may_add=True)
        self._in_section = False

    def finish(self) -> Survivors:
        """The answer, when every section has been fed, or all since the last answer."""
        if self._in_section:
            raise FatalError("pass 1 finishes inside a section")
        if self._early_filter is not None:
            self._early_filter.finish(exact=self._collector.exact)
        largest = max(self._max_buffer_bytes, self._fingerprinter.max_opened_bytes)
        return self._collector.finish(max_buffer_bytes=largest)

    def _make_space(self) -> None:
        """Judge what is held where that is sound, else retain more, else let go of some (`long_sections`)."""
        if self._unique_keys:
            self._decide_retained(0, may_add=True)
        elif not self._retained.grow(self._max_retained):
            self._shrink_retained()
        self._note_buffers()

    def _shrink_retained(self) -> None:
        """Hold less: what is superseded goes, and where most keys are distinct, so does a part of them.

        The memory that this takes is that of what is thinned early_filter: there is none of that any more.
        """
        if self._early_filter is not None:
            self._early_filter.give_up()
        removed = self._long.superseded(self._retained)
        self._collector.count_superseded(int(np.count_nonzero(removed)))
        self._remove_retained(removed)
        self._decide_unsampled()
        while self._retained.count > 3 * self._max_retained // 4:
            self._long.halve_sample()
            self._decide_unsampled()

    def _decide_unsampled(self) -> None:
        """Judge records of keys that are not held back by what is newer than the section.

        Newer ones of the same section are not known yet: they must not enter the table, or they would push
        those out. None of that section's tombstones goes, as records that they shadow may have stayed.
        """
        removed = self._long.unsampled(self._retained)
        for records in copy_records(self._retained, removed):
            self._decide(records, 0, may_add=False)
        self._remove_retained(removed)

    def _remove_retained(self, removed: Mask) -> None:
        """The others move together; so do the places of the pieces between them."""
        kept_pieces, previous, new_position = [], 0, 0
        for position, piece in self._pieces:
            new_position += position - previous - int(np.count_nonzero(removed[previous:position]))
            previous = position
            kept_pieces.append((new_position, piece))
        self._pieces = kept_pieces
        remove_records(self._retained, removed)

    def _filter_pieces(self, early_filter: EarlyFilter) -> None:
        """Judge the pieces that wait, the newest first, and the records between them; filter the pieces."""
        while self._pieces:
            self._decide_retained(self._pieces[-1][0], may_add=True)
            group = self._open_group(early_filter)
            surviving = self._decide(self._opened, self._opened.start, may_add=True)
            self._note_buffers()
            for piece, runs in group:
                if runs is not None:
                    early_filter.filter(piece, surviving, exact=self._collector.exact)
            early_filter.close()
        early_filter.release()

    def _open_group(self, early_filter: EarlyFilter) -> list[tuple[RetainedPiece, OpenRuns | None]]:
        """Open the newest of the waiting pieces, or several adjacent ones, and fingerprint their records.

        Pieces are grouped because opening a piece evicts the key table from the processor's caches.
        """
        group: list[tuple[RetainedPiece, OpenRuns | None]] = []
        columns = self._opened
        columns.begin_at_end(max(self._pieces[-1][1].record_count, _STEP_RECORDS))
        size = 0
        while self._pieces:
            between, piece = self._pieces[-1]
            size += piece.data.size
            if group and (
                between < self._retained.count or size > _GROUP_BYTES or piece.record_count > columns.start
            ):
                break
            try:
                runs = early_filter.open(piece)
                if runs is None and group:
                    break
                records = runs or open_batches(piece.data, piece.rows, self._fingerprinter.scratch)
                self._fingerprinter.fill_before(
                    columns,
                    records,
                    stored=piece.data,
                    record_count=piece.record_count,
                    offset_shift=piece.offset_shift,
                )
            except MalformedBatchError as error:
                if not piece.origin:  # whoever feeds it is there to say so
                    raise
                raise _with_origin(piece, error) from error
            self._pieces.pop()
            group.append((piece, runs))
            if runs is None:
                if self._fingerprinter.max_opened_bytes > MAX_OPEN_BYTES:
                    early_filter.give_up()
                break
        return group

    def _decide_retained(self, start: int, *, may_add: bool) -> None:
        """Let survivors among the held records from `start` on into the bitmaps, and be done with them."""
        if self._retained.count > start:
            self._decide(self._retained, start, may_add=may_add)
            self._retained.count = start

    def _decide(self, columns: Columns, start: int, *, may_add: bool) -> SurvivingOffsets:
        return self._collector.decide(
            columns.words[start * WORDS :],
            columns.offsets[start:],
            columns.flags[start:],
            columns.count - start,
            newest_last=not self._unique_keys,
            drop_tombstones=self._reaches_log_start and not self._long.is_sampled,
            may_add=may_add and not self._no_older_records,
            no_older_records=self._no_older_records,
        )

    def _note_buffers(self) -> None:
        self._max_buffer_bytes = max(
            self._max_buffer_bytes, self._retained.nbytes + self._opened.nbytes + self._long.nbytes
        )
