"""Offsets, positions and holes beyond 2^31 and 2^32, without writing that many bytes."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from catalog.model import PartitionId
from object_format.codecs.codec import Codec
from object_format.segment_file import (
    BLOCK_TARGET,
    RangeReader,
    SectionIndex,
    SegmentFileWriter,
    SegmentKind,
    read_directory,
)
from object_store.local.store import LocalStore
from spark_jobs.shuffle.plan import plan_shuffle
from spark_jobs.shuffle.shares import ShareSizes
from spark_jobs.task import output_files
from spark_jobs.task.compaction_task import run_compaction
from tests.object_format.segment_file.samples import CREATED_MS, FILE_ID, TOPIC, WRITER_ID, make_batch
from tests.spark_jobs import reference_log
from tests.spark_jobs.compaction_harness import CompactionHarness
from tests.spark_jobs.reference_log import ReferenceLog, batch
from tests.spark_jobs.shuffle.shuffle_in_memory import run_in_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from uuid import UUID

    from catalog.model import JobResult, JobSpec
    from object_store.accounting import Purpose
    from object_store.interface import Buffer, Upload
    from object_store.local.streams import LocalUpload

BORDERS = [1 << 31, 1 << 32]
PLANS = ["task", "shuffle"]
SMALL = ShareSizes(share_bytes=1500, min_piece_bytes=500)
_BEGINNING = 68  # magic and FILE_HEADER


class SparseFileWriter(SegmentFileWriter):
    """A writer that skips `skipped` bytes after the file's header."""

    skipped = 0

    def __init__(
        self,
        *,
        kind: SegmentKind,
        file_id: UUID,
        writer_id: UUID,
        created_ms: int,
        sink: Callable[[bytes | memoryview], object],
        block_target: int = BLOCK_TARGET,
    ) -> None:
        super().__init__(
            kind=kind,
            file_id=file_id,
            writer_id=writer_id,
            created_ms=created_ms,
            sink=sink,
            block_target=block_target,
        )
        self._blocks.position += self.skipped


class SparseFileUpload:
    """An upload that leaves a gap in the file where the writer has skipped bytes."""

    def __init__(self, inner: LocalUpload, skipped: int) -> None:
        self._inner = inner
        self._skipped = skipped
        self._left = _BEGINNING

    def write(self, data: Buffer) -> None:
        view = memoryview(data)
        self._inner.write(view[: self._left])
        if self._left and len(view) >= self._left:
            file = self._inner._flush(memoryview(b""))
            os.lseek(file.descriptor, self._skipped, os.SEEK_CUR)
        rest = view[self._left :]
        self._left = max(0, self._left - len(view))
        if rest:
            self._inner.write(rest)

    def complete(self) -> int:
        return self._inner.complete() + self._skipped

    def abort(self) -> None:
        self._inner.abort()


class SparseFileStore(LocalStore):
    """A store whose files have such a gap, which has no blocks on the disk and would take long to read."""

    skipped = 0

    @override
    def put(self, name: str, body: Sequence[Buffer], *, purpose: Purpose) -> int:
        upload = self.start_upload(name, purpose=purpose)
        for each in body:
            upload.write(each)
        return upload.complete()

    @override
    def start_upload(self, name: str, *, purpose: Purpose) -> Upload:  # type: ignore[override]
        return SparseFileUpload(super().start_upload(name, purpose=purpose), self.skipped)


