"""Pass 2 done ahead, while pass 1 has the records open: compressed batches are then decompressed once.

When pass 1 has come to the end of a section, it knows for good which of its records survive. Until then, the
decompressed records of the section are held here, as far as there is room; they are filtered and compressed
again on the spot, and what is left of them is kept until pass 2 comes to write it. What finds no room, and
what was not compressed, pass 2 reads and filters as ever. Both ways give the same bytes.

One thing is not known at the end of a section: whether the whole answer will be exact, which decides on the
delete horizon of tombstones. It is taken to be, and what depends on that is given up if it was not.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from typing_extensions import override

from object_format.bitmaps import ArrayWindow
from object_format.dedupe.filter import Chosen, FilteredBatches, Rewriting, filter_rows
from object_format.kernels.layout import CODEC_MASK
from object_format.native_codecs import SCRATCH_BYTES
from object_format.payloads import NOT_TIMED, CodecTimes, Scratch, held_batches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from object_format.buffers import Bytes
    from object_format.dedupe.answer import Judged
    from object_format.record_batch import BatchRows

HELD_BYTES: Final = 32 << 20
"""Of one section: its batches as they are stored, and their records. An ingestion file's section of 8 MiB has
less, unless it is compressed to less than a third."""

KEPT_BYTES: Final = 64 << 20
"""What is left of a partition's sections, as it will be stored."""


class PieceAhead(NamedTuple):
    """What is left of one piece that pass 1 was fed, and of how many records.

    `if_exact`: only if the whole answer is exact.
    """

    filtered: FilteredBatches
    records_in: int
    if_exact: bool


class SectionAhead:
    """The pieces of a section, in the order in which they were fed; None stands for what pass 2 is to do."""

    def __init__(self) -> None:
        self.pieces: list[PieceAhead | None] = []

    @property
    def complete(self) -> bool:
        """Whether pass 2 need not read the section."""
        return bool(self.pieces) and None not in self.pieces


class _Waiting(NamedTuple):
    place: int
    data: Bytes
    rows: BatchRows
    offset_shift: int
    leader_epoch: int


class _HeldMemory(Scratch):
    """Gives new room each time, as long as there is some; `spare` is what it gives behind that."""

    def __init__(self, size: int, spare: Scratch) -> None:
        super().__init__(spare.times)
        self._size = size
        self._spare = spare
        self._memory: Bytes | None = None
        self.used = 0

    @property
    def memory(self) -> Bytes:
        if self._memory is None:
            self._memory = np.empty(self._size, np.uint8)
        return self._memory

    @property
    def full(self) -> bool:
        """Whether there is no room for more records."""
        return self._size - self.used < SCRATCH_BYTES

    @property
    @override
    def array(self) -> Bytes:
        if self.full:
            return self._spare.array
        return self.memory[self.used : self.used + SCRATCH_BYTES]

    def copy(self, data: Bytes) -> Bytes | None:
        """The same bytes, held; None when records would find no room behind them."""
        if self._size - self.used < data.size + SCRATCH_BYTES:
            return None
        held = self.memory[self.used : self.used + data.size]
        held[:] = data
        held.flags.writeable = False
        self.used += data.size
        return held


