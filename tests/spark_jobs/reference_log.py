"""A small log of real segment files, with a reference model of its records in plain dictionaries.

`ReferenceLog` plays agent and catalog: it writes ingestion files, assigns offsets, makes jobs and publishes
their results. It also keeps the records themselves and compacts them with dictionaries.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from catalog.model import Extent, FileFormat, FileKind, JobInput, JobPartition, JobSpec, PartitionId
from object_format.codecs.codec import Codec
from object_format.kernels.runtime.identity import KERNEL_DIGEST
from object_format.record_batch.headers import assign_offsets
from object_format.record_batch.records import NO_PRODUCER, Record, decode_batches, encode_batch
from object_format.segment_file import SegmentFileWriter, SegmentKind, parse_data_blocks
from object_store.accounting import Purpose
from object_store.names import ingestion_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from catalog.model import JobResult, OutputExtent
    from core.clock import ManualClock
    from core.ids import Ids
    from object_store.interface import ObjectStore

DELETE_RETENTION_MS = 10_000
TABLE_BYTES = 1 << 20

_OWN = FileFormat(kernel_digest=KERNEL_DIGEST)


@dataclass(frozen=True)
class BatchToWrite:
    """Records as (timestamp, key, value, headers); a rejected batch is in the file, but not in the log.

    A batch with a producer id is transactional.
    """

    records: tuple[tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]], ...]
    codec: Codec = Codec.NONE
    rejected: bool = False
    control: bool = False
    producer_id: int | None = None


def batch(*pairs: tuple[bytes | None, bytes | None], **options: object) -> BatchToWrite:
    """Return a batch of (key, value) records at intervals of a millisecond."""
    records = tuple((1000 + index, key, value, ()) for index, (key, value) in enumerate(pairs))
    return BatchToWrite(records, **options)  # type: ignore[arg-type]


@dataclass
class ReferenceRecord:
    """A live record; `horizon_ms` is the delete horizon of a tombstone that a compaction has seen."""

    record: Record
    control: bool = False
    horizon_ms: int | None = None


@dataclass
class ReferenceLog:
    store: ObjectStore
    clock: ManualClock
    ids: Ids
    policies: dict[UUID, str] = field(default_factory=dict)
    extents: defaultdict[PartitionId, list[Extent]] = field(default_factory=lambda: defaultdict(list))
    records: defaultdict[PartitionId, list[ReferenceRecord]] = field(
        default_factory=lambda: defaultdict(list)
    )
    ends: defaultdict[PartitionId, int] = field(default_factory=lambda: defaultdict(int))
    sizes: dict[UUID, int] = field(default_factory=dict)

    def create_topic(self, cleanup_policy: str) -> UUID:
        """Create a topic; its partitions are the ones that are written."""
        topic_id = self.ids.new_uuid()
        self.policies[topic_id] = cleanup_policy
        return topic_id

    def ingest(
        self,
        sections: Mapping[PartitionId, Sequence[BatchToWrite]],
        block_target: int = 4096,
        kind: SegmentKind = SegmentKind.INGESTION,
    ) -> UUID:
        """Write one file and append its batches to the log, except rejected ones.

        A compacted file has the same batches, and an index of their blocks. None may be rejected.
        """
        file_id, session_id = self.ids.new_uuid(), self.ids.new_uuid()
        name = ingestion_name(session_id, file_id)
        pieces: list[bytes] = []
        writer = SegmentFileWriter(
            kind=kind,
            file_id=file_id,
            writer_id=session_id,
            created_ms=self.clock.now_ms(),
            sink=lambda data: pieces.append(bytes(data)),
            block_target=block_target,
        )
        entries = []
        for partition_id in sorted(sections):
            data = b"".join(map(encode, sections[partition_id]))
            relative = bytearray(data)
            base = self.ends[partition_id] if kind is SegmentKind.COMPACTED else 0
            end = assign_offsets(relative, base)
            writer.begin_section(partition_id.topic_id, partition_id.partition)
            writer.append(relative)
            timestamps = [each[0] for every in sections[partition_id] for each in every.records]
            entries.append(
                writer.end_section(
                    base_offset=base,
                    last_offset=end - 1,
                    record_count=len(timestamps),
                    min_timestamp=min(timestamps),
                    max_timestamp=max(timestamps),
                )
            )
        self.sizes[file_id] = writer.finish().size
        self.store.put(name, pieces, purpose=Purpose.INGEST)
        for entry in entries:
            partition_id = PartitionId(entry.topic_id, entry.partition)
            empty = Extent(
                topic_id=entry.topic_id,
                partition=entry.partition,
                base_offset=0,
                last_offset=-1,
                record_count=0,
                min_timestamp=-1,
                max_timestamp=-1,
                file_id=file_id,
                object_name=name,
                file_kind=FileKind(kind.name.lower()),
                position=entry.data_position,
                length=entry.data_length,
                index_position=entry.index_position,
                index_length=entry.index_length,
                offset_shift=0,
                leader_epoch=3,
                unique_keys=False,
                committed_ms=self.clock.now_ms(),
            )
            self._commit(partition_id, sections[partition_id], empty, stored=entry.base_offset)
        return file_id

    def _commit(
        self, partition_id: PartitionId, batches: Sequence[BatchToWrite], empty: Extent, stored: int
    ) -> None:
        """Assign offsets; every rejected batch ends an extent."""
        extent: Extent | None = None
        for each in batches:
            count = len(each.records)
            if each.rejected:
                extent = None
            else:
                base = self.ends[partition_id]
                if extent is None:
                    extent = empty._replace(base_offset=base, offset_shift=base - stored)
                    self.extents[partition_id].append(extent)
                timestamps = [record[0] for record in each.records]
                first = extent.record_count == 0
                extent = extent._replace(
                    last_offset=base + count - 1,
                    record_count=extent.record_count + count,
                    min_timestamp=min(timestamps) if first else min(extent.min_timestamp, *timestamps),
                    max_timestamp=max(extent.max_timestamp, *timestamps),
                )
                self.extents[partition_id][-1] = extent
                for index, (timestamp, key, value, headers) in enumerate(each.records):
                    record = Record(base + index, timestamp, key, value, headers)
                    self.records[partition_id].append(ReferenceRecord(record, control=each.control))
                self.ends[partition_id] = base + count
            stored += count

    def job(
        self,
        extents: Mapping[PartitionId, Sequence[Extent]] | None = None,
        *,
        table_bytes: int = TABLE_BYTES,
        delete_retention_ms: int = DELETE_RETENTION_MS,
    ) -> JobSpec:
        """Return a job over these adjacent extents of each partition; over all by default."""
        chosen = self.extents if extents is None else extents
        inputs: defaultdict[UUID, list[Extent]] = defaultdict(list)
        partitions = []
        for partition_id, each in chosen.items():
            policy = self.policies[partition_id.topic_id]
            partitions.append(
                JobPartition(
                    topic_id=partition_id.topic_id,
                    partition=partition_id.partition,
                    topic_name=f"topic-{policy}",
                    cleanup_policy=policy,
                    compression_type="producer",
                    deduplicate="compact" in policy,
                    reaches_log_start=each[0].base_offset == 0,
                    base_offset=each[0].base_offset,
                    upper_offset=each[-1].last_offset + 1,
                    delete_retention_ms=delete_retention_ms,
                )
            )
            for extent in each:
                inputs[extent.file_id].append(extent)
        return JobSpec(
            job_id=self.ids.new_uuid(),
            created_ms=self.clock.now_ms(),
            now_ms=self.clock.now_ms(),
            hash_seed=self.ids.random_bytes(16),
            table_bytes=table_bytes,
            reason="test",
            inputs=tuple(
                JobInput(
                    file_id=file_id,
                    object_name=each[0].object_name,
                    size=self.sizes[file_id],
                    extents=tuple(sorted(each, key=lambda extent: extent.position)),
                )
                for file_id, each in inputs.items()
            ),
            partitions=tuple(partitions),
        )

    def publish(self, spec: JobSpec, result: JobResult) -> None:
        """Replace extents as the catalog does, and compact the reference model."""
        fresh: defaultdict[PartitionId, list[Extent]] = defaultdict(list)
        for file in result.files:
            self.sizes[file.file_id] = file.size
            for output in file.extents:
                extent = self.extent_of(output, file.file_id, file.object_name, file.format)
                fresh[PartitionId(output.topic_id, output.partition)].append(extent)
        for partition in spec.partitions:
            partition_id = PartitionId(partition.topic_id, partition.partition)
            before = self.extents[partition_id]
            older = [extent for extent in before if extent.last_offset < partition.base_offset]
            newer = [extent for extent in before if extent.base_offset >= partition.upper_offset]
            inside = sorted(fresh[partition_id], key=lambda extent: extent.base_offset)
            self.extents[partition_id] = [*older, *inside, *newer]
            self._compact(partition_id, partition, spec.now_ms)

    def extent_of(
        self, output: OutputExtent, file_id: UUID, object_name: str, file_format: FileFormat = _OWN
    ) -> Extent:
        """Return a section of a compacted file as the catalog's extent."""
        return Extent(
            topic_id=output.topic_id,
            partition=output.partition,
            base_offset=output.base_offset,
            last_offset=output.last_offset,
            record_count=output.record_count,
            min_timestamp=output.min_timestamp,
            max_timestamp=output.max_timestamp,
            file_id=file_id,
            object_name=object_name,
            file_kind=FileKind.COMPACTED,
            position=output.position,
            length=output.length,
            index_position=output.index_position,
            index_length=output.index_length,
            offset_shift=0,
            leader_epoch=5,
            unique_keys=output.unique_keys,
            committed_ms=self.clock.now_ms(),
            format=file_format,
        )

    def _compact(self, partition_id: PartitionId, partition: JobPartition, now_ms: int) -> None:
        if not partition.deduplicate:
            return
        records = self.records[partition_id]
        inside = range(partition.base_offset, partition.upper_offset)
        newest = {
            each.record.key: each.record.offset
            for each in records
            if each.record.offset in inside and not each.control
        }
        kept = []
        for each in records:
            record = each.record
            if record.offset not in inside or each.control:
                kept.append(each)
            elif record.key is not None and newest[record.key] == record.offset:
                if record.value is not None or not partition.reaches_log_start:
                    kept.append(each)
                elif each.horizon_ms is None:
                    horizon_ms = now_ms + partition.delete_retention_ms
                    kept.append(replace(each, horizon_ms=horizon_ms) if horizon_ms < 1 << 63 else each)
                elif each.horizon_ms > now_ms:
                    kept.append(each)
        self.records[partition_id] = kept

    def expected(self, partition_id: PartitionId) -> list[Record]:
        """Return the records of the reference model that a reader from offset 0 must get."""
        return [each.record for each in self.records[partition_id] if not each.control]

    def read(self, partition_id: PartitionId) -> list[Record]:
        """Return the records that a reader gets through extents and bytes."""
        found: list[Record] = []
        for extent in self.extents[partition_id]:
            if not extent.length:
                continue
            data = self.store.read_range(
                extent.object_name, extent.position, extent.length, purpose=Purpose.FETCH
            )
            for payload in parse_data_blocks(
                data,
                name=extent.object_name,
                file_id=extent.file_id,
                position=extent.position,
                section=(extent.topic_id, extent.partition),
            ):
                for columns in decode_batches(payload, offset_shift=extent.offset_shift, verify=True):
                    found += [
                        record
                        for record in columns.records()
                        if extent.base_offset <= record.offset <= extent.last_offset
                    ]
        return found

    def check(self) -> None:
        """Verify that extents cover each log without gaps, and that records equal the reference model."""
        for partition_id, extents in self.extents.items():
            bounds = [(extent.base_offset, extent.last_offset + 1) for extent in extents]
            assert [first for first, _ in bounds] == [0, *(end for _, end in bounds[:-1])]
            assert bounds[-1][1] == self.ends[partition_id]
            assert self.read(partition_id) == self.expected(partition_id)


def encode(each: BatchToWrite) -> bytes:
    """Return a batch as a producer sends it."""
    return encode_batch(
        [record[0] for record in each.records],
        [record[1] for record in each.records],
        [record[2] for record in each.records],
        [record[3] for record in each.records],
        codec=each.codec,
        is_control=each.control,
        is_transactional=each.control or each.producer_id is not None,
        producer=NO_PRODUCER if each.producer_id is None else (each.producer_id, 0, 0),
    )
