"""What a commit reads and writes, as columns: rows refer to sections of the file by their index in it."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from catalog import arrays
from catalog.sequences import ProducerState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from catalog.assignment import AssignedExtent
    from catalog.database import Row
    from catalog.model import SectionCommit

_EXTENT_NUMBERS = (
    "max_timestamps_so_far",
    "leader_epochs",
    "base_offsets",
    "last_offsets",
    "record_counts",
    "min_timestamps",
    "max_timestamps",
    "offset_shifts",
)


class LockedPartition(NamedTuple):
    """What a commit reads of a partition under its lock."""

    log_start_offset: int
    log_end_offset: int
    leader_epoch: int
    max_timestamp: int


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

    def __init__(self, columns: SectionColumns) -> None:
        self._columns = columns
        self._indexes: list[int] = []
        self._extents: list[tuple[int, ...]] = []
        self._moved: list[tuple[int, int, int, int]] = []
        self._producers: list[tuple[int, int, int]] = []
        self._batches: list[bytes] = []

    def __len__(self) -> int:
        """How many extents there are."""
        return len(self._extents)

    @property
    def live_bytes(self) -> int:
        """What the extents add up to; a section's bytes count once for each of its extents."""
        return int(self._columns.lengths_at(np.array(self._indexes, dtype=np.int64)).sum())

    @property
    def any_producers(self) -> bool:
        """Whether a producer moved on."""
        return bool(self._producers)

    def add_extents(
        self, index: int, extents: Sequence[AssignedExtent], partition: LockedPartition, log_end_offset: int
    ) -> None:
        """Note the extents that the section at `index` got, which end its partition at `log_end_offset`."""
        so_far = partition.max_timestamp
        for extent in extents:
            so_far = max(so_far, extent.max_timestamp)
            self._indexes.append(index)
            self._extents.append((so_far, partition.leader_epoch, *extent))
        self._moved.append((index, log_end_offset, so_far, len(extents)))

    def add_producers(self, index: int, states: Mapping[int, ProducerState]) -> None:
        """Note the states that producers have after the section at `index`."""
        for producer_id, state in states.items():
            self._producers.append((index, producer_id, state.producer_epoch))
            self._batches.append(state.batches)

    def partition_params(self) -> dict[str, object]:
        """The parameters of `move_partitions`."""
        indexes, ends, timestamps, counts = np.array(self._moved, dtype=np.int64).T
        return {
            **self._columns.keys_at(indexes),
            "log_end_offsets": arrays.bigints(ends),
            "max_timestamps": arrays.bigints(timestamps),
            "bytes": arrays.bigints(self._columns.lengths_at(indexes) * counts),
            "extents": arrays.bigints(counts),
        }

    def extent_params(self) -> dict[str, object]:
        """The parameters of `insert_extents` that are columns."""
        indexes = np.array(self._indexes, dtype=np.int64)
        numbers = np.fromiter(chain.from_iterable(self._extents), dtype=np.int64)  # twice as fast as array()
        columns = dict(zip(_EXTENT_NUMBERS, numbers.reshape(len(self), -1).T, strict=True))
        leader_epochs = columns.pop("leader_epochs")
        return {
            **self._columns.keys_at(indexes),
            **self._columns.places_at(indexes),
            "leader_epochs": arrays.integers(leader_epochs),
            **{name: arrays.bigints(column) for name, column in columns.items()},
        }

    def producer_params(self) -> dict[str, object]:
        """The parameters of `write_producers`."""
        indexes, producer_ids, epochs = np.array(self._producers, dtype=np.int64).T
        return {
            **self._columns.keys_at(indexes),
            "producer_ids": arrays.bigints(producer_ids),
            "producer_epochs": arrays.integers(epochs),
            "batches": arrays.byteas(self._batches),
        }
