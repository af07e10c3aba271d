"""Row counts that prove to a stage of the shuffle plan that it has all rows of the stage before.

Spark may run a task again after some tasks of the next stage have read its output: because the output was
lost, by speculation, or for other reasons of the cluster. Tasks of the next stage may then have rows of
different executions. Executions that succeed produce the same rows, except for counts and times, because
their inputs never change and the job fixes seed and time. But an execution may also fail, and a result made
of the rows that it sent before would lose records.

Therefore every task ends its output for each task of the next stage with a *marker*: the number of rows, the
number of records that they stand for, and the digest of the kernels that computed them. Markers come last,
and a failed execution sends none. A receiver that lacks a marker, has a different number of rows, or has
other kernels, fails the job, which may be retried. This holds for every mixture of executions and depends on
no setting of Spark.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from core.errors import CorruptDataError
from object_format.kernels.runtime.identity import KERNEL_DIGEST
from spark_jobs.errors import IncompleteShuffleError
from spark_jobs.shuffle.rows import END, BlobRow, SurvivorRow
from spark_jobs.transport import check_kernels

if TYPE_CHECKING:
    from collections.abc import Iterator

_MARKER: Final = struct.Struct("<qq32s")  # the last field is the kernels' digest


@dataclass(slots=True)
class Tally:
    """Rows that one task sent to another, and the records that they stand for."""

    rows: int = 0
    records: int = 0

    def pack(self) -> bytes:
        """Return the bytes for the `data` of a marker."""
        return _MARKER.pack(self.rows, self.records, bytes.fromhex(KERNEL_DIGEST))

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> Tally:
        """Reverse `pack`.

        Raise KernelMismatchError if the sender has other kernels, CorruptDataError for other bytes.
        """
        if len(data) != _MARKER.size:
            raise CorruptDataError(f"{len(data)} bytes are not a marker")
        rows, records, digest = _MARKER.unpack(data)
        check_kernels(digest.hex(), "a task of the stage before")
        return cls(rows, records)


class ReceivedRows:
    """Rows that one receiver got from each sender, and the senders' markers."""

    def __init__(self) -> None:
        self._rows: defaultdict[int, int] = defaultdict(int)
        self._markers: defaultdict[int, list[Tally]] = defaultdict(list)

    def add(self, sender: int) -> None:
        """Count a row."""
        self._rows[sender] += 1

    def end(self, sender: int, data: bytes | memoryview) -> None:
        """Take a marker."""
        self._markers[sender].append(Tally.unpack(data))

    def check(self, senders: int, where: str) -> int:
        """Return the number of records according to the senders.

        Raise IncompleteShuffleError unless every sender's rows are complete and it sent exactly one marker.
        """
        records = 0
        for sender in range(senders):
            rows, markers = self._rows[sender], self._markers[sender]
            if [each.rows for each in markers] != [rows]:
                sent = " and ".join(str(each.rows) for each in markers) or "no marker"
                raise IncompleteShuffleError(
                    f"{where}: {rows} rows came from task {sender} of the stage before, which sent {sent}",
                    remedy="run the job again; Spark's log says which tasks it ran more than once",
                )
            records += markers[0].records
        if unknown := (self._markers.keys() | self._rows.keys()) - set(range(senders)):
            raise IncompleteShuffleError(
                f"{where}: rows came from tasks {sorted(unknown)} of the stage before, which has {senders}"
            )
        return records


class SentRows:
    """Counts of the rows that a share sends to each judge."""

    def __init__(self, share: int, judges: int) -> None:
        self._share = share
        self._tallies = [Tally() for _ in range(judges)]

    def add(self, row: BlobRow, records: int = 0) -> BlobRow:
        """Count a row that stands for `records` records, and return it."""
        tally = self._tallies[row.judge]
        tally.rows += 1
        tally.records += records
        return row

    def ends(self) -> Iterator[BlobRow]:
        """Yield the markers, after all rows."""
        for judge, tally in enumerate(self._tallies):
            yield BlobRow(judge, END, self._share, 0, self._share, 0, tally.pack())


class JudgeExchange:
    """Rows that a task of the second stage receives and sends, for one judge or several."""

    def __init__(self, shares: int) -> None:
        self._shares = shares
        self._received: defaultdict[int, ReceivedRows] = defaultdict(ReceivedRows)
        self._sent: defaultdict[tuple[int, int], Tally] = defaultdict(Tally)
        self._judged = 0

    def take(self, row: BlobRow) -> BlobRow:
        """Count a received row and return it."""
        if row.kind == END:
            self._received[row.judge].end(row.share, row.data)
        else:
            self._received[row.judge].add(row.share)
        return row

    def judged(self, judge: int, share: int, records: int) -> None:
        """Count judged records of a share."""
        self._sent[judge, share].records += records
        self._judged += records

    def send(self, row: SurvivorRow) -> SurvivorRow:
        """Count a sent row and return it."""
        self._sent[row.judge, row.share].rows += 1
        return row

    @property
    def judges(self) -> list[int]:
        """The judges that received rows."""
        return sorted(self._received)

    def check(self, where: str) -> None:
        """Raise IncompleteShuffleError unless all rows arrived and all their records were judged."""
        expected = sum(
            arrivals.check(self._shares, f"{where}, judge {judge}")
            for judge, arrivals in self._received.items()
        )
        if expected != self._judged:
            raise IncompleteShuffleError(
                f"{where}: {self._judged} records were judged, but {expected} were sent"
            )

    def ends(self) -> Iterator[SurvivorRow]:
        """Yield the markers, after all rows."""
        for judge in self.judges:
            for share in range(self._shares):
                yield SurvivorRow(share, END, judge, data=self._sent[judge, share].pack())
