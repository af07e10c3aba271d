"""Who is read when: a job's extents, sorted into the one order in which every input only goes forward."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, NamedTuple

from catalog.jobs.byte_ranges import span_of
from catalog.model import PartitionId
from core.errors import InvalidInputError
from spark_jobs.task.retention_windows import spells_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from catalog.model import Extent, JobPartition, JobSpec


@dataclass(frozen=True, slots=True)
class Stretch:
    """The blocks of a file that begin at or after byte `start` and before byte `end`."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class InputPart:
    """The extents of one partition in one input file, by offset; `input_index` counts the job's inputs.

    With a `stretch`, only those of their blocks that begin in it. What comes of parts of different `spell`s
    goes into different sections.
    """

    input_index: int
    extents: tuple[Extent, ...]
    stretch: Stretch | None = None
    spell: int = 0

    @property
    def has_bytes(self) -> bool:
        """Whether there is anything to read."""
        return any(extent.length for extent in self.extents)

    @property
    def data_start(self) -> int:
        """The byte of the file where the section's data begins; for a part that has bytes."""
        return span_of(self.extents).start

    @property
    def data_end(self) -> int:
        """The byte behind the section's data; for a part that has bytes."""
        return span_of(self.extents).end

    @property
    def read_start(self) -> int:
        """The byte from which on its blocks begin: that of its data, or of its stretch."""
        return self.data_start if self.stretch is None else max(self.data_start, self.stretch.start)

    @property
    def read_end(self) -> int:
        """The byte before which its blocks begin."""
        return self.data_end if self.stretch is None else min(self.data_end, self.stretch.end)

    @property
    def cut_before(self) -> bool:
        """Whether the section's data begins before the stretch."""
        return self.stretch is not None and self.has_bytes and self.data_start < self.stretch.start

    @property
    def cut_behind(self) -> bool:
        """Whether the section's data goes on behind the stretch."""
        return self.stretch is not None and self.has_bytes and self.stretch.end < self.data_end

    def offset_of(self, stored: int | None) -> int:
        """The offset from which on a block's records are whose first batch is stored with offset `stored`.

        Batches that belong to no extent have no offsets: theirs is that of the next extent, or the part's
        end. None stands for what is behind the last block.
        """
        for extent in self.extents:
            if stored is not None and extent.length and stored <= extent.last_offset - extent.offset_shift:
                return max(stored + extent.offset_shift, extent.base_offset)
        return self.extents[-1].last_offset + 1


@dataclass(frozen=True, slots=True)
class PartitionWork:
    """One partition of a job and its parts, oldest first."""

    partition: JobPartition
    parts: tuple[InputPart, ...]

    @property
    def records_in(self) -> int:
        """How many records the catalog counts."""
        return sum(extent.record_count for part in self.parts for extent in part.extents)

    @property
    def unique_keys(self) -> bool:
        """Whether no key can be there twice, whatever is done: all is one part that has each key once."""
        parts = [part for part in self.parts if part.has_bytes]
        return len(parts) <= 1 and all(extent.unique_keys for part in parts for extent in part.extents)

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.partition.topic_name}-{self.partition.partition}"

    @property
    def partition_id(self) -> PartitionId:
        """Which section of each file this is."""
        return PartitionId(self.partition.topic_id, self.partition.partition)

    def narrowed(self, parts: Sequence[InputPart]) -> PartitionWork:
        """Those of the parts alone, which follow each other."""
        partition = replace(
            self.partition,
            base_offset=parts[0].extents[0].base_offset,
            upper_offset=parts[-1].extents[-1].last_offset + 1,
        )
        return PartitionWork(partition, tuple(parts))

    def by_spell(self) -> list[PartitionWork]:
        """What goes into a section each."""
        if self.parts[0].spell == self.parts[-1].spell:
            return [self]
        groups = groupby(self.parts, key=lambda part: part.spell)
        return [self.narrowed(tuple(parts)) for _, parts in groups]


