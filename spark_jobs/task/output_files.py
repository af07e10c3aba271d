"""The files that one task writes: one or more for each cleanup policy, begun by the first section of each."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

from catalog.model import OutputExtent, OutputFile
from object_format.segment_file import SegmentFileWriter, SegmentKind
from object_store.interface import Purpose
from object_store.names import compacted_name

if TYPE_CHECKING:
    from uuid import UUID

    from catalog.model import JobSpec
    from core.ids import Ids
    from object_format.segment_file import SectionEntry
    from object_store.interface import ObjectStore, Upload
    from spark_jobs.task.counts import TaskCounts


class OutputPolicy(StrEnum):
    """What sorts partitions into files: topics that are compacted live longer than those that only expire."""

    COMPACT = "compact"
    DELETE = "delete"

    @classmethod
    def of(cls, cleanup_policy: str) -> OutputPolicy:
        """That of a topic's `cleanup.policy`, a list such as `compact,delete`."""
        policies = {policy.strip() for policy in cleanup_policy.split(",")}
        return cls.COMPACT if cls.COMPACT in policies else cls.DELETE


class OutputFiles:
    """Uploads under the attempt's own names; what is visible before the catalog knows it is nobody's."""

    def __init__(
        self, store: ObjectStore, spec: JobSpec, attempt_id: UUID, ids: Ids, counts: TaskCounts
    ) -> None:
        self._store = store
        self._counts = counts
        self._spec = spec
        self._attempt_id = attempt_id
        self._ids = ids
        self._open: dict[tuple[OutputPolicy, int, int], tuple[UUID, str, Upload, SegmentFileWriter]] = {}
        self._numbers: dict[tuple[OutputPolicy, int], int] = {}
        self._done: list[OutputFile] = []

    def writer(self, policy: OutputPolicy, number: int = 0, series: int = 0) -> SegmentFileWriter:
        """The writer of a file for `policy`; one file has at most one section of each partition.

        Files of a series are written one after the other, those of several at a time.
        """
        key = policy, series, number
        if key not in self._open:
            # The name is new at every execution of the task: Spark may run two of one attempt at a time.
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

    def next_number(self, policy: OutputPolicy, series: int = 0) -> int:
        """The number of the file for the next partition; one that has the job's `output_bytes` is ended."""
        number = self._numbers.get((policy, series), 0)
        opened, limit = self._open.get((policy, series, number)), self._spec.output_bytes
        if opened is not None and limit is not None and opened[3].data_bytes >= limit:
            self._complete_one(*opened)
            del self._open[policy, series, number]
            number += 1
            self._numbers[policy, series] = number
        return number

    def complete(self) -> tuple[OutputFile, ...]:
        """End every file, make it visible and durable, and say what all of them hold."""
        for opened in self._open.values():
            self._complete_one(*opened)
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
            )
        )

    def abort(self) -> None:
        """Drop what was uploaded and is not complete."""
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
