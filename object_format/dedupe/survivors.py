"""Pass 1: which records of a partition survive.

Sections are fed newest first. A record survives when its key was not seen yet, so the table holds
fingerprints and nothing else. Inside a section, records come oldest first: unless all its keys are distinct,
they are held back until its end and then judged from the last to the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bedrock.errors import FatalError
from object_format.dedupe.answer import Answer, Survivors
from object_format.dedupe.fingerprinting import Columns, Fingerprinter

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from object_format.dedupe.ahead import ThinnedAhead
    from object_format.dedupe.answer import Judged
    from object_format.dedupe.key_table import KeyTable
    from object_format.payloads import Scratch

MAX_HELD_RECORDS: Final = 2_000_000
"""How many records of one section are held back at most: 42 MB of fingerprints, offsets and flags. An
ingestion file's section of 8 MiB has fewer than 1.2 million, unless its batches are compressed beyond all
measure."""

_STEP_RECORDS: Final = 32_768
"""How many records are fingerprinted before they are judged, where nothing must be held back."""


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
        self._judged: list[Judged] = []
        self._answer = Answer(table, expected_keys=expected_records)
        self._reaches_log_start = reaches_log_start
        self._max_held = max_held_records
        self._held = Columns(_STEP_RECORDS)
        self._in_section = False
        self._unique_keys = False
        self._settled = False
        self._overflowed = False
        self._max_buffer_bytes = self._held.nbytes

    def begin_section(self, *, unique_keys: bool, settled: bool = False) -> None:
        """What is fed next is older than everything before it; `unique_keys`: no key occurs twice in it.

        `settled` says more: no key of it occurs in a section that is still to come, either, whose order
        then is free. Such keys are looked up and not remembered, so that they take no room in the table.
        """
        if self._in_section:
            raise FatalError("a section begins before the last has ended")
        self._in_section, self._unique_keys, self._settled = True, unique_keys or settled, settled
        self._overflowed = False
        self._judged.clear()
        self._fingerprinter.restart()
        if self._ahead is not None:
            self._ahead.begin_section(judged_at_once=self._unique_keys)

    def feed(self, batches: Buffer, *, offset_shift: int, leader_epoch: int = 0) -> None:
        """The next whole batches of the section, in the order of their offsets, else MalformedBatchError.

        `leader_epoch` is what those will have that are written ahead.
        """
        if not self._in_section:
            raise FatalError("batches are fed outside a section")
        for _full in self._fingerprinter.fill(
            self._held, batches, offset_shift=offset_shift, leader_epoch=leader_epoch, ahead=self._ahead
        ):
            self._make_room()
        if self._unique_keys and self._ahead is not None:
            if self._ahead.waits:
                self._judge(may_add=True)
                self._thin(self._ahead)
            self._judged.clear()  # of a piece that was let go before its end

    def end_section(self) -> None:
        """All batches of the section have been fed."""
        if not self._in_section:
            raise FatalError("a section ends that has not begun")
        self._judge(may_add=True)
        if self._ahead is not None and self._ahead.waits:
            self._thin(self._ahead)
        self._in_section = False

    def finish(self) -> Survivors:
        """The answer, when every section has been fed, or all since the last answer."""
        if self._in_section:
            raise FatalError("pass 1 finishes inside a section")
        if self._ahead is not None:
            self._ahead.finish(exact=self._answer.exact)
        return self._answer.finish(max_buffer_bytes=self._max_buffer_bytes)

    def _make_room(self) -> None:
        """Judge what is held where that is sound, else hold more, else let go of what cannot be proven."""
        if self._unique_keys:
            self._judge(may_add=True)
        elif not self._held.grow(self._max_held):
            self._overflowed = True
            if self._ahead is not None:
                self._ahead.give_up_section()
            self._judge(may_add=False)
        self._max_buffer_bytes = max(self._max_buffer_bytes, self._held.nbytes)

    def _judge(self, *, may_add: bool) -> None:
        """Let the survivors among the held records into the bitmaps.

        Records of a section that is too long to be held are judged before newer ones of the same section are
        known: they must not enter the table, or they would push those out. None of that section's tombstones
        goes, as records that they shadow may have stayed.
        """
        held = self._held
        judged = self._answer.judge(
            held.words,
            held.offsets,
            held.flags,
            held.count,
            newest_last=not self._unique_keys,
            drop_tombstones=self._reaches_log_start and not self._overflowed,
            may_add=may_add and not self._settled,
            settled=self._settled,
        )
        held.count = 0
        if self._ahead is not None and self._ahead.waits:
            self._judged.append(judged)

    def _thin(self, ahead: ThinnedAhead) -> None:
        """What waits has been judged, all of it."""
        ahead.thin(self._judged, exact=self._answer.exact)
        self._judged.clear()
