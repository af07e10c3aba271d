"""A small system without agents and Spark: real catalog, local store, real files, simple compaction."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from pyroaring import BitMap64

from catalog.model import (
    BatchRun,
    FileCommit,
    JobResult,
    OutputExtent,
    OutputFile,
    PartitionId,
    SectionCommit,
)
from object_format.holes import holes_between
from object_format.offset_set import OffsetSet
from object_format.record_batch.records import Record, decode_batches, encode_batch, encode_records
from object_format.segment_file import ForwardReader, SegmentFileWriter, SegmentKind
from object_store.accounting import Purpose
from object_store.names import compacted_name, ingestion_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from catalog.model import Extent, Job, JobPartition, Topic
    from catalog.open import Catalog
    from core.clock import ManualClock
    from core.ids import Ids
    from object_store.local.store import LocalStore

Row = tuple[bytes, bytes | None]


@dataclass
class System:
    """Appends and compacts as agents and workers do, on one manual clock."""

    catalog: Catalog
    store: LocalStore
    clock: ManualClock
    ids: Ids
    session_id: UUID

    @classmethod
    def start(cls, catalog: Catalog, store: LocalStore, clock: ManualClock, ids: Ids) -> System:
        session_id = ids.new_uuid()
        catalog.sessions.register(session_id, "a test")
        return cls(catalog, store, clock, ids, session_id)

    def put(self, name: str, body: Sequence[bytes | memoryview]) -> None:
        """Write an object with the time of the test's clock; the store would use the machine's clock."""
        self.store.put(name, list(body), purpose=Purpose.INGEST)
        now = self.clock.now_ms() / 1000
        os.utime(self.path_of(name), (now, now))

    def path_of(self, name: str) -> Path:
        """Return the path of an object."""
        return Path(unquote(urlsplit(self.store.url).path)) / name

    def topic(self, name: str, partitions: int = 1, **config: str) -> Topic:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        return self.catalog.topics.create(name, partitions, settings)

    def upload(self, rows: Mapping[PartitionId, Sequence[Row]]) -> FileCommit:
        """Write an ingestion file without committing it; each partition's rows are one batch."""
        file_id = self.ids.new_uuid()
        parts: list[bytes | memoryview] = []
        writer = SegmentFileWriter(
            kind=SegmentKind.INGESTION,
            file_id=file_id,
            writer_id=self.session_id,
            created_ms=self.clock.now_ms(),
            sink=parts.append,
        )
        sections = []
        for key in sorted(rows):
            run = BatchRun(
                first_offset=0,
                offset_count=len(rows[key]),
                record_count=len(rows[key]),
                min_timestamp=self.clock.now_ms(),
                max_timestamp=self.clock.now_ms(),
            )
            writer.begin_section(key.topic_id, key.partition)
            keys, values = [row[0] for row in rows[key]], [row[1] for row in rows[key]]
            writer.append(encode_batch([self.clock.now_ms()] * len(keys), keys, values))
            entry = writer.end_section(
                base_offset=0,
                last_offset=run.offset_count - 1,
                record_count=run.record_count,
                min_timestamp=run.min_timestamp,
                max_timestamp=run.max_timestamp,
            )
            sections.append(
                SectionCommit(
                    topic_id=key.topic_id,
                    partition=key.partition,
                    position=entry.data_position,
                    length=entry.data_length,
                    runs=(run,),
                )
            )
        summary = writer.finish()
        commit = FileCommit(
            file_id=file_id,
            object_name=ingestion_name(self.session_id, file_id),
            size=summary.size,
            directory_length=summary.directory_length,
            session_id=self.session_id,
            sections=tuple(sections),
        )
        self.put(commit.object_name, parts)
        return commit

    def produce(self, rows: Mapping[PartitionId, Sequence[Row]]) -> FileCommit:
        commit = self.upload(rows)
        self.catalog.commits.commit(commit)
        return commit

    def read(self, extent: Extent) -> list[Record]:
        """Return the records of one extent."""
        stream = self.store.open_stream(extent.object_name, purpose=Purpose.FETCH)
        reader = ForwardReader(stream, name=extent.object_name)
        records: list[Record] = []
        while (section := reader.next_section()) is not None:
            if section.key != (extent.topic_id, extent.partition):
                continue
            for block in reader.blocks():
                for columns in decode_batches(block.payload, offset_shift=extent.offset_shift):
                    records += columns.records()
        stream.close()
        return [record for record in records if extent.base_offset <= record.offset <= extent.last_offset]

    def read_log(self, key: PartitionId) -> list[Record]:
        """Return every record of a partition, found through the catalog's extents."""
        (state,) = self.catalog.topics.states([key])
        extents = self.catalog.extents.from_offset(
            key.topic_id, key.partition, state.log_start_offset, max_extents=1000
        )
        return [record for extent in extents for record in self.read(extent)]

    def run_jobs(self, limit: int = 100) -> int:
        """Claim and compact submitted jobs, and return their number."""
        jobs = self.catalog.jobs.claim("a test", limit)
        for job in jobs:
            self.catalog.jobs.complete(self.write_outputs(job))
        return len(jobs)

    def write_outputs(self, job: Job) -> JobResult:
        """Write the files of an attempt, one for each cleanup policy, and return its result."""
        assert job.attempt_id is not None
        by_policy: dict[str, list[JobPartition]] = {}
        for part in job.spec.partitions:
            by_policy.setdefault(part.cleanup_policy, []).append(part)
        files = tuple(self._write_file(job, parts) for parts in by_policy.values())
        return JobResult(job_id=job.spec.job_id, attempt_id=job.attempt_id, files=files)

    def _write_file(self, job: Job, members: Sequence[JobPartition]) -> OutputFile:
        assert job.attempt_id is not None
        file_id = self.ids.new_uuid()
        parts: list[bytes | memoryview] = []
        writer = SegmentFileWriter(
            kind=SegmentKind.COMPACTED,
            file_id=file_id,
            writer_id=job.attempt_id,
            created_ms=self.clock.now_ms(),
            sink=parts.append,
        )
        outputs = [
            self._write_section(writer, job, part)
            for part in sorted(members, key=lambda part: (part.topic_id, part.partition))
        ]
        summary = writer.finish()
        name = compacted_name(job.spec.job_id, job.attempt_id, file_id)
        self.put(name, parts)
        return OutputFile(
            file_id=file_id,
            object_name=name,
            size=summary.size,
            directory_length=summary.directory_length,
            extents=tuple(outputs),
        )

    def _write_section(self, writer: SegmentFileWriter, job: Job, part: JobPartition) -> OutputExtent:
        records = sorted(
            (
                record
                for file in job.spec.inputs
                for extent in file.extents
                if (extent.topic_id, extent.partition) == (part.topic_id, part.partition)
                for record in self.read(extent)
            ),
            key=lambda record: record.offset,
        )
        if part.deduplicate:
            records = sorted(
                {record.key: record for record in records}.values(), key=lambda each: each.offset
            )
        writer.begin_section(part.topic_id, part.partition)
        if records:
            writer.append(encode_records(records))
        last = part.upper_offset - 1
        offsets = BitMap64([record.offset for record in records])
        times = [record.timestamp for record in records] or [-1]
        entry = writer.end_section(
            base_offset=part.base_offset,
            last_offset=last,
            record_count=len(records),
            min_timestamp=min(times),
            max_timestamp=max(times),
            unique_keys=part.deduplicate,
            holes=holes_between(OffsetSet.of(offsets), part.base_offset, last),
        )
        return OutputExtent(
            topic_id=part.topic_id,
            partition=part.partition,
            base_offset=part.base_offset,
            last_offset=last,
            record_count=len(records),
            min_timestamp=min(times),
            max_timestamp=max(times),
            position=entry.data_position,
            length=entry.data_length,
            index_position=entry.index_position,
            index_length=entry.index_length,
            unique_keys=part.deduplicate,
        )
