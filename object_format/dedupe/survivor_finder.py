"""Pass 1: which records of a partition survive.

Sections are fed newest first. A record survives when its key was not seen yet, so the table holds
fingerprints and nothing else. Inside a section, records come oldest first: unless all its keys are distinct,
they are held back until its end and then judged from the last to the first. Held back are their fingerprints,
or the batches as they are stored (`ahead`), which are opened then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from core.errors import FatalError
from object_format.buffers import readable
from object_format.dedupe.early_filter import OPEN_BYTES
from object_format.dedupe.fingerprints import Columns, Fingerprinter
from object_format.dedupe.long_sections import LongSection, keep_rest, let_go
from object_format.dedupe.survivors import Answer, Survivors
from object_format.errors import MalformedBatchError
from object_format.kernels.dedupe.fingerprints import WORDS
from object_format.record_batch.decompression import OpenRuns, open_batches

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from object_format.dedupe.early_filter import RetainedPiece, ThinnedAhead
    from object_format.dedupe.key_table import KeyTable
    from object_format.dedupe.long_sections import Mask
    from object_format.dedupe.survivors import Judged
    from object_format.record_batch.decompression import Scratch

MAX_HELD_RECORDS: Final = 2_000_000
"""How many records of one section are held back at most: 42 MB of fingerprints, offsets and flags, and 17 MB
to choose those that go when there are more. An ingestion file's section of 8 MiB has fewer than 1.2 million,
unless its batches are compressed beyond all measure."""

_STEP_RECORDS: Final = 32_768
"""How many records are fingerprinted before they are judged, where nothing must be held back."""


_GROUP_BYTES: Final = 1 << 20
"""Of batches as they are stored, that are judged together."""


def _told_where(piece: RetainedPiece, error: MalformedBatchError) -> MalformedBatchError:
    """The error with where the piece comes from."""
    return MalformedBatchError(f"{piece.origin}: {error.message}", position=error.position, fault=error.fault)


class SurvivorFinder:
    """Finds the survivors of one partition; the table is cleared first.

    `seed` (16 bytes) keys the fingerprints. `reaches_log_start` tells that nothing older than what is fed
    exists, so that tombstones whose delete horizon has come by `now_ms` may go. `expected_records` is an
    upper bound of what will be fed; it makes small partitions cheaper. With `ahead`, on which a partition has
    been begun, pass 2 is done for compressed batches at the same time, as far as there is room. `scratch` is
    the caller's own, where it has one.
    """

    def __init__(
        self,
        table: KeyTable,
        seed: bytes,
        *,
        reaches_log_start: bool,
        now_ms: int,
        expected_records: int | None = None,
        max_held_records: int = MAX_HELD_RECORDS,
        ahead: ThinnedAhead | None = None,
        scratch: Scratch | None = None,
    ) -> None:
        self._fingerprinter = Fingerprinter(seed, now_ms=now_ms, scratch=scratch)
        self._ahead = ahead
        self._answer = Answer(table, expected_keys=expected_records)
        self._reaches_log_start = reaches_log_start
        self._max_held = max_held_records
        self._held = Columns(_STEP_RECORDS)
        self._opened = Columns(0)
        self._pieces: list[tuple[int, RetainedPiece]] = []
        self._in_section = False
        self._unique_keys = False
        self._settled = False
        self._long = LongSection()
        self._max_buffer_bytes = self._held.nbytes

    def begin_section(self, *, unique_keys: bool, settled: bool = False) -> None:
        """What is fed next is older than everything before it; `unique_keys`: no key occurs twice in it.

        `settled` says more: no key of it occurs in a section that is still to come, either, whose order
        then is free. Such keys are looked up and not remembered, so that they take no room in the table.
        """
        if self._in_section:
            raise FatalError("a section begins before the last has ended")
        self._in_section, self._unique_keys, self._settled = True, unique_keys or settled, settled
        self._long.begin()
        self._fingerprinter.restart()
        if self._ahead is not None:
            self._ahead.begin_section()

    def feed(
        self, batches: Buffer, *, offset_shift: int, leader_epoch: int = 0, origin: str = "a section"
    ) -> None:
        """The next whole batches of the section, in the order of their offsets, else MalformedBatchError.

        With `ahead`, what is wrong with records may only be found at the section's end; it is then said to be
        in `origin`. `leader_epoch` is what those will have that are written ahead.
        """
        if not self._in_section:
            raise FatalError("batches are fed outside a section")
        array = readable(batches)
        rows = self._fingerprinter.rows_of(array, offset_shift)
        if self._ahead is not None and rows.size:
            piece = self._ahead.hold(
                array,
                rows,
                offset_shift=offset_shift,
                leader_epoch=leader_epoch,
                stays=self._unique_keys,
                origin="" if self._unique_keys else origin,
            )
            if piece is not None:
                self._pieces.append((self._held.count, piece))
                if self._unique_keys:
                    self._settle(self._ahead)
                return
        for _full in self._fingerprinter.fill(self._held, array, rows, offset_shift=offset_shift):
            self._make_room()
        if self._ahead is not None and self._fingerprinter.largest_opened > OPEN_BYTES:
            self._ahead.make_way()

    def end_section(self) -> None:
        """All batches of the section have been fed."""
        if not self._in_section:
            raise FatalError("a section ends that has not begun")
        if self._ahead is not None:
            self._settle(self._ahead)
        self._judge_held(0, may_add=True)
        self._in_section = False

    def finish(self) -> Survivors:
        """The answer, when every section has been fed, or all since the last answer."""
        if self._in_section:
            raise FatalError("pass 1 finishes inside a section")
        if self._ahead is not None:
            self._ahead.finish(exact=self._answer.exact)
        largest = max(self._max_buffer_bytes, self._fingerprinter.largest_opened)
        return self._answer.finish(max_buffer_bytes=largest)

    def _make_room(self) -> None:
        """Judge what is held where that is sound, else hold more, else let go of some (`long_sections`)."""
        if self._unique_keys:
            self._judge_held(0, may_add=True)
        elif not self._held.grow(self._max_held):
            self._let_go_of_some()
        self._note_buffers()

    def _let_go_of_some(self) -> None:
        """Hold less: what is superseded goes, and where most keys are distinct, so does a part of them.

        The memory that this takes is that of what is thinned ahead: there is none of that any more.
        """
        if self._ahead is not None:
            self._ahead.make_way()
        gone = self._long.superseded(self._held)
        self._answer.supersede(int(np.count_nonzero(gone)))
        self._hold_rest(gone)
        self._let_go_outside()
        while self._held.count > 3 * self._max_held // 4:
            self._long.halve()
            self._let_go_outside()

    def _let_go_outside(self) -> None:
        """Judge records of keys that are not held back by what is newer than the section.

        Newer ones of the same section are not known yet: they must not enter the table, or they would push
        those out. None of that section's tombstones goes, as records that they shadow may have stayed.
        """
        gone = self._long.outside(self._held)
        for records in let_go(self._held, gone):
            self._judge(records, 0, may_add=False)
        self._hold_rest(gone)

    def _hold_rest(self, gone: Mask) -> None:
        """The others move together; so do the places of the pieces between them."""
        moved, at, kept = [], 0, 0
        for place, piece in self._pieces:
            kept += place - at - int(np.count_nonzero(gone[at:place]))
            at = place
            moved.append((kept, piece))
        self._pieces = moved
        keep_rest(self._held, gone)

    def _settle(self, ahead: ThinnedAhead) -> None:
        """Judge the pieces that wait, the newest first, and the records between them; thin the pieces."""
        while self._pieces:
            self._judge_held(self._pieces[-1][0], may_add=True)
            group = self._open_group(ahead)
            judged = self._judge(self._opened, self._opened.start, may_add=True)
            self._note_buffers()
            for piece, runs in group:
                if runs is not None:
                    ahead.thin(piece, judged, exact=self._answer.exact)
            ahead.close()
        ahead.let_go()

    def _open_group(self, ahead: ThinnedAhead) -> list[tuple[RetainedPiece, OpenRuns | None]]:
        """Open the newest of the pieces that wait, or some that follow each other, and fingerprint them.

        Where each was judged alone, opening the next would push the way to the key table out of the caches.
        """
        group: list[tuple[RetainedPiece, OpenRuns | None]] = []
        columns = self._opened
        columns.begin_at_end(max(self._pieces[-1][1].record_count, _STEP_RECORDS))
        size = 0
        while self._pieces:
            between, piece = self._pieces[-1]
            size += piece.data.size
            if group and (
                between < self._held.count or size > _GROUP_BYTES or piece.record_count > columns.start
            ):
                break
            try:
                runs = ahead.open(piece)
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
                raise _told_where(piece, error) from error
            self._pieces.pop()
            group.append((piece, runs))
            if runs is None:
                if self._fingerprinter.largest_opened > OPEN_BYTES:
                    ahead.make_way()
                break
        return group

    def _judge_held(self, start: int, *, may_add: bool) -> None:
        """Let survivors among the held records from `start` on into the bitmaps, and be done with them."""
        if self._held.count > start:
            self._judge(self._held, start, may_add=may_add)
            self._held.count = start

    def _judge(self, columns: Columns, start: int, *, may_add: bool) -> Judged:
        return self._answer.judge(
            columns.words[start * WORDS :],
            columns.offsets[start:],
            columns.flags[start:],
            columns.count - start,
            newest_last=not self._unique_keys,
            drop_tombstones=self._reaches_log_start and not self._long.in_part,
            may_add=may_add and not self._settled,
            settled=self._settled,
        )

    def _note_buffers(self) -> None:
        self._max_buffer_bytes = max(
            self._max_buffer_bytes, self._held.nbytes + self._opened.nbytes + self._long.nbytes
        )
