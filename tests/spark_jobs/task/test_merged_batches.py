"""Small adjacent batches are merged into larger ones, unless a job disables this."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from catalog.model import PartitionId
from object_format.buffers import readable
from object_format.codecs.codec import Codec
from object_format.record_batch.headers import scan_batches
from object_format.segment_file import parse_data_blocks
from object_store.accounting import Purpose
from object_store.local.store import LocalStore
from spark_jobs.shuffle.plan import plan_shuffle
from tests.spark_jobs.compaction_harness import CompactionHarness
from tests.spark_jobs.reference_log import batch
from tests.spark_jobs.shuffle.shuffle_in_memory import run_in_memory

if TYPE_CHECKING:
    from pathlib import Path

    from catalog.model import JobResult, JobSpec

RECORDS = 200


def run(harness: CompactionHarness, spec: JobSpec, plan: str) -> JobResult:
    if plan == "task":
        return harness.run(spec)
    return run_in_memory(
        spec, plan_shuffle(spec), lambda: LocalStore(harness.directory, harness.ids), harness.ids
    )


def sizes_of(harness: CompactionHarness, partition_id: PartitionId) -> list[int]:
    """Return the size in bytes of each batch of the partition."""
    sizes: list[int] = []
    for extent in harness.log.extents[partition_id]:
        data = harness.log.store.read_range(
            extent.object_name, extent.position, extent.length, purpose=Purpose.FETCH
        )
        payloads = parse_data_blocks(
            data,
            name=extent.object_name,
            file_id=extent.file_id,
            position=extent.position,
            section=(extent.topic_id, extent.partition),
        )
        for payload in payloads:
            sizes += scan_batches(readable(payload))["size"].tolist()
    return sizes


@pytest.mark.parametrize("plan", ["task", "shuffle"])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.ZSTD])
def test_batches_of_one_record_are_merged_unless_disabled(tmp_path: Path, plan: str, codec: Codec) -> None:
    """The report counts the bytes saved."""
    sizes, saved = [], []
    for merge in (False, True):
        harness = CompactionHarness(tmp_path / str(merge))
        partition_id = PartitionId(harness.topic(), 0)
        batches = [batch((b"%03d" % each, b"v"), codec=codec) for each in range(RECORDS)]
        harness.log.ingest({partition_id: batches}, block_target=1 << 20)
        spec = replace(harness.log.job(), merge_batches=merge)

        result = run(harness, spec, plan)

        harness.log.publish(spec, result)
        harness.log.check()
        assert len(sizes_of(harness, partition_id)) == (1 if merge else RECORDS)
        sizes.append(result.counts["bytes_out"])
        saved.append(result.counts["merged_bytes_saved"])
    assert saved[0] == 0
    assert saved[1] > 50 * RECORDS


def test_merged_batches_stay_within_the_limit_of_the_topic(tmp_path: Path) -> None:
    """The limit is the one in the job's row."""
    harness = CompactionHarness(tmp_path)
    partition_id = PartitionId(harness.topic(), 0)
    harness.log.ingest(
        {partition_id: [batch((b"%03d" % each, bytes(50))) for each in range(RECORDS)]}, block_target=1 << 20
    )
    spec = harness.log.job()
    spec = replace(spec, partitions=tuple(replace(each, max_message_bytes=1000) for each in spec.partitions))

    harness.log.publish(spec, harness.run(spec))

    harness.log.check()
    assert 900 < max(sizes_of(harness, partition_id)) <= 1000
