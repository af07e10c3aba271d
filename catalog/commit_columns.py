"""The rows that a commit writes, gathered column by column."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from catalog import arrays
from catalog.sequences import KnownBatch, ProducerState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

    from catalog.assignment import AssignedExtent
    from catalog.database import Row
    from catalog.model import SectionCommit


@dataclass(frozen=True, slots=True)
class LockedPartition:
    """What a commit reads of a partition under its lock."""

    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    leader_epoch: int
    max_timestamp: int


class PartitionColumns:
    """New ends of logs, and what each partition gained."""

    def __init__(self) -> None:
        self.topic_ids: list[UUID] = []
        self.partitions: list[int] = []
        self._ends: list[int] = []
        self._timestamps: list[int] = []
        self._bytes: list[int] = []
        self._extents: list[int] = []

    def add(self, section: SectionCommit, end: int, max_timestamp: int, extents: int) -> None:
        """Note that a section moved its partition's end."""
        self.topic_ids.append(section.topic_id)
        self.partitions.append(section.partition)
        self._ends.append(end)
        self._timestamps.append(max_timestamp)
        self._bytes.append(section.length * extents)
        self._extents.append(extents)

    def params(self) -> dict[str, object]:
        """The parameters of `move_partitions`."""
        return {
            "topic_ids": arrays.uuids(self.topic_ids),
            "partitions": arrays.integers(self.partitions),
            "log_end_offsets": arrays.bigints(self._ends),
            "max_timestamps": arrays.bigints(self._timestamps),
            "bytes": arrays.bigints(self._bytes),
            "extents": arrays.bigints(self._extents),
        }


class ExtentColumns:
    """New extents of an ingestion file."""

    def __init__(self) -> None:
        self._topic_ids: list[UUID] = []
        self._numbers: list[tuple[int, ...]] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def add(
        self, section: SectionCommit, extent: AssignedExtent, max_timestamp_so_far: int, leader_epoch: int
    ) -> None:
        """Note one extent of a section."""
        self._topic_ids.append(section.topic_id)
        self._numbers.append(
            (
                section.partition,
                extent.base_offset,
                extent.last_offset,
                extent.record_count,
                extent.min_timestamp,
                extent.max_timestamp,
                max_timestamp_so_far,
                section.position,
                section.length,
                extent.offset_shift,
                leader_epoch,
            )
        )

    def params(self) -> dict[str, object]:
        """The parameters of `insert_extents` that are columns."""
        columns = list(zip(*self._numbers, strict=True)) or [()] * 11
        names = (
            "base_offsets",
            "last_offsets",
            "record_counts",
            "min_timestamps",
            "max_timestamps",
            "max_timestamps_so_far",
            "positions",
            "lengths",
            "offset_shifts",
        )
        return {
            "topic_ids": arrays.uuids(self._topic_ids),
            "partitions": arrays.integers(columns[0]),
            "leader_epochs": arrays.integers(columns[10]),
            **{name: arrays.bigints(column) for name, column in zip(names, columns[1:10], strict=True)},
        }


@dataclass(slots=True)
class ProducerColumns:
    """Producers of a commit: first the ones to look up, then the ones to write."""

    topic_ids: list[UUID] = field(default_factory=list)
    partitions: list[int] = field(default_factory=list)
    producer_ids: list[int] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    batches: list[str] = field(default_factory=list)

    @classmethod
    def named_in(cls, sections: Iterable[SectionCommit]) -> ProducerColumns:
        """Every producer that has a batch in one of the sections, once per partition."""
        columns = cls()
        for section in sections:
            producers = {run.producer.producer_id for run in section.runs if run.producer is not None}
            for producer_id in producers:
                columns._add(section, producer_id)
        return columns

    def _add(self, section: SectionCommit, producer_id: int) -> None:
        self.topic_ids.append(section.topic_id)
        self.partitions.append(section.partition)
        self.producer_ids.append(producer_id)

    def add(self, section: SectionCommit, states: Mapping[int, ProducerState]) -> None:
        """Note the states that producers have after the section."""
        for producer_id, state in states.items():
            self._add(section, producer_id)
            self.epochs.append(state.producer_epoch)
            numbers = (
                f"{batch.base_sequence},{batch.last_sequence},{batch.base_offset}" for batch in state.batches
            )
            self.batches.append(f"{{{','.join(numbers)}}}")

    def params(self) -> dict[str, object]:
        """The parameters of `read_producers`, and of `write_producers` when states were added."""
        return {
            "topic_ids": arrays.uuids(self.topic_ids),
            "partitions": arrays.integers(self.partitions),
            "producer_ids": arrays.bigints(self.producer_ids),
            "producer_epochs": arrays.integers(self.epochs),
            "batches": self.batches,
        }


def known_producers(rows: Iterable[Row]) -> dict[tuple[UUID, int], dict[int, ProducerState]]:
    """The rows of `read_producers` by partition and producer."""
    known: dict[tuple[UUID, int], dict[int, ProducerState]] = {}
    for topic_id, partition, producer_id, epoch, numbers in rows:
        batches = tuple(KnownBatch(*numbers[index : index + 3]) for index in range(0, len(numbers), 3))
        known.setdefault((topic_id, partition), {})[producer_id] = ProducerState(epoch, batches)
    return known
