"""A log in a real catalog, whose ingestion files the test writes itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from catalog.model import (
    BatchRun,
    FileCommit,
    JobInput,
    JobPartition,
    JobSpec,
    PartitionId,
    SectionCommit,
)
from object_format.record_batch.headers import assign_offsets
from object_format.record_batch.records import Record, decode_batches
from object_format.segment_file import SegmentFileWriter, SegmentKind, parse_data_blocks
from object_store.accounting import Purpose
from object_store.names import ingestion_name
from tests.spark_jobs.reference_log import BatchToWrite, encode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from catalog.model import Extent, FileKind, Topic
    from catalog.open import Catalog
    from core.ids import Ids
    from object_store.interface import ObjectStore

NOW_MS = 1_700_000_000_000


class CatalogLog:
    """A log; plays the agent and the planner."""

    def __init__(self, catalog: Catalog, store: ObjectStore, ids: Ids) -> None:
        self.catalog = catalog
        self.store = store
        self.ids = ids
        self.session_id = ids.new_uuid()
        catalog.sessions.register(self.session_id, "a test")
        self.sizes: dict[UUID, int] = {}

    def create_topic(self, name: str, cleanup_policy: str, partitions: int = 1) -> Topic:
        """Create a topic in the catalog."""
        return self.catalog.topics.create(name, partitions, {"cleanup.policy": cleanup_policy})

    def ingest(self, sections: Mapping[PartitionId, Sequence[BatchToWrite]]) -> str:
        """Write and commit one file; return its name."""
        file_id = self.ids.new_uuid()
        name = ingestion_name(self.session_id, file_id)
        pieces: list[bytes] = []
        writer = SegmentFileWriter(
            kind=SegmentKind.INGESTION,
            file_id=file_id,
            writer_id=self.session_id,
            created_ms=NOW_MS,
            sink=lambda data: pieces.append(bytes(data)),
        )
        commits = []
        for partition_id in sorted(sections):
            batches = sections[partition_id]
            data = bytearray(b"".join(map(encode, batches)))
            end = assign_offsets(data)
            timestamps = [each[0] for every in batches for each in every.records]
            run = BatchRun(
                first_offset=0,
                offset_count=end,
                record_count=end,
                min_timestamp=min(timestamps),
                max_timestamp=max(timestamps),
            )
            writer.begin_section(partition_id.topic_id, partition_id.partition)
            writer.append(data)
            entry = writer.end_section(
                base_offset=0,
                last_offset=end - 1,
                record_count=end,
                min_timestamp=run.min_timestamp,
                max_timestamp=run.max_timestamp,
            )
            commits.append(
                SectionCommit(
                    topic_id=entry.topic_id,
                    partition=entry.partition,
                    position=entry.data_position,
                    length=entry.data_length,
                    runs=(run,),
                )
            )
        summary = writer.finish()
        self.sizes[file_id] = summary.size
        self.store.put(name, pieces, purpose=Purpose.INGEST)
        self.catalog.commits.commit(
            FileCommit(
                file_id=file_id,
                object_name=name,
                size=summary.size,
                directory_length=summary.directory_length,
                session_id=self.session_id,
                sections=tuple(commits),
            )
        )
        return name

    def extents(self, partition_id: PartitionId, kind: FileKind | None = None) -> list[Extent]:
        """Return the live extents of a partition, or those in files of one kind."""
        found = self.catalog.extents.from_offset(
            partition_id.topic_id, partition_id.partition, 0, max_extents=1000
        )
        return [extent for extent in found if kind in (None, extent.file_kind)]

    def submit(
        self, topic: Topic, partitions: Sequence[int] = (0,), *, table_bytes: int = 1 << 20
    ) -> JobSpec:
        """Submit a job over all extents of these partitions."""
        extents = [
            extent for number in partitions for extent in self.extents(PartitionId(topic.topic_id, number))
        ]
        files = dict.fromkeys(extent.file_id for extent in extents)
        spec = JobSpec(
            job_id=self.ids.new_uuid(),
            created_ms=NOW_MS,
            now_ms=NOW_MS,
            hash_seed=self.ids.random_bytes(16),
            table_bytes=table_bytes,
            reason="a test",
            inputs=tuple(
                JobInput(
                    file_id=file_id,
                    object_name=next(each.object_name for each in extents if each.file_id == file_id),
                    size=self.sizes[file_id],
                    extents=tuple(each for each in extents if each.file_id == file_id),
                )
                for file_id in files
            ),
            partitions=tuple(
                JobPartition(
                    topic_id=topic.topic_id,
                    partition=number,
                    topic_name=topic.name,
                    cleanup_policy=topic.config.cleanup_policy,
                    compression_type=topic.config.compression_type,
                    deduplicate=topic.config.compacts,
                    reaches_log_start=True,
                    base_offset=0,
                    upper_offset=max(each.last_offset for each in extents if each.partition == number) + 1,
                    delete_retention_ms=topic.config.delete_retention_ms,
                )
                for number in partitions
            ),
        )
        self.catalog.jobs.submit(spec)
        return spec

    def read(self, partition_id: PartitionId) -> list[Record]:
        """Return the records that a reader gets."""
        found: list[Record] = []
        for extent in self.extents(partition_id):
            data = self.store.read_range(
                extent.object_name, extent.position, extent.length, purpose=Purpose.FETCH
            )
            for payload in parse_data_blocks(
                data, name=extent.object_name, file_id=extent.file_id, position=extent.position
            ):
                for columns in decode_batches(payload, offset_shift=extent.offset_shift):
                    found += columns.records()
        return found
