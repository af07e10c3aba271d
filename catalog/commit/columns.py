"""Columns that a commit reads and writes. Rows refer to a section by its index in the file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from catalog.commit.sequences import ProducerState
from catalog.database import arrays

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from catalog.commit.assignment import AssignedExtent
    from catalog.commit.bulk_assignment import BulkAssignment, LockedPartitions
    from catalog.database.connection import TupleRow
    from catalog.model import SectionCommit

_EXTENT_COLUMNS = (
    "indexes",
    "max_timestamps_so_far",
    "leader_epochs",
    "base_offsets",
    "last_offsets",
    "record_counts",
    "min_timestamps",
    "max_timestamps",
    "offset_shifts",
)
_PARTITION_COLUMNS = ("indexes", "log_end_offsets", "max_timestamps", "extents")


class SectionColumns:
    """Columns of a file's sections."""

    def __init__(self, sections: Sequence[SectionCommit]) -> None:
        self._topic_ids = arrays.uuid_values(section.topic_id for section in sections)
        self._partitions = np.array([section.partition for section in sections], dtype=">i4")
        self._positions = np.array([section.position for section in sections], dtype=">i8")
        self._lengths = np.array([section.length for section in sections], dtype=">i8")

    def keys(self) -> dict[str, object]:
        """Return the keys of all sections, as query parameters."""
        return {
            "topic_ids": arrays.uuids_of(self._topic_ids),
            "partitions": arrays.integers(self._partitions),
        }

    def keys_at(self, indexes: NDArray[np.int64]) -> dict[str, object]:
        """Return the keys of the sections at `indexes`, as query parameters."""
        return {
            "topic_ids": arrays.uuids_of(self._topic_ids[indexes]),
            "partitions": arrays.integers(self._partitions[indexes]),
        }

    def byte_ranges_at(self, indexes: NDArray[np.int64]) -> dict[str, object]:
        """Return positions and lengths of the sections at `indexes`, as query parameters."""
        return {
            "positions": arrays.bigints(self._positions[indexes]),
            "lengths": arrays.bigints(self._lengths[indexes]),
        }

    def lengths_at(self, indexes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the lengths in bytes of the sections at `indexes`."""
        return self._lengths[indexes].astype(np.int64)


class StampedProducers:
    """Idempotent producers of a file: one entry per section and producer."""

    def __init__(self, sections: Sequence[SectionCommit], columns: SectionColumns) -> None:
        self._columns = columns
        self._entries = [
            (index, producer_id)
            for index, section in enumerate(sections)
            for producer_id in {run.producer.producer_id for run in section.runs if run.producer is not None}
        ]
        self.have_transactions = bool(self._entries) and any(
            run.producer is not None and run.producer.is_transactional
            for section in sections
            for run in section.runs
        )

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def sections(self) -> list[int]:
        """Return the section index of each entry; `read_producers` numbers the entries from 1."""
        return [index for index, _ in self._entries]

    def params(self) -> dict[str, object]:
        """Return the parameters of `read_producers`."""
        indexes, producer_ids = np.array(self._entries, dtype=np.int64).T
        return {**self._columns.keys_at(indexes), "producer_ids": arrays.bigints(producer_ids)}

    def states_by_section(self, rows: Iterable[TupleRow]) -> dict[int, dict[int, ProducerState]]:
        """Convert the rows of `read_producers` to states by section index and producer id."""
        states: dict[int, dict[int, ProducerState]] = {}
        for number, epoch, batches in rows:
            index, producer_id = self._entries[number - 1]
            states.setdefault(index, {})[producer_id] = ProducerState(epoch, batches)
        return states


class CommitRowBuilder:
    """Collector of new extents, partition updates and producer states."""

    def __init__(self, columns: SectionColumns, locked: LockedPartitions) -> None:
        self._columns = columns
        self._locked = locked
        self._extents: list[tuple[int, ...]] = []
        self._partitions: list[tuple[int, ...]] = []
        self._producers: list[tuple[int, int, int]] = []
        self._batches: list[bytes] = []
        self._bulk: BulkAssignment | None = None

    def add_extents(self, index: int, extents: Sequence[AssignedExtent], log_end_offset: int) -> None:
        """Add the extents of the section at `index`, and the new log end offset of its partition."""
        max_timestamp_so_far = int(self._locked.max_timestamps[index])
        leader_epoch = int(self._locked.leader_epochs[index])
        for extent in extents:
            max_timestamp_so_far = max(max_timestamp_so_far, extent.max_timestamp)
            self._extents.append((index, max_timestamp_so_far, leader_epoch, *extent))
        self._partitions.append((index, log_end_offset, max_timestamp_so_far, len(extents)))

    def add_producers(self, index: int, states: Mapping[int, ProducerState]) -> None:
        """Add the new states of the producers of the section at `index`."""
        for producer_id, state in states.items():
            self._producers.append((index, producer_id, state.producer_epoch))
            self._batches.append(state.batches)

    def add_bulk(self, bulk: BulkAssignment) -> None:
        """Add the bulk assignment; call this at most once."""
        self._bulk = bulk

    def build(self) -> CommitRows:
        """Return all rows."""
        extents = arrays.columns(self._extents, len(_EXTENT_COLUMNS))
        partitions = arrays.columns(self._partitions, len(_PARTITION_COLUMNS))
        producers, batches = arrays.columns(self._producers, 3), self._batches
        bulk = self._bulk
        if bulk is not None:
            max_timestamps_so_far = np.maximum(self._locked.max_timestamps[bulk.indexes], bulk.max_timestamps)
            ends = bulk.base_offsets + bulk.offset_counts
            bulk_extents = (
                bulk.indexes,
                max_timestamps_so_far,
                self._locked.leader_epochs[bulk.indexes],
                bulk.base_offsets,
                ends - 1,
                bulk.record_counts,
                bulk.min_timestamps,
                bulk.max_timestamps,
                bulk.base_offsets,  # the offset shift: the only run begins at the section's offset 0
            )
            bulk_partitions = (bulk.indexes, ends, max_timestamps_so_far, np.ones_like(ends))
            extents = np.hstack([extents, bulk_extents])
            partitions = np.hstack([partitions, bulk_partitions])
            producers = np.hstack([producers, bulk.producers[:3]])
            batches = [*batches, *bulk.producers.batches]
        return CommitRows(self._columns, self._locked, extents, partitions, producers, batches)


class CommitRows:
    """Rows that a commit writes, as query parameters. The length is the number of extents."""

    def __init__(
        self,
        sections: SectionColumns,
        locked: LockedPartitions,
        extents: NDArray[np.int64],
        partitions: NDArray[np.int64],
        producers: NDArray[np.int64],
        batches: Sequence[bytes],
    ) -> None:
        self._sections = sections
        self._locked = locked
        self._extents = dict(zip(_EXTENT_COLUMNS, extents, strict=True))
        self._partitions = dict(zip(_PARTITION_COLUMNS, partitions, strict=True))
        self._producers = producers
        self._batches = batches

    def __len__(self) -> int:
        return len(self._extents["indexes"])

    @property
    def live_bytes(self) -> int:
        """Return the total length of the extents; a section counts once for each of its extents."""
        return int(self._sections.lengths_at(self._extents["indexes"]).sum())

    @property
    def has_producers(self) -> bool:
        """Return True if there are producer states to write."""
        return bool(self._batches)

    def partition_params(self) -> dict[str, object]:
        """Return the parameters of `advance_partitions`."""
        indexes, counts = self._partitions["indexes"], self._partitions["extents"]
        return {
            **self._sections.keys_at(indexes),
            "log_end_offsets": arrays.bigints(self._partitions["log_end_offsets"]),
            "max_timestamps": arrays.bigints(self._partitions["max_timestamps"]),
            "bytes": arrays.bigints(self._sections.lengths_at(indexes) * counts),
            "extents": arrays.bigints(counts),
        }

    @property
    def begin_epochs(self) -> bool:
        """Return True if a partition receives its first records in the commit's leader epoch."""
        return bool(self._locked.begins_epoch[self._partitions["indexes"]].any())

    def epoch_params(self) -> dict[str, object]:
        """Return the parameters of `begin_epochs`: the former log end offsets of these partitions."""
        indexes = self._partitions["indexes"]
        indexes = indexes[self._locked.begins_epoch[indexes]]
        return {
            **self._sections.keys_at(indexes),
            "start_offsets": arrays.bigints(self._locked.log_end_offsets[indexes]),
        }

    def extent_params(self) -> dict[str, object]:
        """Return the array parameters of `insert_extents`."""
        columns = dict(self._extents)
        indexes, leader_epochs = columns.pop("indexes"), columns.pop("leader_epochs")
        return {
            **self._sections.keys_at(indexes),
            **self._sections.byte_ranges_at(indexes),
            "leader_epochs": arrays.integers(leader_epochs),
            **{name: arrays.bigints(column) for name, column in columns.items()},
        }

    def producer_params(self) -> dict[str, object]:
        """Return the parameters of `write_producers`."""
        indexes, producer_ids, epochs = self._producers
        return {
            **self._sections.keys_at(indexes),
            "producer_ids": arrays.bigints(producer_ids),
            "producer_epochs": arrays.integers(epochs),
            "batches": arrays.byteas(self._batches),
        }
