"""No repeated task and no lost row of a shuffled job loses a live record."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.model import JobResult, PartitionId
from object_store.open import StoreConfig
from spark_jobs.errors import IncompleteShuffleError, JobCancelledError, TaskFaultError
from spark_jobs.report import JobFailure
from spark_jobs.shuffle import query as shuffle_query
from spark_jobs.shuffle import row_counts
from spark_jobs.shuffle.plan import plan_shuffle
from spark_jobs.shuffle.query import StageFunctions, unite_results
from spark_jobs.shuffle.row_counts import Tally
from spark_jobs.shuffle.rows import (
    END,
    FAILURE,
    PAYLOAD,
    BlobRow,
    SurvivorRow,
    read_survivor_rows,
    write_blob_rows,
)
from spark_jobs.shuffle.shares import ShareSizes
from spark_jobs.shuffle.stages import ShareInput, failed_judging
from spark_jobs.task.entry import PackedJob
from spark_jobs.transport import pack_spec, unpack_result
from tests.spark_jobs.compaction_harness import CompactionHarness
from tests.spark_jobs.reference_log import batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

PARTITIONS = 8
SHARES = 2
JUDGES = 8
RECORDS = 20


class ManualShuffle:
    """A job of two shares and eight judges, whose tasks the test runs itself, in any number."""

    def __init__(self, directory: Path) -> None:
        self.harness = CompactionHarness(directory)
        topic = self.harness.topic()
        partition_id = [PartitionId(topic, number) for number in range(PARTITIONS)]
        for file in range(SHARES):
            pairs = [(b"%d-%d" % (file * (each % 2), each), b"%d" % file) for each in range(RECORDS)]
            self.harness.log.ingest({each: [batch(*pairs)] for each in partition_id})
        self.spec = self.harness.log.job()
        self.plan = plan_shuffle(
            self.spec, ShareSizes(share_bytes=1, min_shares=SHARES, min_piece_bytes=1 << 30)
        )
        assert (len(self.plan.shares), self.plan.judges) == (SHARES, JUDGES)
        self.job = PackedJob(self.spec.job_id, self.harness.ids.new_uuid(), pack_spec(self.spec))
        self.functions = StageFunctions(StoreConfig(str(directory)), self.job, self.plan)
        self.cuts = [list(self.functions._cut(share)) for share in range(SHARES)]

    def fail_cut(self, share: int, after: int) -> list[BlobRow]:
        """Return the rows of another execution of stage 1 that fails after so many rows."""

        def failing(*_: object) -> Iterator[BlobRow]:
            yield from self.cuts[share][:after]
            raise JobCancelledError("the executor responded with 503")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shuffle_query, "cut_share", failing)
            return list(self.functions._cut(share))

    def judge(self, rows: Iterable[BlobRow]) -> list[SurvivorRow]:
        return list(
            self.functions._judge(sorted(rows, key=lambda row: (row.kind, row.number, -row.first_offset)))
        )

    def judge_all(self, rows: Iterable[BlobRow]) -> list[SurvivorRow]:
        """Run stage 2: each judge gets its rows."""
        sorted_out: defaultdict[int, list[BlobRow]] = defaultdict(list)
        for row in rows:
            sorted_out[row.judge].append(row)
        return [row for judge in range(JUDGES) for row in self.judge(sorted_out[judge])]

    def write_all(self, rows: Iterable[SurvivorRow]) -> JobResult | JobFailure:
        """Run stage 3 and return the job's result."""
        share_input: defaultdict[int, ShareInput] = defaultdict(ShareInput)
        for row in rows:
            share_input[row.share].add(row)
        results = [(share, self.write(share, share_input[share])) for share in range(SHARES)]
        return unite_results(self.job, self.plan, results)

    def write(self, share: int, share_input: ShareInput) -> JobResult | JobFailure:
        """Run stage 3 for one share."""
        done, result = self.functions._write(share, share_input)
        return unpack_result(result) if done else JobFailure(**orjson.loads(result))

    def check(self, result: JobResult | JobFailure) -> None:
        """Publish the result and check the log."""
        assert isinstance(result, JobResult), result
        self.harness.log.publish(self.spec, result)
        self.harness.log.check()


@pytest.fixture
def shuffle(tmp_path: Path) -> ManualShuffle:
    return ManualShuffle(tmp_path)


@pytest.fixture(scope="module")
def shared_shuffle(tmp_path_factory: pytest.TempPathFactory) -> ManualShuffle:
    """A job for examples that publish nothing, or always the same."""
    return ManualShuffle(tmp_path_factory.mktemp("shuffle"))


def share_input_of(share: int, rows: Iterable[SurvivorRow]) -> ShareInput:
    share_input = ShareInput()
    for row in rows:
        if row.share == share:
            share_input.add(row)
    return share_input


def all_rows(shuffle: ManualShuffle) -> list[BlobRow]:
    return [row for rows in shuffle.cuts for row in rows]


