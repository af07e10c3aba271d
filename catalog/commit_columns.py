"""What a commit reads and writes, as columns: rows refer to sections of the file by their index in it."""

from __future__ import annotations

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


class ExtentRows:
    """New extents, and through them the partitions that they move."""

    def __init__(self, sections: SectionColumns) -> None:
        self._sections = sections
        self._indexes: list[int] = []
        self._rows: list[tuple[int, ...]] = []
        self._moved: list[tuple[int, int, int, int]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(
        self, index: int, extents: Sequence[AssignedExtent], partition: LockedPartition, log_end_offset: int
    ) -> None:
        """Note the extents that the section at `index` got, which end its partition at `log_end_offset`."""
        so_far = partition.max_timestamp
        for extent in extents:
            so_far = max(so_far, extent.max_timestamp)
            self._indexes.append(index)
            self._rows.append((so_far, partition.leader_epoch, *extent))
        self._moved.append((index, log_end_offset, so_far, len(extents)))

    def moved(self) -> list[int]:
        """The indexes of the sections whose partitions moved."""
        return [row[0] for row in self._moved]

    def partition_params(self) -> dict[str, object]:
        """The parameters of `move_partitions`."""
        indexes, ends, timestamps, counts = np.array(self._moved, dtype=np.int64).T
        return {
            **self._sections.keys_at(indexes),
            "log_end_offsets": arrays.bigints(ends),
            "max_timestamps": arrays.bigints(timestamps),
            "bytes": arrays.bigints(self._sections.lengths_at(indexes) * counts),
            "extents": arrays.bigints(counts),
        }

    def extent_params(self) -> dict[str, object]:
        """The parameters of `insert_extents` that are columns."""
        indexes = np.array(self._indexes, dtype=np.int64)
        columns = dict(zip(_EXTENT_NUMBERS, np.array(self._rows, dtype=np.int64).T, strict=True))
        leader_epochs = columns.pop("leader_epochs")
        return {
            **self._sections.keys_at(indexes),
            **self._sections.places_at(indexes),
            "leader_epochs": arrays.integers(leader_epochs),
            **{name: arrays.bigints(column) for name, column in columns.items()},
        }


class ProducerRows:
    """The producers named in a file: first looked up, then written as they are afterwards."""

    def __init__(self, sections: SectionColumns, named: Iterable[tuple[int, int]]) -> None:
        self._sections = sections
        self._named = list(named)
        self._states: list[tuple[int, int, int]] = []
        self._batches: list[str] = []

    @classmethod
    def named_in(cls, sections: Sequence[SectionCommit], columns: SectionColumns) -> ProducerRows:
        """Every producer that has a batch in one of the sections, once per section."""
        return cls(
            columns,
            (
                (index, producer_id)
                for index, section in enumerate(sections)
                for producer_id in {
                    run.producer.producer_id for run in section.runs if run.producer is not None
                }
            ),
        )

    @property
    def any_named(self) -> bool:
        """Whether there is one to look up."""
        return bool(self._named)

    @property
    def any_moved(self) -> bool:
        """Whether there is one to write."""
        return bool(self._states)

    def lookup_params(self) -> dict[str, object]:
        """The parameters of `read_producers`."""
        indexes, producer_ids = np.array(self._named, dtype=np.int64).T
        return {**self._sections.keys_at(indexes), "producer_ids": arrays.bigints(producer_ids)}

    def known(self, rows: Iterable[Row]) -> dict[int, dict[int, ProducerState]]:
        """The rows of `read_producers` by section's index and producer."""
        known: dict[int, dict[int, ProducerState]] = {}
        for number, epoch, numbers in rows:
            index, producer_id = self._named[number - 1]
            known.setdefault(index, {})[producer_id] = ProducerState(epoch, tuple(numbers))
        return known

    def add(self, index: int, states: Mapping[int, ProducerState]) -> None:
        """Note the states that producers have after the section at `index`."""
        for producer_id, state in states.items():
            self._states.append((index, producer_id, state.producer_epoch))
            self._batches.append(f"{{{str(state.numbers)[1:-1]}}}")

    def write_params(self) -> dict[str, object]:
        """The parameters of `write_producers`."""
        indexes, producer_ids, epochs = np.array(self._states, dtype=np.int64).T
        return {
            **self._sections.keys_at(indexes),
            "producer_ids": arrays.bigints(producer_ids),
            "producer_epochs": arrays.integers(epochs),
            "batches": self._batches,
        }