class SparseFileHarness(CompactionHarness):
    """A harness whose files all have the gap."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.log = ReferenceLog(self.open_store(), self.clock, self.ids)

    def open_store(self) -> LocalStore:
        return SparseFileStore(self.directory, self.ids)

    def run_by(self, plan: str, spec: JobSpec) -> JobResult:
        if plan == "shuffle":
            shuffle_plan = plan_shuffle(spec, SMALL)
            assert len(shuffle_plan.shares) > 1
            return run_in_memory(spec, shuffle_plan, self.open_store, self.ids)
        return run_compaction(
            spec, self.open_store(), attempt_id=self.ids.new_uuid(), clock=self.clock, ids=self.ids
        )

    def compact_by(self, plan: str) -> JobResult:
        """Run a job over all extents, publish it, and check the records."""
        spec = self.log.job()
        result = self.run_by(plan, spec)
        self.log.publish(spec, result)
        for partition_id in self.log.extents:
            assert self.log.read(partition_id) == self.log.expected(partition_id)
        return result


@pytest.fixture
def harness(tmp_path: Path) -> SparseFileHarness:
    return SparseFileHarness(tmp_path)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("border", BORDERS)
def test_offsets_may_cross_the_border(harness: SparseFileHarness, border: int, plan: str) -> None:
    """Records on both sides are compacted, and compacted again with newer records."""
    partition_id = PartitionId(harness.topic(), 0)
    harness.log.ends[partition_id] = border - 45
    for number, codec in enumerate((Codec.NONE, Codec.LZ4, Codec.ZSTD)):
        pairs = [(b"key-%d" % (each * (number + 1) % 37), b"%d" % number * 20) for each in range(30)]
        harness.log.ingest(
            {partition_id: [batch(*pairs[:13], codec=codec), batch(*pairs[13:], codec=codec)]}, 300
        )

    result = harness.compact_by(plan)

    assert (result.counts["records_in"], result.counts["keys_outside_table"]) == (90, 0)
    harness.log.ingest({partition_id: [batch((b"key-3", b"new"), (b"key-4", None))]})
    result = harness.compact_by("task")
    assert result.counts["records_dropped"] == 2
    first, last = harness.log.extents[partition_id][0], harness.log.extents[partition_id][-1]
    assert first.base_offset < border < last.last_offset


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("border", BORDERS)
def test_file_positions_may_cross_the_border(
    harness: SparseFileHarness, border: int, plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for a job's inputs, and for its outputs as inputs of the next job."""
    for each in (SparseFileStore, SparseFileWriter):
        monkeypatch.setattr(each, "skipped", border - 1000)
    for module in (reference_log, output_files):
        monkeypatch.setattr(module, "SegmentFileWriter", SparseFileWriter)
    topic = harness.topic()
    keys = [PartitionId(topic, number) for number in range(3)]
    for number in range(3):
        pairs = [(b"key-%d" % (each % 37), b"%d" % number * 20) for each in range(50)]
        harness.log.ingest({key: [batch(*pairs[:20]), batch(*pairs[20:])] for key in keys}, 300)

    first = harness.compact_by(plan)
    again = harness.compact_by("task")

    (file,) = again.files
    assert file.extents[0].position < border < file.extents[-1].position < file.size
    assert max(first.counts["bytes_in"], again.counts["bytes_in"]) < 100_000
    assert (first.counts["records_in"], again.counts["records_dropped"]) == (450, 0)


@pytest.mark.parametrize("hole", [*BORDERS, 5 << 32])
def test_a_partition_may_lack_billions_of_offsets(harness: SparseFileHarness, hole: int) -> None:
    """An earlier job has left an extent without records between two others."""
    partition_id = PartitionId(harness.topic(), 0)
    harness.log.ingest({partition_id: [batch((b"a", b"1"), (b"b", b"1"))]})
    (older,) = harness.log.extents[partition_id]
    gap = older._replace(
        base_offset=2, last_offset=hole, record_count=0, position=0, length=0, offset_shift=0
    )
    harness.log.extents[partition_id].append(gap)
    harness.log.ends[partition_id] = hole + 1
    harness.log.ingest({partition_id: [batch((b"a", b"2"), (b"c", b"2"))]})

    harness.compact_by("task")

    (extent,) = harness.log.extents[partition_id]
    assert (extent.base_offset, extent.last_offset, extent.record_count) == (0, hole + 2, 3)
    assert [each.offset for each in harness.log.read(partition_id)] == [1, hole + 1, hole + 2]
    assert harness.compact_by("task").counts["records_dropped"] == 0


@pytest.mark.parametrize("border", BORDERS)
def test_a_section_may_be_longer_than_the_border(border: int) -> None:
    """Its index, footer and directory are correct, and blocks after the border can be read."""
    pieces: list[bytes] = []
    writer = SegmentFileWriter(
        kind=SegmentKind.COMPACTED,
        file_id=FILE_ID,
        writer_id=WRITER_ID,
        created_ms=CREATED_MS,
        sink=lambda data: pieces.append(bytes(data)),
        block_target=1,
    )
    writer.begin_section(TOPIC, 1)
    writer.append(make_batch(0, 1, body=b"first"))
    writer._blocks.position += border
    behind = writer.position
    pieces.clear()
    batches = [make_batch(number, 1, body=b"x" * number) for number in (1, 2)]
    for each in batches:
        writer.append(each)
    end = writer.position
    entry = writer.end_section(
        base_offset=0,
        last_offset=2,
        record_count=3,
        min_timestamp=CREATED_MS,
        max_timestamp=CREATED_MS,
    )
    summary = writer.finish()
    tail = b"".join(pieces)

    directory = read_directory(tail, name="a.seg", size=summary.size, file_id=FILE_ID)
    assert directory.sections == (entry,)
    assert entry.data_length == end - entry.data_position > border
    start = entry.index_position - behind
    index = SectionIndex.parse(
        tail[start : start + entry.index_length],
        name="a.seg",
        file_id=FILE_ID,
        position=entry.index_position,
    )
    assert index.data_length == entry.data_length
    assert index.range_for_offset(1, 1 << 20) == (behind - entry.data_position, end - behind)
    reader = RangeReader(io.BytesIO(tail), name="a.seg", file_id=FILE_ID, position=behind)
    reader.enter((TOPIC, 1), end)
    assert index.block_from(1) == (behind - entry.data_position, 1)
    reader.skip_to_block(behind, 1)
    assert [bytes(block.payload) for block in reader.blocks(end)] == batches