def test_a_repeated_task_sends_the_same_rows(shuffle: ManualShuffle) -> None:
    """Only reports differ, because they have durations.

    Rows of several successful executions may therefore be mixed.
    """
    again = [list(shuffle.functions._cut(share)) for share in range(SHARES)]

    for first, second in zip(shuffle.cuts, again, strict=True):
        assert [row._replace(data=b"") for row in first] == [row._replace(data=b"") for row in second]
        for kind in (PAYLOAD, END):
            assert [row for row in first if row.kind == kind] == [row for row in second if row.kind == kind]
    mixed = [row for row in all_rows(shuffle) if row.judge % 2] + [
        row for rows in again for row in rows if not row.judge % 2
    ]
    shuffle.check(shuffle.write_all(shuffle.judge_all(mixed)))


def test_a_rerun_that_fails_after_judges_read_the_first_run_fails_the_job(shuffle: ManualShuffle) -> None:
    """Some judges have the first output when it is lost; the task that Spark repeats is lost as well."""
    rerun = shuffle.fail_cut(1, after=5)
    late_judges = {5, 6, 7}
    rows = [
        row
        for share, first in enumerate(shuffle.cuts)
        for judge in range(JUDGES)
        for row in (rerun if share == 1 and judge in late_judges else first)
        if row.judge == judge
    ]

    result = shuffle.write_all(shuffle.judge_all(rows))

    assert isinstance(result, JobFailure)
    assert result.kind == "retryable"
    assert "503" in result.message
    assert {row.judge for row in rerun if row.kind not in {PAYLOAD, END}} == set(range(JUDGES))


def test_a_judge_reads_its_input_to_the_end_after_a_failure(shared_shuffle: ManualShuffle) -> None:
    """Otherwise, Spark would end the worker and start another one for the next judge."""
    rows = [*shared_shuffle.fail_cut(1, after=5), *shared_shuffle.cuts[0]]
    own_rows = sorted(row for row in rows if row.judge == 0)
    batches = (each for row in own_rows for each in write_blob_rows([row]))

    sent = list(read_survivor_rows(shared_shuffle.functions.judge(batches)))

    assert [row.kind for row in sent] == [FAILURE] * SHARES
    assert next(batches, None) is None