def arrange(spec: JobSpec) -> list[PartitionWork]:
    """The job's partitions in the order of sections in files, each with its parts in the order of offsets.

    Partitions that cover no offsets are left out. Costs one pass over the extents and their sorting. Raises
    InvalidInputError unless the extents of every partition cover [base_offset, upper_offset) without gap or
    overlap, and no input's part reaches into another's.
    """
    partitions = {PartitionId(each.topic_id, each.partition): each for each in spec.partitions}
    parts: defaultdict[PartitionId, list[InputPart]] = defaultdict(list)
    for index, job_input in enumerate(spec.inputs):
        for partition_id, extents in _by_partition(job_input.extents).items():
            if partition_id not in partitions:
                raise InvalidInputError(
                    f"job {spec.job_id}: {job_input.object_name} gives an extent of"
                    f" {_name(partition_id)}, which is no partition of the job"
                )
            parts[partition_id].append(InputPart(index, extents))
    work = []
    for partition_id in sorted(partitions):
        partition = partitions[partition_id]
        ordered = tuple(sorted(parts[partition_id], key=lambda part: part.extents[0].base_offset))
        _check_cover(spec, partition, [extent for part in ordered for extent in part.extents])
        if ordered:
            work.append(PartitionWork(partition, _with_spells(partition, ordered, spec.now_ms)))
    return work


def _with_spells(partition: JobPartition, parts: tuple[InputPart, ...], now_ms: int) -> tuple[InputPart, ...]:
    if not partition.deduplicate or partition.expires_after_ms is None:
        return parts
    newest_ms = [max(extent.max_timestamp for extent in part.extents) for part in parts]
    spells = spells_of(newest_ms, partition.expires_after_ms, now_ms)
    return tuple(replace(part, spell=spell) for part, spell in zip(parts, spells, strict=True))


class InputUse(NamedTuple):
    """Up to where a pass needs an input: the last partition, by its place, its part, and the data's end."""

    last_place: int
    last_part: InputPart
    end: int


def input_uses(work: Sequence[PartitionWork], *, deduplicated_only: bool) -> dict[int, InputUse]:
    """For each input index that anything reads, how long it is needed."""
    uses: dict[int, InputUse] = {}
    for place, each in enumerate(work):
        if deduplicated_only and not each.partition.deduplicate:
            continue
        for part in each.parts:
            if part.has_bytes:
                before = uses.get(part.input_index)
                end = max(before.end if before is not None else 0, part.data_end)
                uses[part.input_index] = InputUse(place, part, end)
    return uses


def _by_partition(extents: Iterable[Extent]) -> dict[PartitionId, tuple[Extent, ...]]:
    found: defaultdict[PartitionId, list[Extent]] = defaultdict(list)
    for extent in extents:
        found[PartitionId(extent.topic_id, extent.partition)].append(extent)
    return {
        partition_id: tuple(sorted(each, key=lambda extent: extent.base_offset))
        for partition_id, each in found.items()
    }


def _check_cover(spec: JobSpec, partition: JobPartition, extents: Sequence[Extent]) -> None:
    where = f"job {spec.job_id}: partition {partition.topic_name}-{partition.partition}"
    expected = f"[{partition.base_offset}, {partition.upper_offset})"
    if not extents:
        if partition.base_offset == partition.upper_offset:
            return
        raise InvalidInputError(f"{where}: no extents cover {expected}")
    covered = f"[{extents[0].base_offset}, {extents[-1].last_offset + 1})"
    if covered != expected:
        raise InvalidInputError(f"{where}: the extents cover {covered}, not {expected}")
    for extent, following in pairwise(extents):
        if extent.last_offset + 1 != following.base_offset:
            raise InvalidInputError(
                f"{where}: an extent ends at {extent.last_offset} and the next begins at"
                f" {following.base_offset}"
            )


def _name(partition_id: PartitionId) -> str:
    return f"{partition_id.topic_id}/{partition_id.partition}"
