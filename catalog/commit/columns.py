"""What a commit reads and writes, as columns: rows refer to sections of the file by their index in it."""

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
    from catalog.database.connection import Row
    from catalog.model import SectionCommit

_EXTENT_NUMBERS = (
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
_MOVES = ("indexes", "log_end_offsets", "max_timestamps", "extents")


class SectionColumns:
    """A file's sections as columns, from which rows of other tables are picked by index."""

    def __init__(self, sections: Sequence[SectionCommit]) -> None:
        self._topic_ids = arrays.uuid_values(section.topic_id for section in sections)
        self._partitions = np.array([section.partition for section in sections], dtype=">i4")
        self._positions = np.array([section.position for section in sections], dtype=">i8")
        self._lengths = np.array([section.length for section in sections], dtype=">i8")

    def keys(self) -> dict[str, object]:
        """All sections' keys, as parameters."""
        return {
            "topic_ids": arrays.uuids_of(self._topic_ids),
            "partitions": arrays.integers(self._partitions),
        }

    def keys_at(self, indexes: NDArray[np.int64]) -> dict[str, object]:
        """The keys of the sections at `indexes`, as parameters."""
        return {
            "topic_ids": arrays.uuids_of(self._topic_ids[indexes]),
            "partitions": arrays.integers(self._partitions[indexes]),
        }

    def places_at(self, indexes: NDArray[np.int64]) -> dict[str, object]:
        """Where the sections at `indexes` lie in the file, as parameters."""
        return {
            "positions": arrays.bigints(self._positions[indexes]),
            "lengths": arrays.bigints(self._lengths[indexes]),
        }

    def lengths_at(self, indexes: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many bytes the sections at `indexes` have."""
        return self._lengths[indexes].astype(np.int64)


class NamedProducers:
    """The producers that have a batch in a file, once per section."""

    def __init__(self, sections: Sequence[SectionCommit], columns: SectionColumns) -> None:
        self._columns = columns
        self._named = [
            (index, producer_id)
            for index, section in enumerate(sections)
            for producer_id in {run.producer.producer_id for run in section.runs if run.producer is not None}
        ]

    def __len__(self) -> int:
        return len(self._named)

    @property
    def sections(self) -> list[int]:
        """The section of each, by its number in `read_producers` less one."""
        return [index for index, _ in self._named]

    def params(self) -> dict[str, object]:
        """The parameters of `read_producers`."""
        indexes, producer_ids = np.array(self._named, dtype=np.int64).T
        return {**self._columns.keys_at(indexes), "producer_ids": arrays.bigints(producer_ids)}

    def known(self, rows: Iterable[Row]) -> dict[int, dict[int, ProducerState]]:
        """The rows of `read_producers` by section's index and producer."""
        known: dict[int, dict[int, ProducerState]] = {}
        for number, epoch, batches in rows:
            index, producer_id = self._named[number - 1]
            known.setdefault(index, {})[producer_id] = ProducerState(epoch, batches)
        return known


class CommitRows:
    """New extents, the partitions that they move, and the producers that moved on."""

    def __init__(self, columns: SectionColumns, locked: LockedPartitions) -> None:
        self._columns = columns
        self._locked = locked
        self._extents: list[tuple[int, ...]] = []
        self._moved: list[tuple[int, ...]] = []
        self._producers: list[tuple[int, int, int]] = []
        self._batches: list[bytes] = []
        self._bulk: BulkAssignment | None = None

    def add_extents(self, index: int, extents: Sequence[AssignedExtent], log_end_offset: int) -> None:
        """Note the extents that the section at `index` got, which end its partition at `log_end_offset`."""
        so_far = int(self._locked.max_timestamps[index])
        leader_epoch = int(self._locked.leader_epochs[index])
        for extent in extents:
            so_far = max(so_far, extent.max_timestamp)
            self._extents.append((index, so_far, leader_epoch, *extent))
        self._moved.append((index, log_end_offset, so_far, len(extents)))

    def add_producers(self, index: int, states: Mapping[int, ProducerState]) -> None:
        """Note the states that producers have after the section at `index`."""
        for producer_id, state in states.items():
            self._producers.append((index, producer_id, state.producer_epoch))
            self._batches.append(state.batches)

    def add_bulk(self, bulk: BulkAssignment) -> None:
        """Note what was decided by columns; once."""
        self._bulk = bulk

    def columns(self) -> WrittenRows:
        """All of it, when nothing more comes."""
        extents, moved = (
            arrays.columns(self._extents, len(_EXTENT_NUMBERS)),
            arrays.columns(self._moved, len(_MOVES)),
        )
        producers, batches = arrays.columns(self._producers, 3), self._batches
        bulk = self._bulk
        if bulk is not None:
            so_far = np.maximum(self._locked.max_timestamps[bulk.indexes], bulk.max_timestamps)
            ends = bulk.base_offsets + bulk.offset_counts
            more = (
                bulk.indexes,
                so_far,
                self._locked.leader_epochs[bulk.indexes],
                bulk.base_offsets,
                ends - 1,
                bulk.record_counts,
                bulk.min_timestamps,
                bulk.max_timestamps,
                bulk.base_offsets,  # its one run begins at the section's offset 0
            )
            extents = np.hstack([extents, more])
            moved = np.hstack([moved, (bulk.indexes, ends, so_far, np.ones_like(ends))])
            producers = np.hstack([producers, bulk.producers[:3]])
            batches = [*batches, *bulk.producers.batches]
        return WrittenRows(self._columns, extents, moved, producers, batches)


class WrittenRows:
    """The rows that a commit writes, as parameters."""

    def __init__(
        self,
        sections: SectionColumns,
        extents: NDArray[np.int64],
        moved: NDArray[np.int64],
        producers: NDArray[np.int64],
        batches: Sequence[bytes],
    ) -> None:
        self._sections = sections
        self._extents = dict(zip(_EXTENT_NUMBERS, extents, strict=True))
        self._moved = dict(zip(_MOVES, moved, strict=True))
        self._producers = producers
        self._batches = batches

    def __len__(self) -> int:
        """How many extents there are."""
        return len(self._extents["indexes"])

    @property
    def live_bytes(self) -> int:
        """What the extents add up to; a section's bytes count once for each of its extents."""
        return int(self._sections.lengths_at(self._extents["indexes"]).sum())

    @property
    def any_producers(self) -> bool:
        """Whether a producer moved on."""
        return bool(self._batches)

    def partition_params(self) -> dict[str, object]:
        """The parameters of `move_partitions`."""
        indexes, counts = self._moved["indexes"], self._moved["extents"]
        return {
            **self._sections.keys_at(indexes),
            "log_end_offsets": arrays.bigints(self._moved["log_end_offsets"]),
            "max_timestamps": arrays.bigints(self._moved["max_timestamps"]),
            "bytes": arrays.bigints(self._sections.lengths_at(indexes) * counts),
            "extents": arrays.bigints(counts),
        }

    def extent_params(self) -> dict[str, object]:
        """The parameters of `insert_extents` that are columns."""
        columns = dict(self._extents)
        indexes, leader_epochs = columns.pop("indexes"), columns.pop("leader_epochs")
        return {
            **self._sections.keys_at(indexes),
            **self._sections.places_at(indexes),
            "leader_epochs": arrays.integers(leader_epochs),
            **{name: arrays.bigints(column) for name, column in columns.items()},
        }

    def producer_params(self) -> dict[str, object]:
        """The parameters of `write_producers`."""
        indexes, producer_ids, epochs = self._producers
        return {
            **self._sections.keys_at(indexes),
            "producer_ids": arrays.bigints(producer_ids),
            "producer_epochs": arrays.integers(epochs),
            "batches": arrays.byteas(self._batches),
        }