@pytest.mark.parametrize("number", range(JUDGES + 3))
def test_a_row_lost_between_cut_and_judge_fails_the_job(shared_shuffle: ManualShuffle, number: int) -> None:
    """The row may be a blob, a report or a marker."""
    rows = all_rows(shared_shuffle)
    lost = rows[number * (len(rows) - 1) // (JUDGES + 2)]

    result = shared_shuffle.write_all(shared_shuffle.judge_all(row for row in rows if row is not lost))

    assert isinstance(result, JobFailure)
    assert (result.kind, result.error) == ("retryable", "IncompleteShuffleError")


@pytest.mark.parametrize("number", range(9))
def test_a_row_lost_between_judge_and_write_fails_the_job(shared_shuffle: ManualShuffle, number: int) -> None:
    """The row may have bitmaps, a report or a marker."""
    rows = shared_shuffle.judge_all(all_rows(shared_shuffle))
    lost = rows[number * (len(rows) - 1) // 8]

    result = shared_shuffle.write_all(row for row in rows if row is not lost)

    assert isinstance(result, JobFailure)
    assert (result.kind, result.error) == ("retryable", "IncompleteShuffleError")


def test_a_duplicate_row_fails_the_job(shared_shuffle: ManualShuffle) -> None:
    """Rows of two executions in one task are not added up."""
    rows = shared_shuffle.judge_all(all_rows(shared_shuffle))
    ends = [row for row in rows if row.kind == END]
    bitmaps = [row for row in rows if row.kind == PAYLOAD]

    for doubled in (ends[0], bitmaps[0]):
        result = shared_shuffle.write_all([*rows, doubled])
        assert isinstance(result, JobFailure)
        assert (result.kind, result.error) == ("retryable", "IncompleteShuffleError")


def test_a_share_with_more_records_than_were_judged_leaves_no_object(shared_shuffle: ManualShuffle) -> None:
    """One judge reports one record fewer than it judged."""

    def fewer(row: SurvivorRow) -> SurvivorRow:
        tally = Tally.unpack(row.data)
        tally.records -= 1
        return row._replace(data=tally.pack())

    rows = [
        fewer(row) if (row.kind, row.judge) == (END, 3) else row
        for row in shared_shuffle.judge_all(all_rows(shared_shuffle))
    ]
    before = shared_shuffle.harness.objects()

    result = shared_shuffle.write(1, share_input_of(1, rows))

    assert isinstance(result, JobFailure)
    assert result.kind == "retryable"
    assert "pass 2 read 160 records, but 159 were judged" in result.message
    assert shared_shuffle.harness.objects() == before


def test_a_blob_that_lacks_records_fails_the_job(shared_shuffle: ManualShuffle) -> None:
    """The number of rows is correct."""
    rows = all_rows(shared_shuffle)
    short = next(row for row in rows if row.kind == PAYLOAD and row.share == 1)
    base, fingerprints, positions = short.data[:8], short.data[8 : -4 * RECORDS], short.data[-4 * RECORDS :]
    shorter = short._replace(data=bytes(base) + bytes(fingerprints[12:]) + bytes(positions[4:]))

    result = shared_shuffle.write_all(
        shared_shuffle.judge_all(shorter if row is short else row for row in rows)
    )

    assert isinstance(result, JobFailure)
    assert (result.kind, result.error) == ("retryable", "IncompleteShuffleError")
    assert re.search(r"\d+ records were judged, but \d+ were sent", result.message)


def test_rows_of_tasks_with_other_kernels_fail_the_task(shared_shuffle: ManualShuffle) -> None:
    """Other kernels may hash keys differently: a deleted key would return."""

    def with_other_kernels(tally: Tally) -> bytes:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(row_counts, "KERNEL_DIGEST", "ab" * 32)
            return tally.pack()

    rows = all_rows(shared_shuffle)
    foreign = next(row for row in rows if row.kind == END)
    other = foreign._replace(data=with_other_kernels(Tally.unpack(foreign.data)))

    with pytest.raises(TaskFaultError, match=r"KernelMismatchError: .*deploy the same version"):
        shared_shuffle.judge_all(other if row is foreign else row for row in rows)


def test_two_results_of_one_share_are_rejected(shared_shuffle: ManualShuffle) -> None:
    """Two results of one share do not replace the result of another share."""
    judged = shared_shuffle.judge_all(all_rows(shared_shuffle))
    results = [(0, shared_shuffle.write(0, share_input_of(0, judged))) for _ in range(SHARES)]

    with pytest.raises(IncompleteShuffleError, match=r"\[0, 0\]"):
        unite_results(shared_shuffle.job, shared_shuffle.plan, results)


def test_executions_of_pass_2_write_separate_objects(shared_shuffle: ManualShuffle) -> None:
    """Spark may run two executions at a time; each names its own objects."""
    judged = shared_shuffle.judge_all(all_rows(shared_shuffle))

    first, second = (shared_shuffle.write(1, share_input_of(1, judged)) for _ in range(2))

    assert isinstance(first, JobResult)
    assert isinstance(second, JobResult)
    names = [file.object_name for result in (first, second) for file in result.files]
    assert len(set(names)) == len(names) == 2
    assert set(names) <= set(shared_shuffle.harness.objects())
    without_names = [
        [replace(file, file_id=UUID(int=0), object_name="") for file in result.files]
        for result in (first, second)
    ]
    assert without_names[0] == without_names[1]


def test_one_task_may_run_several_judges(shuffle: ManualShuffle) -> None:
    """A cluster may be configured for fewer, larger tasks."""
    rows = all_rows(shuffle)

    judged = [
        survivors
        for first, last in ((0, 3), (3, JUDGES))
        for survivors in shuffle.judge(row for row in rows if first <= row.judge < last)
    ]

    shuffle.check(shuffle.write_all(judged))


@given(st.data())
def test_no_mixture_of_executions_loses_a_record(shared_shuffle: ManualShuffle, data: st.DataObject) -> None:
    """Each judge and each share reads one execution of each earlier task, which may be any of them."""
    fails = st.sampled_from([False, False, False, True])
    execution_of = [data.draw(st.sampled_from(["first", "again", "mixed"])) for _ in range(SHARES)]
    failed = [shared_shuffle.fail_cut(share, data.draw(st.integers(0, 12))) for share in range(SHARES)]
    rows = [
        row
        for share in range(SHARES)
        for judge in range(JUDGES)
        for row in (
            failed[share]
            if execution_of[share] == "again" or (execution_of[share] == "mixed" and data.draw(fails))
            else shared_shuffle.cuts[share]
        )
        if row.judge == judge
    ]
    judged = shared_shuffle.judge_all(rows)
    failed_judge = data.draw(st.integers(-1, JUDGES - 1))
    if failed_judge >= 0:  # another execution of this judge fails; only share 1 reads its rows
        sent = [row for row in judged if row.judge == failed_judge][: data.draw(st.integers(0, 5))]
        failure = JobFailure.of(shared_shuffle.job.job_id, JobCancelledError("the worker responded with 503"))
        sent_rows = [*sent, *failed_judging(shared_shuffle.plan, failed_judge, failure)]
        judged = [row for row in judged if (row.judge, row.share) != (failed_judge, 1)]
        judged += [row for row in sent_rows if row.share == 1]

    result = shared_shuffle.write_all(judged)

    is_complete = (
        all(rows.count(row) for row in all_rows(shared_shuffle) if row.kind == END) and failed_judge < 0
    )
    assert isinstance(result, JobResult) is is_complete
    if isinstance(result, JobResult):
        assert result.counts["records_out"] == PARTITIONS * (RECORDS + RECORDS // 2)
    else:
        assert result.kind == "retryable"
        assert "503" in result.message
