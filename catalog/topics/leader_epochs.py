"""Leader epochs of partitions in the object store, and where each of them begins.

All partitions are in the epoch of the catalog's incarnation. A partition has an entry for each epoch in which
it received records. The rules are those of Kafka's LeaderEpochFileCache (KIP-101, KIP-320).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from catalog.database import arrays
from catalog.database.sql_files import load_queries
from catalog.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from catalog.database.pool import Database

_SQL = load_queries("leader_epochs")
UNDEFINED: Final = -1


class EpochEnd(NamedTuple):
    """The last known epoch up to the requested one, and its end; both are `UNDEFINED` for a later epoch."""

    leader_epoch: int
    end_offset: int


class EpochHistory:
    """Leader epochs of one partition: the entries by epoch, and the current epoch up to the log end."""

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        """Take (epoch, first offset) by epoch. What precedes the first entry belongs to epoch 0."""
        self._entries = [(0, 0), *(entry for entry in entries if entry[0] > 0)]

    def end_of(self, epoch: int, *, current: int, log_end_offset: int) -> EpochEnd:
        """Return the end of `epoch`, while the partition is in epoch `current`."""
        if epoch == current:
            return EpochEnd(epoch, log_end_offset)
        if not 0 <= epoch < current:
            return EpochEnd(UNDEFINED, UNDEFINED)
        following = bisect_right(self._entries, epoch, key=_epoch)
        found = self._entries[following - 1][0]
        end = self._entries[following][1] if following < len(self._entries) else log_end_offset
        return EpochEnd(found, end)

    def at(self, offset: int, *, current: int, log_end_offset: int) -> int:
        """Return the epoch of the record at `offset`; the current epoch at the log end."""
        if offset >= log_end_offset:
            return current
        return self._entries[bisect_right(self._entries, offset, key=_start) - 1][0]


NO_HISTORY: Final = EpochHistory()


class LeaderEpochs:
    """Leader epochs of a catalog; part of `Catalog`, thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of_partitions(self, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, EpochHistory]:
        """Return the histories of partitions that have records of a later epoch than 0."""
        params = {
            "topic_ids": arrays.uuids(partition.topic_id for partition in partitions),
            "partitions": arrays.integers([partition.partition for partition in partitions]),
        }
        entries: dict[PartitionId, list[tuple[int, int]]] = {}
        for row in self._database.read("leader_epochs.of_partitions", _SQL["epochs_of_partitions"], params):
            key = PartitionId(row.topic_id, row.partition)
            entries.setdefault(key, []).append((row.leader_epoch, row.start_offset))
        return {key: EpochHistory(found) for key, found in entries.items()}


def _epoch(entry: tuple[int, int]) -> int:
    return entry[0]


def _start(entry: tuple[int, int]) -> int:
    return entry[1]
