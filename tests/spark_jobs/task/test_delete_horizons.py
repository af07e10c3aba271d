"""Delete horizons: when tombstones may be dropped, and what keeps them until then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from catalog.model import PartitionId
from object_format.codecs.codec import Codec
from spark_jobs.compact import restart_grace
from tests.spark_jobs.compaction_harness import CompactionHarness
from tests.spark_jobs.reference_log import DELETE_RETENTION_MS, batch

if TYPE_CHECKING:
    from pathlib import Path

_FOREVER_MS = (1 << 63) - 1  # the largest delete.retention.ms


@pytest.fixture
def harness(tmp_path: Path) -> CompactionHarness:
    return CompactionHarness(tmp_path)


def test_a_tombstone_is_dropped_after_its_delete_horizon(harness: CompactionHarness) -> None:
    partition_id = PartitionId(harness.topic(), 0)
    harness.log.ingest({partition_id: [batch((b"a", b"1"), (b"b", b"2"), (b"a", None))]})
    harness.compact()
    assert [each.value for each in harness.log.read(partition_id)] == [b"2", None]
    harness.clock.advance(DELETE_RETENTION_MS / 1000 - 1)
    harness.compact()
    assert [each.value for each in harness.log.read(partition_id)] == [b"2", None]
    harness.clock.advance(1)

    result = harness.compact()

    assert [each.value for each in harness.log.read(partition_id)] == [b"2"]
    assert result.counts["tombstones_dropped"] == 1


def test_a_tombstone_gets_no_horizon_while_an_older_record_may_exist(
    harness: CompactionHarness,
) -> None:
    """A job over the tail alone sets no horizon: readers of the old value must still see the tombstone."""
    partition_id = PartitionId(harness.topic(), 0)
    harness.log.ingest({partition_id: [batch((b"a", b"1"))]})
    harness.log.ingest({partition_id: [batch((b"a", None))]})
    harness.compact({partition_id: harness.log.extents[partition_id][1:]})
    harness.clock.advance(DELETE_RETENTION_MS / 1000 + 1)

    harness.compact()

    assert [each.value for each in harness.log.read(partition_id)] == [None]
    harness.clock.advance(DELETE_RETENTION_MS / 1000)
    harness.compact()
    assert harness.log.read(partition_id) == []


def test_a_full_table_sets_no_delete_horizon(harness: CompactionHarness) -> None:
    """A key that the table could not hold may have an older record."""
    partition_id = PartitionId(harness.topic(), 0)
    many = [(b"%d" % i, b"1") for i in range(3000)]
    harness.log.ingest({partition_id: [batch(*many)]})
    harness.log.ingest({partition_id: [batch(*((key, None) for key, _ in many))]})
    spec = harness.log.job(table_bytes=1 << 12)
    result = harness.run(spec)
    assert result.counts["keys_outside_table"] > 0
    harness.log.publish(spec, result)
    harness.clock.advance(DELETE_RETENTION_MS / 1000 + 1)

    spec = harness.log.job(table_bytes=1 << 20)
    harness.log.publish(spec, harness.run(spec))

    assert [each.value for each in harness.log.read(partition_id)] == [None] * 3000


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("retention_ms", [_FOREVER_MS, _FOREVER_MS - 1_700_000_000_000, _FOREVER_MS // 2])
def test_tombstones_may_be_kept_forever(harness: CompactionHarness, codec: Codec, retention_ms: int) -> None:
    """The end of the retention may exceed the largest timestamp."""
    partition_id = PartitionId(harness.topic(), 0)
    harness.log.ingest({partition_id: [batch((b"a", b"1"), (b"b", b"2"), codec=codec)]})
    harness.log.ingest({partition_id: [batch((b"a", None), codec=codec)]})
    for _ in range(3):
        spec = harness.log.job(delete_retention_ms=retention_ms)
        harness.log.publish(spec, harness.run(spec))
        harness.clock.advance(1e9)

    assert [(each.key, each.value) for each in harness.log.read(partition_id)] == [(b"b", b"2"), (b"a", None)]


def test_a_tombstone_kept_forever_is_dropped_after_the_topic_changes(harness: CompactionHarness) -> None:
    partition_id = PartitionId(harness.topic(), 0)
    harness.log.ingest({partition_id: [batch((b"a", b"1"), (b"b", b"2"), (b"a", None))]})
    spec = harness.log.job(delete_retention_ms=_FOREVER_MS)
    harness.log.publish(spec, harness.run(spec))
    harness.compact()
    harness.clock.advance(DELETE_RETENTION_MS / 1000)
    harness.compact()

    assert [each.value for each in harness.log.read(partition_id)] == [b"2"]


def test_the_grace_of_a_tombstone_starts_when_the_job_runs(harness: CompactionHarness) -> None:
    """Until the job publishes, readers see the record that the tombstone deletes."""
    partition_id = PartitionId(harness.topic(), 0)
    harness.log.ingest({partition_id: [batch((b"a", b"1"), (b"b", b"2"), (b"a", None))]})
    planned = harness.log.job()
    harness.clock.advance(DELETE_RETENTION_MS / 1000 + 1)
    run = restart_grace(planned, harness.clock.now_ms())
    harness.log.publish(run, harness.run(run))
    harness.clock.advance(DELETE_RETENTION_MS / 1000 - 1)

    spec = harness.log.job()
    harness.log.publish(spec, harness.run(spec))
    assert [each.value for each in harness.log.read(partition_id)] == [b"2", None]

    harness.clock.advance(1)
    spec = harness.log.job()
    harness.log.publish(spec, harness.run(spec))
    assert [each.value for each in harness.log.read(partition_id)] == [b"2"]
