"""A simple compaction of one topic, so that reads meet compacted files with holes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyroaring import BitMap64

from catalog.model import (
    Extent,
    JobInput,
    JobPartition,
    JobResult,
    JobSpec,
    OutputExtent,
    OutputFile,
    PartitionId,
)
from catalog.topics.extents import ExtentRequest
from object_format.holes import holes_between
from object_format.offset_set import OffsetSet
from object_format.record_batch.headers import trim_batches
from object_format.record_batch.records import Record, decode_batches, encode_records
from object_format.segment_file import SegmentFileWriter, SegmentKind, parse_data_blocks
from object_store.accounting import Purpose
from object_store.names import compacted_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from uuid import UUID

    from catalog.model import Topic
    from catalog.open import Catalog
    from core.ids import Ids
    from object_store.interface import ObjectStore

NOW_MS = 1_700_000_000_000


def compact(
    catalog: Catalog,
    store: ObjectStore,
    ids: Ids,
    topic: Topic,
    *,
    partition: int = 0,
    keep: Callable[[Record], bool],
    block_target: int = 1000,
) -> str:
    """Replace all extents by one with the records that `keep` accepts; return the name of its object."""
    return compact_partitions(
        catalog, store, ids, topic, partitions=[partition], keep=keep, block_target=block_target
    )


def compact_partitions(
    catalog: Catalog,
    store: ObjectStore,
    ids: Ids,
    topic: Topic,
    *,
    partitions: Sequence[int],
    keep: Callable[[Record], bool],
    block_target: int = 1000,
) -> str:
    """Do the same for several partitions, whose sections are in one file."""
    states = catalog.topics.partitions(topic.topic_id)
    wanted = [
        ExtentRequest(PartitionId(topic.topic_id, number), states[number].log_start_offset, 2**30)
        for number in sorted(partitions)
    ]
    found = catalog.extents.from_offsets(wanted, max_bytes=2**40, max_extents=10_000)
    extents = {request.partition.partition: each for request, each in zip(wanted, found, strict=True)}
    spec = _spec(ids, topic, extents)
    catalog.jobs.submit(spec)
    (job,) = catalog.jobs.claim("test", 1)
    assert job.attempt_id is not None
    file_id = ids.new_uuid()
    name = compacted_name(spec.job_id, job.attempt_id, file_id)
    kept = [
        [record for extent in each for record in _records(store, extent) if keep(record)]
        for each in extents.values()
    ]
    output, body = _write(file_id, job.attempt_id, name, spec, kept, block_target)
    store.put(name, [body], purpose=Purpose.COMPACTION)
    catalog.jobs.complete(JobResult(job_id=spec.job_id, attempt_id=job.attempt_id, files=(output,)))
    return name


def _spec(ids: Ids, topic: Topic, extents: Mapping[int, Sequence[Extent]]) -> JobSpec:
    by_file: dict[UUID, list[Extent]] = {}
    for found in extents.values():
        for extent in found:
            by_file.setdefault(extent.file_id, []).append(extent)
    return JobSpec(
        job_id=ids.new_uuid(),
        created_ms=NOW_MS,
        now_ms=NOW_MS,
        hash_seed=ids.random_bytes(16),
        table_bytes=1000,
        reason="a test",
        inputs=tuple(
            JobInput(
                file_id=file_id,
                object_name=group[0].object_name,
                size=0,
                extents=tuple(sorted(group, key=lambda each: each.position)),
            )
            for file_id, group in by_file.items()
        ),
        partitions=tuple(
            JobPartition(
                topic_id=topic.topic_id,
                partition=number,
                topic_name=topic.name,
                cleanup_policy="compact",
                compression_type="producer",
                deduplicate=True,
                reaches_log_start=True,
                base_offset=found[0].base_offset,
                upper_offset=found[-1].last_offset + 1,
                delete_retention_ms=0,
            )
            for number, found in extents.items()
        ),
    )


def _records(store: ObjectStore, extent: Extent) -> Iterator[Record]:
    if extent.length == 0:
        return
    data = store.read_range(extent.object_name, extent.position, extent.length, purpose=Purpose.COMPACTION)
    for payload in parse_data_blocks(
        data, name=extent.object_name, file_id=extent.file_id, position=extent.position
    ):
        batches = trim_batches(
            payload,
            first_offset=extent.base_offset,
            last_offset=extent.last_offset,
            offset_shift=extent.offset_shift,
        )
        for columns in decode_batches(batches, offset_shift=extent.offset_shift):
            yield from columns.records()


def _write(
    file_id: UUID, attempt_id: UUID, name: str, spec: JobSpec, kept: list[list[Record]], block_target: int
) -> tuple[OutputFile, bytes]:
    parts: list[bytes | memoryview] = []
    writer = SegmentFileWriter(
        kind=SegmentKind.COMPACTED,
        file_id=file_id,
        writer_id=attempt_id,
        created_ms=NOW_MS,
        sink=parts.append,
        block_target=block_target,
    )
    extents = tuple(
        _write_section(writer, partition, records)
        for partition, records in zip(spec.partitions, kept, strict=True)
    )
    summary = writer.finish()
    output = OutputFile(
        file_id=file_id,
        object_name=name,
        size=summary.size,
        directory_length=summary.directory_length,
        extents=extents,
    )
    return output, b"".join(parts)


def _write_section(
    writer: SegmentFileWriter, partition: JobPartition, kept: Sequence[Record]
) -> OutputExtent:
    last = partition.upper_offset - 1
    writer.begin_section(partition.topic_id, partition.partition)
    for record in kept:
        writer.append(encode_records([record]))
    entry = writer.end_section(
        base_offset=partition.base_offset,
        last_offset=last,
        record_count=len(kept),
        min_timestamp=min((record.timestamp for record in kept), default=-1),
        max_timestamp=max((record.timestamp for record in kept), default=-1),
        unique_keys=True,
        holes=holes_between(
            OffsetSet.of(BitMap64(record.offset for record in kept)), partition.base_offset, last
        ),
    )
    return OutputExtent(
        topic_id=partition.topic_id,
        partition=partition.partition,
        base_offset=entry.base_offset,
        last_offset=entry.last_offset,
        record_count=entry.record_count,
        min_timestamp=entry.min_timestamp,
        max_timestamp=entry.max_timestamp,
        position=entry.data_position,
        length=entry.data_length,
        index_position=entry.index_position,
        index_length=entry.index_length,
        unique_keys=entry.unique_keys,
    )
