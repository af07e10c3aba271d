"""Helpers for tests of the catalog: topics, a session, files to commit, and jobs to run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from catalog.errors import TopicNotFoundError
from catalog.jobs.validation import inputs_by_partition
from catalog.model import (
    BatchRun,
    FileCommit,
    JobInput,
    JobPartition,
    JobResult,
    JobSpec,
    OutputExtent,
    OutputFile,
    PartitionId,
    ProducerStamp,
    SectionCommit,
)
from catalog.transactions.repository import EndRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from catalog.lifecycle.retention import Retention
    from catalog.model import Extent, Job, SectionResult, Topic
    from catalog.open import Catalog
    from catalog.transactions.rules import ProducerIdentity
    from core.ids import Ids


def advance_log_start(retention: Retention, topic_id: UUID, partition: int, offset: int) -> int:
    """Advance the log start offset of a partition, and return it.

    Raises TopicNotFoundError if the partition does not exist, or no longer exists.
    """
    key = PartitionId(topic_id, partition)
    starts = retention.advance_log_starts({key: offset})
    if key not in starts:
        raise TopicNotFoundError(f"there is no partition {partition} of topic {topic_id}")
    return starts[key]


def run_of(
    count: int,
    *,
    first: int = 0,
    at: int = 1000,
    producer: tuple[int, int, int] | None = None,
    in_transaction: bool = False,
    adds_partition: bool = False,
    transactional_id: str = "t",
) -> BatchRun:
    """Return a run of `count` records with timestamps from `at` on; `producer` is id, epoch and sequence.

    `transactional_id` is the one of the request of a run in a transaction.
    """
    stamp = None
    if producer is not None:
        stamp = ProducerStamp(
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=producer[2],
            is_transactional=in_transaction or adds_partition,
            adds_partition=adds_partition,
            transactional_id=transactional_id if in_transaction or adds_partition else None,
        )
    return BatchRun(
        first_offset=first,
        offset_count=count,
        record_count=count,
        min_timestamp=at,
        max_timestamp=at + count - 1,
        producer=stamp,
    )


def runs_of(*runs: BatchRun) -> tuple[BatchRun, ...]:
    """Return the runs at contiguous offsets from 0 on."""
    contiguous: list[BatchRun] = []
    end = 0
    for run in runs:
        contiguous.append(
            BatchRun(
                first_offset=end,
                offset_count=run.offset_count,
                record_count=run.record_count,
                min_timestamp=run.min_timestamp,
                max_timestamp=run.max_timestamp,
                producer=run.producer,
            )
        )
        end += run.offset_count
    return tuple(contiguous)


def with_keys(result: JobResult, *, unique: bool) -> JobResult:
    """Return the result with outputs that declare unique keys, or not."""
    return replace(
        result,
        files=tuple(
            replace(file, extents=tuple(replace(extent, unique_keys=unique) for extent in file.extents))
            for file in result.files
        ),
    )


def _key(extent: Extent) -> tuple[UUID, int, int]:
    return extent.topic_id, extent.partition, extent.base_offset


@dataclass
class Scene:
    """Catalog with a session."""

    catalog: Catalog
    ids: Ids
    session_id: UUID
    claims_files: bool = True
    """Whether jobs claim files of which they have all live extents, as the planner's jobs do."""

    @classmethod
    def set_up(cls, catalog: Catalog, ids: Ids) -> Scene:
        """Return a scene with a registered session."""
        session_id = ids.new_uuid()
        catalog.sessions.register(session_id, "a test")
        return cls(catalog, ids, session_id)

    def topic(self, name: str = "t", partitions: int = 1, **config: str) -> Topic:
        """Create a topic with compaction and retention; settings have `_` in place of `.`."""
        settings = {"cleanup.policy": "compact,delete"}
        settings |= {key.replace("_", "."): value for key, value in config.items()}
        return self.catalog.topics.create(name, partitions, settings)

    def end_request(
        self, name: str, producer: ProducerIdentity, *, commits: bool = True, bumps_epoch: bool = False
    ) -> EndRequest:
        """Return the request to end a transaction, which arrives now."""
        arrived_at = self.catalog.transactions._database.monotonic()
        return EndRequest(name, producer, commits, arrived_at, bumps_epoch)

    def remove_deleted_topics(self) -> None:
        """Remove the data of deleted topics, as garbage collection does after their delay."""
        while self.catalog.garbage.remove_deleted():
            pass

    def topic_with_extents(self, count: int) -> Topic:
        """Create a topic and commit `count` extents of five records to its partition."""
        topic = self.topic()
        for _ in range(count):
            self.commit(topic, run_of(5))
        return topic

    def file(self, sections: Mapping[PartitionId, Sequence[BatchRun]]) -> FileCommit:
        """Return an uploaded file; each section has 100 bytes."""
        file_id = self.ids.new_uuid()
        return FileCommit(
            file_id=file_id,
            object_name=f"v2/00/ingest/{self.session_id}/{file_id}.seg",
            size=100 * len(sections) + 64,
            directory_length=32,
            session_id=self.session_id,
            sections=tuple(
                SectionCommit(
                    topic_id=key.topic_id,
                    partition=key.partition,
                    position=100 * number,
                    length=100,
                    runs=runs_of(*runs),
                )
                for number, (key, runs) in enumerate(sorted(sections.items()))
            ),
        )

    def commit(self, topic: Topic, *runs: BatchRun, partition: int = 0) -> SectionResult:
        """Commit a file with one section."""
        (result,) = self.catalog.commits.commit(self.file({PartitionId(topic.topic_id, partition): runs}))
        return result

    def extents(self, topic: Topic, partition: int = 0, offset: int = 0) -> list[Extent]:
        """Return all extents of a partition."""
        return self.catalog.extents.from_offset(topic.topic_id, partition, offset, max_extents=10_000)

    def spec(self, extents: Sequence[Extent], *, reaches_log_start: bool | None = None) -> JobSpec:
        """Return a job that deduplicates these extents, which are contiguous in each partition.

        It knows whether the partition has older records, unless `reaches_log_start` says something else.
        """
        by_file: dict[UUID, list[Extent]] = {}
        for extent in extents:
            by_file.setdefault(extent.file_id, []).append(extent)
        live = {each.file_id: each.live_extents for each in self.catalog.planning.files_of(by_file)}
        # Some of these extents may be gone, and as many others of the file may be left.
        left = {_key(each) for each in self.catalog.planning.extents_of_files(by_file)}
        inputs = tuple(
            JobInput(
                file_id=file_id,
                object_name=group[0].object_name,
                size=1000,
                extents=tuple(sorted(group, key=lambda each: (each.position, each.base_offset))),
                is_whole=self.claims_files
                and len(group) == live.get(file_id)
                and left.issuperset(map(_key, group)),
            )
            for file_id, group in by_file.items()
        )
        spec = JobSpec(
            job_id=self.ids.new_uuid(),
            created_ms=1,
            now_ms=2,
            hash_seed=bytes(range(16)),
            table_bytes=1024,
            reason="a test",
            inputs=inputs,
            partitions=(),
        )
        by_partition = inputs_by_partition(spec)
        states = {
            PartitionId(state.topic_id, state.partition): state
            for state in self.catalog.topics.states(list(by_partition))
        }
        return JobSpec(
            job_id=spec.job_id,
            created_ms=1,
            now_ms=2,
            hash_seed=spec.hash_seed,
            table_bytes=1024,
            reason="a test",
            inputs=inputs,
            partitions=tuple(
                JobPartition(
                    topic_id=key.topic_id,
                    partition=key.partition,
                    topic_name="t",
                    cleanup_policy="compact",
                    compression_type="producer",
                    deduplicate=True,
                    reaches_log_start=(
                        group[0].base_offset <= states[key].log_start_offset
                        if reaches_log_start is None
                        else reaches_log_start
                    ),
                    base_offset=group[0].base_offset,
                    upper_offset=group[-1].last_offset + 1,
                    delete_retention_ms=0,
                )
                for key, group in sorted(by_partition.items())
            ),
        )

    def submitted(self, extents: Sequence[Extent], *, reaches_log_start: bool | None = None) -> JobSpec:
        """Submit a job over these extents."""
        spec = self.spec(extents, reaches_log_start=reaches_log_start)
        self.catalog.jobs.submit(spec)
        return spec

    def claimed(
        self, extents: Sequence[Extent], *, reaches_log_start: bool | None = None, exact: bool = False
    ) -> Job:
        """Submit and claim a job over these extents; no other job may be submitted."""
        self.catalog.jobs.submit(
            replace(self.spec(extents, reaches_log_start=reaches_log_start), exact=exact)
        )
        (job,) = self.catalog.jobs.claim("application", 1)
        return job

    def result(self, job: Job, *, attempt_id: UUID | None = None, keep: int = 1) -> JobResult:
        """Return the result of an attempt: one file, with one extent of `keep` records per partition."""
        file_id = self.ids.new_uuid()
        attempt = attempt_id or job.attempt_id
        assert attempt is not None
        return JobResult(
            job_id=job.spec.job_id,
            attempt_id=attempt,
            files=(
                OutputFile(
                    file_id=file_id,
                    object_name=f"v2/00/compact/{job.spec.job_id}/{attempt}/{file_id}.seg",
                    size=50 * len(job.spec.partitions),
                    directory_length=32,
                    extents=tuple(
                        OutputExtent(
                            topic_id=partition.topic_id,
                            partition=partition.partition,
                            base_offset=partition.base_offset,
                            last_offset=partition.upper_offset - 1,
                            record_count=min(keep, partition.upper_offset - partition.base_offset),
                            min_timestamp=1000,
                            max_timestamp=1000,
                            position=50 * number,
                            length=40,
                            index_position=50 * number + 40,
                            index_length=10,
                            unique_keys=True,
                        )
                        for number, partition in enumerate(job.spec.partitions)
                    ),
                ),
            ),
            counts={"records_in": 10, "records_out": 1},
        )