class ThinnedAhead:
    """Holds and keeps for one partition after the other; not for use by several threads at once.

    `SurvivorFinder` is what calls it in pass 1. Then `sections` has what pass 2 need not do, until the next
    partition begins.
    """

    def __init__(
        self, *, held_bytes: int = HELD_BYTES, kept_bytes: int = KEPT_BYTES, times: CodecTimes = NOT_TIMED
    ) -> None:
        self._held = _HeldMemory(held_bytes, Scratch(times))
        self._kept: Bytes | None = None
        self._kept_bytes = kept_bytes
        self._kept_used = self._most_held = self._most_kept = 0
        self._rewriting = Rewriting(delete_horizon_ms=None)
        self._at_once = self._full = False
        self._waiting: list[_Waiting] = []
        self._piece: _Waiting | None = None
        self._piece_start = self._reserved = 0
        self.sections: list[SectionAhead] = []
        """What pass 2 need not do, in the order in which pass 1 was fed sections: newest first."""

    @property
    def nbytes(self) -> int:
        """The most that was held and kept at a time."""
        return self._most_held + self._most_kept

    def begin_partition(self, rewriting: Rewriting) -> None:
        """Forget the last one. `rewriting` is as pass 2 will have it, if the answer will be exact."""
        self._rewriting = rewriting
        self._kept_used = 0
        self.sections = []
        self._let_go()

    def begin_section(self, *, judged_at_once: bool) -> None:
        """`judged_at_once`: what becomes of a piece is known when it was fed, not at the section's end."""
        self.sections.append(SectionAhead())
        self._at_once = judged_at_once
        self._full = False
        self._let_go()

    def begin_piece(
        self, data: Bytes, rows: BatchRows, *, offset_shift: int, leader_epoch: int
    ) -> Scratch | None:
        """Where to decompress the batches of the section's next piece; None when they are not for here."""
        section = self.sections[-1]
        section.pieces.append(None)
        compressed = (rows["attributes"] & CODEC_MASK) != 0
        if self._full or not compressed.any():
            return None
        if self._kept_bytes - self._kept_used - self._reserved < data.size:
            self._full = True
            return None
        self._piece_start = self._held.used
        held = data if self._at_once else self._held.copy(data)
        if held is None:
            self._full = True
            return None
        self._reserved += data.size
        self._piece = _Waiting(len(section.pieces) - 1, held, rows, offset_shift, leader_epoch)
        return self._held

    def opened(self, records: Bytes, run: BatchRows) -> None:
        """A run of the piece's rows is done with, whose records are there."""
        if self._piece is None or not run["attributes"][0] & CODEC_MASK:
            return
        if not np.may_share_memory(records, self._held.memory):
            self._let_piece_go()
            return
        run["records_start"] += self._held.used
        run["records_end"] += self._held.used
        self._held.used += records.size

    def _let_piece_go(self) -> None:
        """Its records are not held: there is no room, or they are not for the kernels."""
        assert self._piece is not None
        self._full = self._held.full
        self._held.used = self._piece_start
        self._reserved -= self._piece.data.size
        self._piece = None

    def end_piece(self) -> None:
        """All of the piece was opened."""
        if self._piece is not None:
            self._waiting.append(self._piece)
        self._piece = None
        self._most_held = max(self._most_held, self._held.used)

    @property
    def waits(self) -> bool:
        """Whether there are pieces, or one is being opened, to which a judgement would matter."""
        return bool(self._waiting) or self._piece is not None

    def give_up_section(self) -> None:
        """It will not be judged all at a time."""
        self._let_go()
        self._full = True

    def thin(self, judged: Sequence[Judged], *, exact: bool) -> None:
        """Filter what waits, all of which was `judged`; `exact`: the answer was so far."""
        rewriting = self._rewriting if exact else replace(self._rewriting, delete_horizon_ms=None)
        offsets, tombstones = (
            ArrayWindow(np.concatenate([each[column] for each in judged])) for column in (0, 1)
        )
        for piece in self._waiting:
            filtered = filter_rows(
                piece.data,
                piece.rows,
                Chosen(offsets, tombstones),
                rewriting,
                offset_shift=piece.offset_shift,
                leader_epoch=piece.leader_epoch,
                opener=partial(held_batches, held=self._held.memory),
                times=self._held.times,
            )
            first, last = _span(piece)
            hangs = rewriting.delete_horizon_ms is not None and tombstones.between(first, last).size > 0
            self._keep(piece, filtered, if_exact=bool(hangs))
        self._let_go()

    def finish(self, *, exact: bool) -> None:
        """Pass 1 has its answer."""
        if exact:
            return
        for section in self.sections:
            section.pieces = [None if piece and piece.if_exact else piece for piece in section.pieces]

    def _keep(self, piece: _Waiting, filtered: FilteredBatches, *, if_exact: bool) -> None:
        if self._kept_bytes - self._kept_used < filtered.size:  # it may grow, where codecs change
            return
        if self._kept is None:
            self._kept = np.empty(self._kept_bytes, np.uint8)
        start = self._kept_used
        for buffer in filtered.buffers:
            self._kept[self._kept_used : self._kept_used + len(buffer)] = buffer
            self._kept_used += len(buffer)
        self._most_kept = max(self._most_kept, self._kept_used)
        buffers = (self._kept[start : self._kept_used].data,) if filtered.size else ()
        self.sections[-1].pieces[piece.place] = PieceAhead(
            replace(filtered, buffers=buffers), int(piece.rows["record_count"].sum()), if_exact
        )

    def _let_go(self) -> None:
        self._waiting.clear()
        self._piece = None
        self._held.used = self._piece_start = self._reserved = 0


def _span(piece: _Waiting) -> tuple[int, int]:
    """The first and the last offset of the piece."""
    first, last = piece.rows[0], piece.rows[-1]
    return (
        int(first["base_offset"]) + piece.offset_shift,
        int(last["base_offset"]) + int(last["last_offset_delta"]) + piece.offset_shift,
    )
