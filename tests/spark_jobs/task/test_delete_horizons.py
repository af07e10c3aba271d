"""From when on tombstones may go, and what keeps them until then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from catalog.model import PartitionId
from object_format.codecs.codec import Codec
from spark_jobs.compact import restart_grace
from tests.spark_jobs.bench import Bench
from tests.spark_jobs.model_log import DELETE_RETENTION_MS, batch

if TYPE_CHECKING:
    from pathlib import Path

_FOR_EVER = (1 << 63) - 1  # the largest delete.retention.ms that a topic may have


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_tombstone_goes_once_its_horizon_has_passed(bench: Bench) -> None:
    here = PartitionId(bench.topic(), 0)
    bench.log.ingest({here: [batch((b"a", b"1"), (b"b", b"2"), (b"a", None))]})
    bench.compact()
    assert [each.value for each in bench.log.read(here)] == [b"2", None]
    bench.clock.advance(DELETE_RETENTION_MS / 1000 - 1)
    bench.compact()
    assert [each.value for each in bench.log.read(here)] == [b"2", None]
    bench.clock.advance(1)

    result = bench.compact()

    assert [each.value for each in bench.log.read(here)] == [b"2"]
    assert result.counts["tombstones_dropped"] == 1


def test_a_tombstone_is_not_clean_while_an_older_record_of_its_key_may_be_left(bench: Bench) -> None:
    """A job over the tail alone starts no clock: a reader who meets the old value must learn better."""
    here = PartitionId(bench.topic(), 0)
    bench.log.ingest({here: [batch((b"a", b"1"))]})
    bench.log.ingest({here: [batch((b"a", None))]})
    bench.compact({here: bench.log.extents[here][1:]})
    bench.clock.advance(DELETE_RETENTION_MS / 1000 + 1)

    bench.compact()

    assert [each.value for each in bench.log.read(here)] == [None]
    bench.clock.advance(DELETE_RETENTION_MS / 1000)
    bench.compact()
    assert bench.log.read(here) == []


def test_a_full_table_starts_no_delete_horizon(bench: Bench) -> None:
    """What the table could not hold may be an older record of the tombstone's key."""
    here = PartitionId(bench.topic(), 0)
    many = [(b"%d" % i, b"1") for i in range(3000)]
    bench.log.ingest({here: [batch(*many)]})
    bench.log.ingest({here: [batch(*((key, None) for key, _ in many))]})
    spec = bench.log.job(table_bytes=1 << 12)
    result = bench.run(spec)
    assert result.counts["keys_outside_table"] > 0
    bench.log.publish(spec, result)
    bench.clock.advance(DELETE_RETENTION_MS / 1000 + 1)

    spec = bench.log.job(table_bytes=1 << 20)
    bench.log.publish(spec, bench.run(spec))

    assert [each.value for each in bench.log.read(here)] == [None] * 3000


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("most_ms", [_FOR_EVER, _FOR_EVER - 1_700_000_000_000, _FOR_EVER // 2])
def test_tombstones_may_be_kept_for_ever(bench: Bench, codec: Codec, most_ms: int) -> None:
    """Also where the end of the retention is beyond what a timestamp holds."""
    here = PartitionId(bench.topic(), 0)
    bench.log.ingest({here: [batch((b"a", b"1"), (b"b", b"2"), codec=codec)]})
    bench.log.ingest({here: [batch((b"a", None), codec=codec)]})
    for _ in range(3):
        spec = bench.log.job(delete_retention_ms=most_ms)
        bench.log.publish(spec, bench.run(spec))
        bench.clock.advance(1e9)

    assert [(each.key, each.value) for each in bench.log.read(here)] == [(b"b", b"2"), (b"a", None)]


def test_a_tombstone_that_was_kept_for_ever_goes_once_its_topic_says_so(bench: Bench) -> None:
    here = PartitionId(bench.topic(), 0)
    bench.log.ingest({here: [batch((b"a", b"1"), (b"b", b"2"), (b"a", None))]})
    spec = bench.log.job(delete_retention_ms=_FOR_EVER)
    bench.log.publish(spec, bench.run(spec))
    bench.compact()
    bench.clock.advance(DELETE_RETENTION_MS / 1000)
    bench.compact()

    assert [each.value for each in bench.log.read(here)] == [b"2"]


def test_the_grace_of_a_tombstone_begins_with_the_run_not_in_the_queue(bench: Bench) -> None:
    """Until the job publishes, readers meet the record that the tombstone deletes."""
    here = PartitionId(bench.topic(), 0)
    bench.log.ingest({here: [batch((b"a", b"1"), (b"b", b"2"), (b"a", None))]})
    planned = bench.log.job()
    bench.clock.advance(DELETE_RETENTION_MS / 1000 + 1)
    run = restart_grace(planned, bench.clock.now_ms())
    bench.log.publish(run, bench.run(run))
    bench.clock.advance(DELETE_RETENTION_MS / 1000 - 1)

    spec = bench.log.job()
    bench.log.publish(spec, bench.run(spec))
    assert [each.value for each in bench.log.read(here)] == [b"2", None]

    bench.clock.advance(1)
    spec = bench.log.job()
    bench.log.publish(spec, bench.run(spec))
    assert [each.value for each in bench.log.read(here)] == [b"2"]
