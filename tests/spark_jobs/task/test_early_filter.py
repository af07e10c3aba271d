"""Jobs that decompress batches once, in pass 1: the same outputs with fewer GETs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.model import PartitionId
from core.clock import ManualClock
from core.ids import SeededIds
from object_format.codecs.codec import Codec
from object_format.dedupe import EarlyFilter
from object_store.accounting import Purpose
from object_store.local.store import LocalStore
from spark_jobs.report import CompactionReport
from spark_jobs.task import compaction_task
from spark_jobs.task.compaction_task import run_compaction
from spark_jobs.task.small_sections.plan import GroupLimits
from tests.object_format.scratch_memory import limit_scratch_memory
from tests.spark_jobs.reference_log import BatchToWrite, ReferenceLog, batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from catalog.model import JobResult

AMPLE_BYTES = 4 << 20


class EarlyFilterHarness:
    """A log and its jobs with limits of the early filter; two harnesses behave alike."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.exact = True
        self.clock = ManualClock()
        self.ids = SeededIds(1, self.clock)
        self.store = LocalStore(directory, self.ids)
        self.log = ReferenceLog(self.store, self.clock, self.ids)

    def compact(
        self,
        table_bytes: int = 1 << 20,
        *,
        retained_bytes: int = AMPLE_BYTES,
        output_bytes: int = AMPLE_BYTES,
    ) -> JobResult:
        """Run a job over all extents and publish it; check the log while all results were exact."""
        spec = self.log.job(table_bytes=table_bytes)
        store = LocalStore(self.directory, self.ids)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                compaction_task,
                "EarlyFilter",
                lambda **options: EarlyFilter(
                    retained_bytes=retained_bytes, output_bytes=output_bytes, **options
                ),
            )
            result = run_compaction(
                spec,
                store,
                attempt_id=self.ids.new_uuid(),
                clock=self.clock,
                ids=self.ids,
                limits=GroupLimits(bytes=0),  # groups of small partitions have no early filter
            )
        store.close()
        self.log.publish(spec, result)
        self.exact = self.exact and not result.counts.get("keys_outside_table")
        if self.exact:
            self.log.check()
        return result

    def objects(self) -> dict[str, bytes]:
        return {
            each.name: bytes(self.store.read_range(each.name, 0, each.size, purpose=Purpose.FSCK))
            for each in self.store.list("", purpose=Purpose.FSCK)
        }


@pytest.fixture
def harness(tmp_path: Path) -> EarlyFilterHarness:
    return EarlyFilterHarness(tmp_path)


@pytest.fixture(scope="module")
def new_harness(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], EarlyFilterHarness]:
    return lambda: EarlyFilterHarness(tmp_path_factory.mktemp("harness"))


RECORDS = st.tuples(
    st.integers(1000, 1010),
    st.binary(min_size=1, max_size=1),
    st.none() | st.binary(max_size=99),
    st.just(()),
)
BATCHES = st.builds(
    BatchToWrite,
    st.lists(RECORDS, min_size=1, max_size=9).map(tuple),
    st.sampled_from([Codec.ZSTD, Codec.ZSTD, Codec.LZ4, Codec.NONE, Codec.GZIP]),
    rejected=st.sampled_from([False, False, False, True]),
)
FILES = st.dictionaries(st.integers(0, 2), st.lists(BATCHES, min_size=1, max_size=4), min_size=1, max_size=3)


@given(
    st.lists(FILES, min_size=1, max_size=4),
    st.lists(FILES, max_size=2),
    st.sampled_from([1 << 20, 16 * 12]),
    st.sampled_from([1, 500, AMPLE_BYTES]),
    st.sampled_from([1, 60, 300, AMPLE_BYTES]),
)
def test_outputs_are_equal_with_and_without_the_early_filter(
    new_harness: Callable[[], EarlyFilterHarness],
    first: Sequence[dict[int, list[BatchToWrite]]],
    second: Sequence[dict[int, list[BatchToWrite]]],
    table_bytes: int,
    retained_bytes: int,
    output_bytes: int,
) -> None:
    """Outputs are equal byte for byte under any memory limit, also for a log that was compacted before."""
    runs = []
    with pytest.MonkeyPatch.context() as patch:
        limit_scratch_memory(patch, 400)
        for limits in ((1, 1), (retained_bytes, output_bytes)):
            harness = new_harness()
            topic = harness.log.create_topic("compact")
            counts = []
            for files in (first, second):
                for each in files:
                    harness.log.ingest({PartitionId(topic, key): value for key, value in each.items()}, 200)
                if files:
                    result = harness.compact(table_bytes, retained_bytes=limits[0], output_bytes=limits[1])
                    counts.append({**result.counts})
                    harness.clock.advance(20.0)
            runs.append((harness, harness.objects(), counts))
    (_, without_filter, counts_without), (_, with_filter, counts_with) = runs
    assert with_filter == without_filter
    for one, other in zip(counts_without, counts_with, strict=True):
        if not one["input_files"]:
            continue
        read_once = one["input_files_read_once"]
        assert one["get_requests"] == 2 * one["input_files"] - read_once
        assert other["get_requests"] == 2 * other["input_files"] - other["input_files_read_once"]
        assert other["input_files_read_once"] >= read_once
        assert {name: one.get(name) for name in EQUAL_COUNTS} == {
            name: other.get(name) for name in EQUAL_COUNTS
        }


EQUAL_COUNTS = (
    "records_in",
    "records_out",
    "records_dropped",
    "records_invalid",
    "tombstones_dropped",
    "keys",
    "keys_outside_table",
    "merged_bytes_saved",
    "compacted_bytes",
    "bytes_out",
)


def test_a_file_that_pass_1_filters_completely_costs_one_get(harness: EarlyFilterHarness) -> None:
    partition_id, other_id = (PartitionId(harness.log.create_topic("compact"), 0) for _ in range(2))
    compressed = batch((b"a", b"1"), (b"b", b"2"), codec=Codec.ZSTD)
    harness.log.ingest({partition_id: [compressed], other_id: [compressed]})
    harness.log.ingest({partition_id: [compressed], other_id: [batch((b"c", b"3"))]})

    result = harness.compact()

    report = CompactionReport()
    report.add(result)
    assert (report.input_files, report.input_files_read_once, report.get_requests) == (2, 1, 3)
    assert report.get_requests_per_input_file == 2.0
    assert report.gets_in_words() == "2.0 for each of 1 input file, 1 for each of 1 read once"


def test_a_partly_filtered_section_is_read_again(harness: EarlyFilterHarness) -> None:
    partition_id = PartitionId(harness.log.create_topic("compact"), 0)
    batches = [batch((b"%d" % n, b"v" * 300), codec=Codec.ZSTD) for n in range(9)]
    harness.log.ingest({partition_id: batches}, 200)
    size = harness.log.extents[partition_id][0].length // 9

    result = harness.compact(output_bytes=3 * size)

    assert result.counts["get_requests"] == 2
    assert result.counts["input_files_read_once"] == 0
