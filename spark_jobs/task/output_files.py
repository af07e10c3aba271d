"""The files that one task writes: one or more for each output policy."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

from catalog.model import FileFormat, OutputExtent, OutputFile
from object_format.kernels.runtime.identity import KERNEL_DIGEST
from object_format.segment_file import VERSION, SegmentFileWriter, SegmentKind
from object_store.accounting import Purpose
from object_store.names import compacted_name

if TYPE_CHECKING:
    from uuid import UUID

    from catalog.model import JobSpec
    from core.ids import Ids
    from object_format.segment_file import SectionEntry
    from object_store.interface import ObjectStore, Upload
    from spark_jobs.task.counts import TaskCounts


class OutputPolicy(StrEnum):
    """Group of partitions that share files. Compacted records live longer than records that only expire."""

    COMPACT = "compact"
    DELETE = "delete"

    @classmethod
    def of(cls, cleanup_policy: str) -> OutputPolicy:
        """Return the group of a topic's `cleanup.policy`, which is a list such as `compact,delete`."""
        policies = {policy.strip() for policy in cleanup_policy.split(",")}
        return cls.COMPACT if cls.COMPACT in policies else cls.DELETE


class OutputFiles:
    """Output files of one attempt. Readers do not know the objects until the catalog publishes them."""

    def __init__(
        self, store: ObjectStore, spec: JobSpec, attempt_id: UUID, ids: Ids, counts: TaskCounts
    ) -> None:
        self._store = store
        self._counts = counts
        self._spec = spec
        self._attempt_id = attempt_id
        self._ids = ids
        self._open: dict[tuple[OutputPolicy, int], tuple[UUID, str, Upload, SegmentFileWriter]] = {}
        self._done: list[OutputFile] = []

    def writer(self, policy: OutputPolicy, series: int) -> SegmentFileWriter:
        """Return the writer of the open file of a series; a file has at most one section of each partition.

        Files of one series are written one after another, files of different series at the same time.
        """
        key = policy, series
        if key not in self._open:
            # Each execution of the task has its own names: Spark may run one attempt twice at the same time.
            file_id = self._ids.new_uuid()
            name = compacted_name(self._spec.job_id, self._attempt_id, file_id)
            upload = self._store.start_upload(name, purpose=Purpose.COMPACTION)
            writer = SegmentFileWriter(
                kind=SegmentKind.COMPACTED,
                file_id=file_id,
                writer_id=self._attempt_id,
                created_ms=self._spec.now_ms,
                sink=partial(self._write, upload),
            )
            self._open[key] = (file_id, name, upload, writer)
        return self._open[key][3]

    def _write(self, upload: Upload, data: bytes | memoryview) -> None:
        with self._counts.timed("write_objects_ms"):
            upload.write(data)

    def complete_full_file(self, policy: OutputPolicy, series: int) -> None:
        """Complete the open file of a series if it has reached `output_bytes`."""
        current, limit = self._open.get((policy, series)), self._spec.output_bytes
        if current is not None and limit is not None and current[3].data_bytes >= limit:
            self._complete_one(*current)
            del self._open[policy, series]

    def complete(self) -> tuple[OutputFile, ...]:
        """Complete every upload, and return all files with their extents."""
        for current in self._open.values():
            self._complete_one(*current)
        return tuple(self._done)

    def _complete_one(self, file_id: UUID, name: str, upload: Upload, writer: SegmentFileWriter) -> None:
        summary = writer.finish()
        with self._counts.timed("write_objects_ms"):
            upload.complete()
        self._done.append(
            OutputFile(
                file_id=file_id,
                object_name=name,
                size=summary.size,
                directory_length=summary.directory_length,
                extents=tuple(map(_output_extent, summary.sections)),
                format=FileFormat(version=VERSION, kernel_digest=KERNEL_DIGEST),
            )
        )

    def abort(self) -> None:
        """Abort every upload that is not complete."""
        for _, _, upload, _ in self._open.values():
            upload.abort()


def _output_extent(entry: SectionEntry) -> OutputExtent:
    return OutputExtent(
        topic_id=entry.topic_id,
        partition=entry.partition,
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
