"""Requests of a job to an S3 server, according to the server's log."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from catalog.jobs.byte_ranges import byte_range_of
from catalog.model import PartitionId
from core.clock import ManualClock
from core.ids import SystemIds
from object_format.segment_file import SECTION_START_LENGTH, SectionIndex, SegmentKind
from object_store.accounting import Purpose
from object_store.open import open_store
from spark_jobs.shuffle.plan import plan_shuffle
from spark_jobs.shuffle.shares import ShareSizes
from spark_jobs.task.compaction_task import run_compaction
from tests.fixtures.s3 import bucket_of
from tests.object_store.s3.fault_proxy import Fault, running_proxy
from tests.spark_jobs.reference_log import ReferenceLog, batch
from tests.spark_jobs.shuffle.shuffle_in_memory import run_in_memory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from catalog.model import Extent, JobInput, JobResult, JobSpec
    from object_store.open import StoreConfig
    from tests.fixtures.s3 import S3Server

pytestmark = pytest.mark.integration


@pytest.fixture
def log(s3_config: StoreConfig) -> Iterator[ReferenceLog]:
    clock = ManualClock()
    ids = SystemIds(clock)
    with closing(open_store(s3_config, clock, ids)) as store:
        yield ReferenceLog(store, clock, ids)


def fill(log: ReferenceLog, files: int, partitions: int, value_bytes: int = 1) -> None:
    """Write files with partitions of a compacted topic and of a topic with `delete`."""
    topics = log.create_topic("compact"), log.create_topic("delete")
    for number in range(files):
        log.ingest(
            {
                PartitionId(topics[index % 2], index // 2): [
                    batch((b"a", b"old" * value_bytes), (b"a", b"%d" % number))
                ]
                for index in range(partitions)
            }
        )


def run(log: ReferenceLog, config: StoreConfig, spec: JobSpec) -> JobResult:
    """Run the job as a task does, with its own store."""
    with closing(open_store(config, log.clock, log.ids)) as store:
        return run_compaction(spec, store, attempt_id=log.ids.new_uuid(), clock=log.clock, ids=log.ids)


@pytest.mark.parametrize("partitions", [1, 10, 1000])
def test_the_server_sees_two_gets_for_each_input_file(
    log: ReferenceLog, s3_config: StoreConfig, s3_server: S3Server, partitions: int
) -> None:
    fill(log, files=3, partitions=partitions)
    spec = log.job()
    before = s3_server.object_gets(bucket_of(s3_config))

    result = run(log, s3_config, spec)

    gets = s3_server.object_gets(bucket_of(s3_config))
    assert before == {}
    assert sorted(gets.values()) == [2, 2, 2]
    assert {path.rpartition("/")[2] for path in gets} == {f"{each.file_id}.seg" for each in spec.inputs}
    assert result.counts["get_requests"] == 6
    log.publish(spec, result)
    log.check()


def ranges_seen(config: StoreConfig, server: S3Server) -> defaultdict[str, Counter[str]]:
    """Return how often the server was asked for each range, by the last part of the object's name."""
    seen: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for request in server.requests(bucket_of(config)):
        if request.is_object_get:
            seen[request.path.rpartition("/")[2]][request.range] += 1
    return seen


def test_gets_cover_only_the_span_of_the_sections_of_a_job(
    log: ReferenceLog, s3_config: StoreConfig, s3_server: S3Server
) -> None:
    fill(log, files=2, partitions=50)
    wanted = [key for key in log.extents if log.policies[key.topic_id] == "compact"][7:9]
    spec = log.job({key: log.extents[key] for key in wanted})

    result = run(log, s3_config, spec)

    assert ranges_seen(s3_config, s3_server) == {
        f"{each.file_id}.seg": {whole_range(each): 2} for each in spec.inputs
    }
    assert result.counts["bytes_in"] < sum(each.size for each in spec.inputs) / 10
    log.publish(spec, result)
    log.check()


def whole_range(each: JobInput) -> str:
    """Return the range that covers the job's extents of a file and the header of the first section."""
    span = byte_range_of(each.extents)
    return f"bytes={span.start - SECTION_START_LENGTH}-{span.end - 1}"


def test_a_broken_stream_is_resumed_and_counted_separately(
    log: ReferenceLog, s3_config: StoreConfig, s3_server: S3Server
) -> None:
    fill(log, files=2, partitions=4, value_bytes=100_000)
    spec = log.job()
    with running_proxy(s3_server.endpoint) as proxy:
        proxy.plan(
            Fault(method="GET", part=str(spec.inputs[0].file_id), keep_bytes=50_000),
            Fault(method="GET", part=str(spec.inputs[1].file_id), keep_bytes=300_000, reset=True),
        )

        result = run(log, replace(s3_config, endpoint=proxy.endpoint), spec)

        assert proxy.all_happened
    assert result.counts["resumes"] == 2
    assert result.counts["get_requests"] == 4
    log.publish(spec, result)
    log.check()


def read_index(log: ReferenceLog, extent: Extent) -> SectionIndex:
    name = extent.object_name
    block = log.store.read_range(name, extent.index_position, extent.index_length, purpose=Purpose.FSCK)
    return SectionIndex.parse(block, name=name, file_id=extent.file_id, position=extent.index_position)


def test_the_server_sees_two_ranged_gets_for_each_byte_range_of_a_cut_file(
    log: ReferenceLog, s3_config: StoreConfig, s3_server: S3Server
) -> None:
    """A range that starts inside a section also reads its index. A whole file gets two GETs in total."""
    partition_id = PartitionId(log.create_topic("compact"), 0)
    many = [batch(*((b"%d" % (7 * number + each), b"v" * 90) for each in range(20))) for number in range(60)]
    log.ingest({partition_id: many}, block_target=1, kind=SegmentKind.COMPACTED)
    log.ingest({partition_id: many[:2]})
    spec = log.job(table_bytes=1024)
    plan = plan_shuffle(spec, ShareSizes(share_bytes=20_000, min_piece_bytes=10_000))

    result = run_in_memory(spec, plan, lambda: open_store(s3_config, log.clock, log.ids), log.ids)

    seen = ranges_seen(s3_config, s3_server)  # before this test reads the index itself
    (shares,) = plan.cut_files.values()
    assert len(shares) > 6
    cut, whole = (seen[f"{each.file_id}.seg"] for each in spec.inputs)
    (extent,) = spec.inputs[0].extents
    index = read_index(log, extent)
    starts = []
    for byte_range in (plan.shares[number].byte_range for number in shares[1:]):
        assert byte_range is not None
        block = index.block_from(byte_range.start - extent.position)
        assert block is not None
        starts.append(extent.position + block[0])
    end = extent.position + extent.length
    assert cut == {
        **{f"bytes={start}-{end - 1}": 2 for start in (extent.position - SECTION_START_LENGTH, *starts)},
        f"bytes={extent.index_position}-{extent.index_position + extent.index_length - 1}": 2 * len(starts),
    }
    assert whole == {whole_range(spec.inputs[1]): 2}
    assert result.counts["get_requests"] == 2 * len(shares) + 2
    assert result.counts["index_reads"] == 2 * len(starts)
    log.publish(spec, result)
    log.check()
