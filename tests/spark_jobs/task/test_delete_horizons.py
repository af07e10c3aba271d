"""From when on tombstones may go, and what keeps them until then."""

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

_FOR_EVER = (1 << 63) - 1  # the largest delete.retention.ms that a topic may have


@pytest.fixture
def harness(tmp_path: Path) -> CompactionHarness:
    return CompactionHarness(tmp_path)


def test_a_tombstone_goes_once_its_horizon_has_passed(harness: CompactionHarness) -> None:
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


def test_a_tombstone_is_not_clean_while_an_older_record_of_its_key_may_be_left(
    harness: CompactionHarness,
) -> None:
    """A job over the tail alone starts no clock: a reader who meets the old value must learn better."""
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


def test_a_full_table_starts_no_delete_horizon(harness: CompactionHarness) -> None:
    """What the table could not hold may be an older record of the tombstone's key."""
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
@pytest.mark.parametrize("most_ms", [_FOR_EVER, _FOR_EVER - 1_700_000_000_000, _FOR_EVER // 2])
def test_tombstones_may_be_kept_for_ever(harness: CompactionHarness, codec: Codec, most_ms: int) -> None:
    """Also where the end of the retention is beyond what a timestamp holds."""
    partition_id = PartitionId(harness.topic(), 0)
    harness.log.ingest({partition_id: [batch((b"a", b"1"), (b"b", b"2"), codec=codec)]})
    harness.log.ingest({partition_id: [batch((b"a", None), codec=codec)]})
    for _ in range(3):
        spec = harness.log.job(delete_retention_ms=most_ms)
        harness.log.publish(spec, harness.run(spec))
        harness.clock.advance(1e9)

    assert [(each.key, each.value) for each in harness.log.read(partition_id)] == [(b"b", b"2"), (b"a", None)]


def test_a_tombstone_that_was_kept_for_ever_goes_once_its_topic_says_so(harness: CompactionHarness) -> None:
    partition_id = PartitionId(harness.topic(), 0)
    harness.log.ingest({partition_id: [batch((b"a", b"1"), (b"b", b"2"), (b"a", None))]})
    spec = harness.log.job(delete_retention_ms=_FOR_EVER)
    harness.log.publish(spec, harness.run(spec))
    harness.compact()
    harness.clock.advance(DELETE_RETENTION_MS / 1000)
    harness.compact()

    assert [each.value for each in harness.log.read(partition_id)] == [b"2"]


def test_the_grace_of_a_tombstone_begins_with_the_run_not_in_the_queue(harness: CompactionHarness) -> None:
    """Until the job publishes, readers meet the record that the tombstone deletes."""
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
