"""How a stage of the shuffle plan knows that it has all rows of the one before: each sender says how many.

Spark may run a task again although some of the next stage have read what it made: because its output was
lost, on suspicion, or for whatever else a cluster is set to. Tasks of the next stage may then have rows of
different executions. Those that succeed make the same rows, but for counts and times: their inputs are
objects that never change, and seed and time are the job's. But an execution may also fail, and an answer made
of the rows that it had sent by then would lose the records of the others.

So every task ends what it sends to each task of the next stage with a *marker*: how many rows there were, and
how many records they stand for. Markers come last, and an execution that fails sends none. Whoever misses
one, or has other rows than it says, fails the job, which may be tried again. That holds for any mixture of
executions, and needs nothing of Spark's settings.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from core.errors import CorruptDataError
from spark_jobs.errors import IncompleteShuffleError
from spark_jobs.shuffle.rows import END, BlobRow, SurvivorRow

if TYPE_CHECKING:
    from collections.abc import Iterator

_MARKER: Final = struct.Struct("<qq")


@dataclass(slots=True)
class Tally:
    """What went from one task to another: rows, and the records they stand for."""

    rows: int = 0
    records: int = 0

    def pack(self) -> bytes:
        """As bytes, for the `data` of a marker."""
        return _MARKER.pack(self.rows, self.records)

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> Tally:
        """The mirror of `pack`; CorruptDataError for bytes that are none."""
        if len(data) != _MARKER.size:
            raise CorruptDataError(f"{len(data)} bytes are no marker of a stage's end")
        return cls(*_MARKER.unpack(data))


class Arrivals:
    """What one receiver has of each sender, against what the sender says."""

    def __init__(self) -> None:
        self._rows: defaultdict[int, int] = defaultdict(int)
        self._said: defaultdict[int, list[Tally]] = defaultdict(list)

    def add(self, sender: int) -> None:
        """A row came."""
        self._rows[sender] += 1

    def end(self, sender: int, data: bytes | memoryview) -> None:
        """A marker came."""
        self._said[sender].append(Tally.unpack(data))

    def check(self, senders: int, where: str) -> int:
        """How many records the senders say.

        Raises IncompleteShuffleError unless all rows of each of them are here, and its one marker.
        """
        records = 0
        for sender in range(senders):
            rows, said = self._rows[sender], self._said[sender]
            if [each.rows for each in said] != [rows]:
                told = " and ".join(str(each.rows) for each in said) or "no end"
                raise IncompleteShuffleError(
                    f"{where}: {rows} rows came from task {sender} of the stage before, which told of {told}",
                    remedy="the job may be tried again; Spark's log says which tasks it ran more than once",
                )
            records += said[0].records
        if unknown := (self._said.keys() | self._rows.keys()) - set(range(senders)):
            raise IncompleteShuffleError(
                f"{where}: rows came from tasks {sorted(unknown)} of the stage before, which has {senders}"
            )
        return records


class Departures:
    """What a share sends to each judge."""

    def __init__(self, share: int, judges: int) -> None:
        self._share = share
        self._tallies = [Tally() for _ in range(judges)]

    def add(self, row: BlobRow, records: int = 0) -> BlobRow:
        """A row goes, with so many records."""
        tally = self._tallies[row.judge]
        tally.rows += 1
        tally.records += records
        return row

    def ends(self) -> Iterator[BlobRow]:
        """The markers, when all rows have gone."""
        for judge, tally in enumerate(self._tallies):
            yield BlobRow(judge, END, self._share, 0, self._share, 0, tally.pack())


class JudgesPost:
    """What a task of the second stage gets and sends; it is one judge, or several where Spark joins them."""

    def __init__(self, shares: int) -> None:
        self._shares = shares
        self._came: defaultdict[int, Arrivals] = defaultdict(Arrivals)
        self._sent: defaultdict[tuple[int, int], Tally] = defaultdict(Tally)
        self._judged = 0

    def take(self, row: BlobRow) -> BlobRow:
        """A row came."""
        if row.kind == END:
            self._came[row.judge].end(row.share, row.data)
        else:
            self._came[row.judge].add(row.share)
        return row

    def judged(self, judge: int, share: int, records: int) -> None:
        """So many records of a share have their verdicts."""
        self._sent[judge, share].records += records
        self._judged += records

    def send(self, row: SurvivorRow) -> SurvivorRow:
        """A row goes."""
        self._sent[row.judge, row.share].rows += 1
        return row

    @property
    def judges(self) -> list[int]:
        """Those of whom anything came."""
        return sorted(self._came)

    def check(self, where: str) -> None:
        """IncompleteShuffleError unless everything came, and all of it was judged."""
        said = sum(
            arrivals.check(self._shares, f"{where}, judge {judge}") for judge, arrivals in self._came.items()
        )
        if said != self._judged:
            raise IncompleteShuffleError(
                f"{where}: {self._judged} records were judged, where {said} were sent"
            )

    def ends(self) -> Iterator[SurvivorRow]:
        """The markers, when all rows have gone."""
        for judge in self.judges:
            for share in range(self._shares):
                yield SurvivorRow(share, END, judge, data=self._sent[judge, share].pack())
