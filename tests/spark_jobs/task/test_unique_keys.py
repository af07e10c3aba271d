"""A job believes that keys are unique only if its own kernels wrote the file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from catalog.model import FileFormat, PartitionId
from object_format.kernels.runtime.identity import KERNEL_DIGEST
from object_format.segment_file import SegmentKind
from object_store.local.store import LocalStore
from spark_jobs.shuffle.plan import plan_shuffle
from spark_jobs.task.arrangement import arrange
from tests.spark_jobs.compaction_harness import CompactionHarness
from tests.spark_jobs.reference_log import batch
from tests.spark_jobs.shuffle.shuffle_in_memory import run_in_memory

if TYPE_CHECKING:
    from pathlib import Path

    from catalog.model import JobSpec


@pytest.fixture
def harness(tmp_path: Path) -> CompactionHarness:
    return CompactionHarness(tmp_path)


def wrongly_flagged(harness: CompactionHarness, digest: str) -> JobSpec:
    """Return a job over a compacted file that says wrongly that its keys are unique."""
    partition_id = PartitionId(harness.topic(), 0)
    sections = {partition_id: [batch((b"a", b"old"), (b"b", b"1")), batch((b"a", b"new"), (b"c", b"1"))]}
    harness.log.ingest(sections, kind=SegmentKind.COMPACTED)
    (extent,) = harness.log.extents[partition_id]
    flagged = extent._replace(unique_keys=True, format=FileFormat(kernel_digest=digest))
    harness.log.extents[partition_id] = [flagged]
    return harness.log.job()


@pytest.mark.parametrize("digest", ["", "another version's"])
@pytest.mark.parametrize("is_shuffled", [False, True])
def test_the_newest_record_of_each_key_stays_whatever_other_kernels_said(
    harness: CompactionHarness, digest: str, *, is_shuffled: bool
) -> None:
    """The result is exact, and these kernels vouch for it."""
    spec = wrongly_flagged(harness, digest)

    if is_shuffled:
        plan = plan_shuffle(spec)
        result = run_in_memory(spec, plan, lambda: LocalStore(harness.directory, harness.ids), harness.ids)
    else:
        result = harness.run(spec)

    harness.log.publish(spec, result)
    harness.log.check()
    (file,) = result.files
    assert file.format == FileFormat(version=1, kernel_digest=KERNEL_DIGEST)
    assert file.extents[0].unique_keys


def test_the_flag_of_the_same_kernels_is_believed(harness: CompactionHarness) -> None:
    """This saves the buffering of a section; fsck --deep finds a flag that is wrong."""
    wrongly_flagged(harness, KERNEL_DIGEST)
    both = wrongly_flagged(harness, "")
    assert [work.unique_keys for work in arrange(both)] == [True, False]


def test_the_flags_of_two_files_do_not_make_their_keys_distinct(harness: CompactionHarness) -> None:
    partition_id = PartitionId(harness.topic(), 0)
    for value in (b"old", b"new"):
        harness.log.ingest({partition_id: [batch((b"a", value))]}, kind=SegmentKind.COMPACTED)
    known = FileFormat(kernel_digest=KERNEL_DIGEST)
    extents = harness.log.extents[partition_id]
    harness.log.extents[partition_id] = [each._replace(unique_keys=True, format=known) for each in extents]
    (work,) = arrange(harness.log.job())
    assert (len(work.parts), work.unique_keys) == (2, False)
    harness.log.publish(harness.log.job(), harness.run(harness.log.job()))
    harness.log.check()
