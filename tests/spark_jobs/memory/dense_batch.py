"""A log of one batch of the largest decompressed size, filled with as many records as possible: millions."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from catalog.jobs.json_format import write_spec
from catalog.model import Extent, FileFormat, FileKind, PartitionId
from core.clock import ManualClock
from core.ids import SeededIds
from object_format.codecs.codec import MAX_DECOMPRESSED_BATCH_BYTES, Codec, compress
from object_format.kernels.batches.encode import encode_records
from object_format.kernels.runtime.identity import KERNEL_DIGEST
from object_format.record_batch.headers import write_checksum
from object_format.segment_file import SegmentFileWriter, SegmentKind
from object_store.accounting import Purpose
from object_store.local.store import LocalStore
from object_store.names import ingestion_name
from tests.spark_jobs.memory.measured_job import SPEC
from tests.spark_jobs.reference_log import ReferenceLog

if TYPE_CHECKING:
    from pathlib import Path

DENSE_RECORDS = 4_860_000
"""Records of 14 bytes; those with short offsets take a little less."""

_HEADER = struct.Struct(">qiibIhiqqqhii")
_TIMESTAMP = 1000


@dataclass(frozen=True, kw_only=True)
class DenseCase:
    """The batch of a log, and the job over it.

    All `records` are tombstones with keys of four bytes. With `repeats`, every hundredth record has the key
    of the record before it. With `gap`, the offset after the last record has no record.
    """

    codec: Codec
    table_bytes: int
    records: int = DENSE_RECORDS
    repeats: bool = False
    gap: bool = False
    unique_keys: bool = False
    deduplicate: bool = True


def dense_batch(case: DenseCase) -> bytes:
    """Return the encoded batch."""
    count = case.records
    numbers = np.arange(count, dtype=np.uint32)
    if case.repeats:
        numbers[99::100] -= 1
    zeros, nothing = np.zeros(count, np.int64), np.zeros(count, np.uint8)
    fours = np.full(count, 4, np.int64)
    keys = (numbers * np.uint32(2654435761)).view(np.uint8)
    out = np.empty(MAX_DECOMPRESSED_BATCH_BYTES + 100, np.uint8)
    end = encode_records(
        out, 0, zeros, np.arange(count), keys, fours, nothing[:0], zeros - 1, nothing, zeros + 1
    )
    assert end <= MAX_DECOMPRESSED_BATCH_BYTES
    records = compress(case.codec, out[:end].data)
    rest = case.codec, count - 1 + case.gap, _TIMESTAMP, _TIMESTAMP, -1, -1, -1, count
    batch = bytearray(_HEADER.pack(0, _HEADER.size - 12 + len(records), 0, 2, 0, *rest) + records)
    write_checksum(memoryview(batch), 0, len(batch))
    return bytes(batch)


def write_dense_batch(directory: Path, case: DenseCase) -> Path:
    """Write the batch's file and the specification of the job over it."""
    clock = ManualClock()
    ids = SeededIds(1, clock)
    log = ReferenceLog(LocalStore(directory, ids), clock, ids)
    partition = PartitionId(log.create_topic("compact"), 0)
    file_id, session_id = ids.new_uuid(), ids.new_uuid()
    name = ingestion_name(session_id, file_id)
    pieces: list[bytes] = []
    writer = SegmentFileWriter(
        kind=SegmentKind.INGESTION,
        file_id=file_id,
        writer_id=session_id,
        created_ms=clock.now_ms(),
        sink=lambda data: pieces.append(bytes(data)),
    )
    writer.begin_section(partition.topic_id, partition.partition)
    writer.append(dense_batch(case))
    last_offset = case.records - 1 + case.gap
    section = writer.end_section(
        base_offset=0,
        last_offset=last_offset,
        record_count=case.records,
        min_timestamp=_TIMESTAMP,
        max_timestamp=_TIMESTAMP,
    )
    log.sizes[file_id] = writer.finish().size
    log.store.put(name, pieces, purpose=Purpose.INGEST)
    log.extents[partition] = [
        Extent(
            topic_id=partition.topic_id,
            partition=0,
            base_offset=0,
            last_offset=last_offset,
            record_count=case.records,
            min_timestamp=_TIMESTAMP,
            max_timestamp=_TIMESTAMP,
            file_id=file_id,
            object_name=name,
            file_kind=FileKind.INGESTION,
            position=section.data_position,
            length=section.data_length,
            index_position=0,
            index_length=0,
            offset_shift=0,
            leader_epoch=0,
            unique_keys=case.unique_keys,
            format=FileFormat(kernel_digest=KERNEL_DIGEST),
            committed_ms=0,
        )
    ]
    spec = log.job(table_bytes=case.table_bytes)
    partitions = tuple(replace(each, deduplicate=case.deduplicate) for each in spec.partitions)
    (directory / SPEC).write_bytes(write_spec(replace(spec, partitions=partitions)))
    return directory
