"""Pass 1: finds the surviving records of a partition.

Sections are fed newest first. A record survives if its key was not seen before, so the key table contains
fingerprints only. Within a section, records are read oldest first. Unless all keys of the section are
distinct, its records are therefore retained until its end and then decided newest first. The finder retains
the fingerprints of records, or stored batches (`early_filter`), which are opened at the end.
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
"""Maximum number of retained records of a section.

They take 42 MB of fingerprints, offsets and flags, and 17 MB to choose the records to remove if there are
more. A section of an ingestion file (8 MiB) has fewer than 1.2 million records, unless its batches are
extremely compressed.
"""

_STEP_RECORDS: Final = 32_768
"""Records that are fingerprinted at a time if nothing has to be retained."""

_GROUP_BYTES: Final = 1 << 20
"""Stored size of the pieces that are decided together."""


def _with_origin(piece: RetainedPiece, error: MalformedBatchError) -> MalformedBatchError:
    """Return the error with the origin of the piece."""
    return MalformedBatchError(error.message, position=error.position, fault=error.fault, origin=piece.origin)


class SurvivorFinder:
    """Finds the survivors of one partition. The table is cleared first.

    `seed` (16 bytes) is the key of the fingerprints. `reaches_log_start` means that no older records exist
    than those that are fed, so that tombstones whose delete horizon has passed at `now_ms` may be dropped.
    `expected_records`, an upper bound of the number of records, makes small partitions cheaper.
    `early_filter`, on which a partition has been begun, runs pass 2 for compressed batches while there is
    memory. `scratch` is memory for decompression that the caller shares with other users.
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
        self._long = LongSection()
        self._max_buffer_bytes = self._retained.nbytes

    def begin_section(self, *, unique_keys: bool, no_older_records: bool = False) -> None:
        """Begin a section that is older than all previous ones.

        `unique_keys` means that no key occurs twice in it. `no_older_records` means in addition that no key
        occurs in a section that is fed later; the order of such sections is arbitrary. Their keys are looked
        up but not added, and take no space in the table.
        """
        if self._in_section:
            raise FatalError("a section begins before the previous one has ended")
        self._in_section = True
        self._unique_keys = unique_keys or no_older_records
        self._no_older_records = no_older_records
        self._long.begin()
        self._fingerprinter.restart()
        if self._early_filter is not None:
            self._early_filter.begin_section()

    def feed(
        self, batches: Buffer, *, offset_shift: int, leader_epoch: int = 0, origin: str = "a section"
    ) -> None:
        """Add complete batches of the section in offset order. Raises MalformedBatchError.

        With an early filter, malformed records may be detected only at the end of the section; the error then
        names `origin`. `leader_epoch` is that of batches that the early filter writes.
        """
        if not self._in_section:
            raise FatalError("batches are fed outside a section")
        array = readable(batches)
        found = self._fingerprinter.scan(array, offset_shift)
        if self._early_filter is not None and found.rows.size:
            piece = self._early_filter.retain(
                array,
                found,
                offset_shift=offset_shift,
                leader_epoch=leader_epoch,
                is_stable=self._unique_keys,
                origin="" if self._unique_keys else origin,
            )
            if piece is not None:
                self._take_piece(piece, self._early_filter)
                return
        for _full in self._fingerprinter.fill(self._retained, array, found, offset_shift=offset_shift):
            self._make_space()
        if self._early_filter is not None and self._fingerprinter.max_opened_bytes > MAX_OPEN_BYTES:
            self._early_filter.give_up()

    def _take_piece(self, piece: RetainedPiece, early_filter: EarlyFilter) -> None:
        """Let a piece wait for the end of its section, unless the keys are unique.

        These are decided in the order of offsets: a full table then has the same keys as without the filter.
        """
        if self._unique_keys:
            self._decide_retained(0, may_add=True)
        self._pieces.append((self._retained.count, piece))
        if self._unique_keys:
            self._filter_pieces(early_filter)

    def end_section(self) -> None:
        """End the section after its last batches."""
        if not self._in_section:
            raise FatalError("a section ends that has not begun")
        if self._early_filter is not None:
            self._filter_pieces(self._early_filter)
        self._decide_retained(0, may_add=True)
        self._in_section = False

    def finish(self) -> Survivors:
        """Return the survivors of all sections since the previous call."""
        if self._in_section:
            raise FatalError("pass 1 finishes inside a section")
        if self._early_filter is not None:
            self._early_filter.finish(exact=self._collector.exact)
        largest = max(self._max_buffer_bytes, self._fingerprinter.max_opened_bytes)
        return self._collector.finish(max_buffer_bytes=largest)

    def _make_space(self) -> None:
        """Decide on the retained records if possible, else grow the columns, else remove records."""
        if self._unique_keys:
            self._decide_retained(0, may_add=True)
        elif not self._retained.grow(self._max_retained):
            self._shrink_retained()
        self._note_buffers()

    def _shrink_retained(self) -> None:
        """Remove superseded records, and sample keys if most are distinct (see `long_sections`).

        This needs the memory of the early filter, which is given up.
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
        """Decide on records of keys outside the sample by comparing them with newer sections only.

        Newer records of the same section are not known yet. The keys are not added to the table, as they
        would drop those records. No tombstone of the section is dropped, because records that it supersedes
        may remain.
        """
        removed = self._long.unsampled(self._retained)
        for records in copy_records(self._retained, removed):
            self._decide(records, 0, may_add=False)
        self._remove_retained(removed)

    def _remove_retained(self, removed: Mask) -> None:
        """Remove the records in the mask, and adjust the positions of pieces between them."""
        kept_pieces, previous, new_position = [], 0, 0
        for position, piece in self._pieces:
            new_position += position - previous - int(np.count_nonzero(removed[previous:position]))
            previous = position
            kept_pieces.append((new_position, piece))
        self._pieces = kept_pieces
        remove_records(self._retained, removed)

    def _filter_pieces(self, early_filter: EarlyFilter) -> None:
        """Decide on the waiting pieces and the records between them, newest first, and filter the pieces."""
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
                if not piece.origin:  # fed by the current call, so the caller knows it
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
        """Decide on the retained records from `start` on, and remove them."""
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
