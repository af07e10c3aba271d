"""Whatever a real Spark runs again, as workers die or outputs are lost: jobs end exact, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from catalog.model import FileKind, JobState, PartitionId
from object_store.identity import tie
from object_store.names import IDENTITY_NAME
from planner.garbage import GarbageSettings, collect_garbage
from spark_jobs.compact import run_jobs
from spark_jobs.shuffle_plan import PlanChoice
from tests.spark_jobs.model_log import batch
from tests.spark_jobs.struck_kernels import ASKED, BEGIN, GIVE, TAKE, Deed, Strikes

if TYPE_CHECKING:
    from bedrock.clock import ManualClock
    from catalog.open import Catalog
    from object_format.records import Record
    from object_store.open import StoreConfig
    from spark_jobs.report import CompactionReport
    from tests.spark_jobs.conftest import SparkForTests
    from tests.spark_jobs.published_log import PublishedLog

pytestmark = [pytest.mark.spark, pytest.mark.integration]

FILES = 8
PARTITIONS = 2
RECORDS = 60
TABLE_BYTES = 2048
"""Enough for the keys of a partition, and not for its records: the exact plan makes several buckets."""
SHARES = 8
TASKS = {f"{stage}-{number}" for stage in ("cut", "judge", "write") for number in range(SHARES)}
"""Those of the exact plan; as many judges as shares. Two run at a time, in this order."""


class Rerun:
    """A log with one job, which runs on Spark while its tasks are struck."""

    def __init__(
        self, strikes: Strikes, published: PublishedLog, spark: SparkForTests, store: StoreConfig
    ) -> None:
        self.strikes = strikes
        self._published = published
        self._catalog = published.catalog
        self._spark = spark
        self._store = store
        topic = published.create_topic("struck", "compact", PARTITIONS)
        self._partitions = [PartitionId(topic.topic_id, number) for number in range(PARTITIONS)]
        for file in range(FILES):
            published.ingest({each: [batch(*pairs_of(file, each.partition))] for each in self._partitions})
        tie(published.store, self._catalog.home, published.ids)
        published.submit(topic, range(PARTITIONS), table_bytes=TABLE_BYTES)
        self._expected = {each: newest(published.read(each)) for each in self._partitions}

    def run(self, clock: ManualClock, plan: PlanChoice) -> CompactionReport:
        (job,) = self._catalog.jobs.claim("a test", 1)
        return run_jobs(
            self._spark.session,
            [job],
            store=self._store,
            book=self._catalog.jobs,
            clock=clock,
            ids=self._published.ids,
            plan=plan,
        )

    def check(self, report: CompactionReport) -> None:
        """The job was published, exactly, as it was read by two GETs a file."""
        assert report.failures == []
        assert self.strikes.are_spent()
        assert (report.input_files, report.get_requests, report.resumes) == (FILES, 2 * FILES, 0)
        assert report.records_in == FILES * PARTITIONS * RECORDS
        assert report.records_out == sum(map(len, self._expected.values())) == report.keys
        assert report.keys_outside_table == 0
        self._check_log()

    def _check_log(self) -> None:
        for partition, expected in self._expected.items():
            assert self._published.read(partition) == expected
            assert all(each.unique_keys for each in self._published.extents(partition, FileKind.COMPACTED))

    def collect(self, clock: ManualClock) -> int:
        """Garbage goes, and nothing is left but what readers need; returns how many objects nobody knew."""
        clock.advance(61)
        settings = GarbageSettings(unfinished_upload_ms=0)
        collected = collect_garbage(self._catalog, self._published.store, clock, settings)
        live = {
            each.object_name for partition in self._partitions for each in self._published.extents(partition)
        }
        root = Path(self._store.url.removeprefix("file://"))
        files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
        assert files == live | {IDENTITY_NAME}
        self._check_log()
        return collected.orphans


def pairs_of(file: int, partition: int) -> list[tuple[bytes, bytes | None]]:
    """Records of one batch: keys that others have too, and some deletes."""
    return [
        (b"key-%d" % ((17 * file + (3 + partition) * each) % 97), None if each % 7 == file else b"%d" % file)
        for each in range(RECORDS)
    ]


def newest(records: list[Record]) -> list[Record]:
    """What a dictionary keeps."""
    last = {record.key: record.offset for record in records}
    return [record for record in records if last[record.key] == record.offset]


@pytest.fixture
def rerun(
    spark: SparkForTests,
    published: PublishedLog,
    store_config: StoreConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Rerun:
    shuffled = spark.session.sparkContext.getConf().get("spark.local.dir")
    assert shuffled is not None
    strikes = Strikes(tmp_path / "strikes", Path(shuffled))
    strikes.install(monkeypatch)
    return Rerun(strikes, published, spark, store_config)


def test_workers_that_die_at_every_stage_of_the_exact_plan(rerun: Rerun, clock: ManualClock) -> None:
    """Spark runs the tasks again that they had, and no others; a file that is not answered for is garbage."""
    rerun.strikes.arm("cut-1.1", GIVE, Deed.KILL)
    rerun.strikes.arm("judge-2.1", TAKE, Deed.KILL, passage=5)
    rerun.strikes.arm("write-3.1", TAKE, Deed.KILL, passage=5)
    rerun.strikes.arm("write-4.1", "after upload.complete", Deed.KILL)

    report = rerun.run(clock, PlanChoice.SHUFFLE)

    rerun.check(report)
    begun = rerun.strikes.executions()
    assert begun.keys() == TASKS
    assert {task for task, times in begun.items() if times > 1} == {"cut-1", "judge-2", "write-3", "write-4"}
    assert set(begun.values()) == {1, 2}
    assert rerun.strikes.passages(ASKED).total() == report.get_requests + 2
    assert rerun.collect(clock) == 1


@pytest.mark.parametrize("where", ["judge-3.1", "write-3.1"])
def test_outputs_that_are_lost_between_stages_are_made_again(
    rerun: Rerun, clock: ManualClock, where: str
) -> None:
    """Tasks that come later do not find what they are to fetch; those before have had it."""
    rerun.strikes.arm(where, BEGIN, Deed.LOSE)

    report = rerun.run(clock, PlanChoice.SHUFFLE)

    rerun.check(report)
    begun = rerun.strikes.executions()
    assert begun.keys() == TASKS
    assert {begun[f"cut-{share}"] for share in range(SHARES)} == {2}
    assert {begun["judge-0"], begun["judge-1"]} == {2}
    assert (begun["write-0"], begun["write-7"]) == (1, 1)
    assert rerun.strikes.passages(ASKED).total() == report.get_requests + FILES
    assert rerun.collect(clock) == 0


def test_outputs_that_cannot_be_made_again_fail_the_job(
    rerun: Rerun, clock: ManualClock, catalog: Catalog
) -> None:
    """Some shares have written when the store fails; nothing of it is published before the job runs again."""
    rerun.strikes.arm("write-3.1", BEGIN, Deed.LOSE)
    rerun.strikes.arm("cut-5.2", "before store.open_stream", Deed.FAIL)

    (failure,) = rerun.run(clock, PlanChoice.SHUFFLE).failures

    assert (failure.kind, failure.released) == ("retryable", True)
    assert "503" in failure.message
    assert rerun.strikes.are_spent()
    assert catalog.jobs.counts()[JobState.SUBMITTED] == 1
    rerun.check(rerun.run(clock, PlanChoice.SHUFFLE))
    assert rerun.collect(clock) in {2, 3, 4}  # two tasks run at a time


def test_workers_that_die_in_a_job_that_is_one_task(rerun: Rerun, clock: ManualClock) -> None:
    """In the second pass, with an upload begun, and when the file is there but no answer is."""
    rerun.strikes.arm("job-0.1", "after upload.write", Deed.KILL)
    rerun.strikes.arm("job-0.2", "after upload.complete", Deed.KILL)

    report = rerun.run(clock, PlanChoice.TASK)

    rerun.check(report)
    assert rerun.strikes.executions() == {"job-0": 3}
    # An upload's first bytes go before the last file is asked for.
    assert rerun.strikes.passages(ASKED).total() == 3 * report.get_requests - 1
    assert rerun.collect(clock) == 1
