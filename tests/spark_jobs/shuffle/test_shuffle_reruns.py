"""Whatever tasks Spark runs again, and whichever rows of theirs it loses: no live record is lost."""

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
from core.errors import RetryableError
from object_store.open import StoreConfig
from spark_jobs.errors import IncompleteShuffleError
from spark_jobs.report import JobFailure
from spark_jobs.shuffle import query as shuffle_query
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


class StoreIsBusyError(RetryableError):
    """What a store answers with 503."""


class Cluster:
    """A job of two shares and eight judges, whose tasks are run by hand, as often as one likes."""

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
        self.kernel = StageFunctions(StoreConfig(str(directory)), self.job, self.plan)
        self.cuts = [list(self.kernel._cut(share)) for share in range(SHARES)]

    def fail_cut(self, share: int, after: int) -> list[BlobRow]:
        """What another execution of stage 1 sends when it fails behind so many rows."""

        def failing(*_: object) -> Iterator[BlobRow]:
            yield from self.cuts[share][:after]
            raise StoreIsBusyError("the store answers 503")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shuffle_query, "cut_share", failing)
            return list(self.kernel._cut(share))

    def judge(self, rows: Iterable[BlobRow]) -> list[SurvivorRow]:
        return list(
            self.kernel._judge(sorted(rows, key=lambda row: (row.kind, row.number, -row.first_offset)))
        )

    def judge_all(self, rows: Iterable[BlobRow]) -> list[SurvivorRow]:
        """Stage 2: each judge gets the rows that are for it."""
        sorted_out: defaultdict[int, list[BlobRow]] = defaultdict(list)
        for row in rows:
            sorted_out[row.judge].append(row)
        return [row for judge in range(JUDGES) for row in self.judge(sorted_out[judge])]

    def write_all(self, rows: Iterable[SurvivorRow]) -> JobResult | JobFailure:
        """Stage 3, and the job's answer."""
        known: defaultdict[int, ShareInput] = defaultdict(ShareInput)
        for row in rows:
            known[row.share].add(row)
        answers = [(share, self.write(share, known[share])) for share in range(SHARES)]
        return unite_results(self.job, self.plan, answers)

    def write(self, share: int, known: ShareInput) -> JobResult | JobFailure:
        """Stage 3 of one share."""
        done, answer = self.kernel._write(share, known)
        return unpack_result(answer) if done else JobFailure(**orjson.loads(answer))

    def check(self, answer: JobResult | JobFailure) -> None:
        """Hold what was published against the dictionaries."""
        assert isinstance(answer, JobResult), answer
        self.harness.log.publish(self.spec, answer)
        self.harness.log.check()


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


@pytest.fixture(scope="module")
def kept_cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """One for examples that publish nothing, or all the same."""
    return Cluster(tmp_path_factory.mktemp("cluster"))


def known_of(share: int, rows: Iterable[SurvivorRow]) -> ShareInput:
    known = ShareInput()
    for row in rows:
        if row.share == share:
            known.add(row)
    return known


def all_rows(cluster: Cluster) -> list[BlobRow]:
    return [row for rows in cluster.cuts for row in rows]


def test_a_task_that_runs_again_makes_the_same_rows(cluster: Cluster) -> None:
    """But for the reports, which tell of times; so rows of executions that succeed may be mixed."""
    again = [list(cluster.kernel._cut(share)) for share in range(SHARES)]

    for first, second in zip(cluster.cuts, again, strict=True):
        assert [row._replace(data=b"") for row in first] == [row._replace(data=b"") for row in second]
        for kind in (PAYLOAD, END):
            assert [row for row in first if row.kind == kind] == [row for row in second if row.kind == kind]
    mixed = [row for row in all_rows(cluster) if row.judge % 2] + [
        row for rows in again for row in rows if not row.judge % 2
    ]
    cluster.check(cluster.write_all(cluster.judge_all(mixed)))


def test_an_execution_that_fails_after_others_were_read_fails_the_job(cluster: Cluster) -> None:
    """Its output was lost when some judges had it, and the store does not answer when it is made again."""
    rerun = cluster.fail_cut(1, after=5)
    late = {5, 6, 7}
    rows = [
        row
        for share, first in enumerate(cluster.cuts)
        for judge in range(JUDGES)
        for row in (rerun if share == 1 and judge in late else first)
        if row.judge == judge
    ]

    answer = cluster.write_all(cluster.judge_all(rows))

    assert isinstance(answer, JobFailure)
    assert answer.retryable
    assert "503" in answer.message
    assert {row.judge for row in rerun if row.kind not in {PAYLOAD, END}} == set(range(JUDGES))


def test_a_judge_reads_to_the_end_after_a_failure(kept_cluster: Cluster) -> None:
    """Spark would end its worker, and start another one for the next judge."""
    rows = [*kept_cluster.fail_cut(1, after=5), *kept_cluster.cuts[0]]
    mine = sorted(row for row in rows if row.judge == 0)
    batches = (each for row in mine for each in write_blob_rows([row]))

    sent = list(read_survivor_rows(kept_cluster.kernel.judge(batches)))

    assert [row.kind for row in sent] == [FAILURE] * SHARES
    assert next(batches, None) is None


@pytest.mark.parametrize("number", range(JUDGES + 3))
def test_a_row_that_is_lost_before_a_judge_fails_the_job(kept_cluster: Cluster, number: int) -> None:
    """Be it a blob, a report or a marker."""
    rows = all_rows(kept_cluster)
    lost = rows[number * (len(rows) - 1) // (JUDGES + 2)]

    answer = kept_cluster.write_all(kept_cluster.judge_all(row for row in rows if row is not lost))

    assert isinstance(answer, JobFailure)
    assert (answer.retryable, answer.error) == (True, "IncompleteShuffleError")


@pytest.mark.parametrize("number", range(9))
def test_a_row_that_is_lost_before_a_share_fails_the_job(kept_cluster: Cluster, number: int) -> None:
    """Be it bitmaps, a report or a marker."""
    rows = kept_cluster.judge_all(all_rows(kept_cluster))
    lost = rows[number * (len(rows) - 1) // 8]

    answer = kept_cluster.write_all(row for row in rows if row is not lost)

    assert isinstance(answer, JobFailure)
    assert (answer.retryable, answer.error) == (True, "IncompleteShuffleError")


def test_a_row_that_comes_twice_fails_the_job(kept_cluster: Cluster) -> None:
    """Rows of two executions in one task are not added up."""
    rows = kept_cluster.judge_all(all_rows(kept_cluster))
    ends = [row for row in rows if row.kind == END]
    bitmaps = [row for row in rows if row.kind == PAYLOAD]

    for doubled in (ends[0], bitmaps[0]):
        answer = kept_cluster.write_all([*rows, doubled])
        assert isinstance(answer, JobFailure)
        assert (answer.retryable, answer.error) == (True, "IncompleteShuffleError")


def test_what_was_judged_is_what_pass_two_reads(kept_cluster: Cluster) -> None:
    """A share whose judges tell of fewer records than it has leaves nothing behind."""

    def fewer(row: SurvivorRow) -> SurvivorRow:
        tally = Tally.unpack(row.data)
        tally.records -= 1
        return row._replace(data=tally.pack())

    rows = [
        fewer(row) if (row.kind, row.judge) == (END, 3) else row
        for row in kept_cluster.judge_all(all_rows(kept_cluster))
    ]
    before = kept_cluster.harness.objects()

    answer = kept_cluster.write(1, known_of(1, rows))

    assert isinstance(answer, JobFailure)
    assert answer.retryable
    assert "pass 2 read 160 records, but 159 were judged" in answer.message
    assert kept_cluster.harness.objects() == before


def test_a_judge_whose_blob_lacks_records_fails_the_job(kept_cluster: Cluster) -> None:
    """The rows are as many as they should be."""
    rows = all_rows(kept_cluster)
    short = next(row for row in rows if row.kind == PAYLOAD and row.share == 1)
    base, words, places = short.data[:8], short.data[8 : -4 * RECORDS], short.data[-4 * RECORDS :]
    shorter = short._replace(data=bytes(base) + bytes(words[12:]) + bytes(places[4:]))

    answer = kept_cluster.write_all(kept_cluster.judge_all(shorter if row is short else row for row in rows))

    assert isinstance(answer, JobFailure)
    assert (answer.retryable, answer.error) == (True, "IncompleteShuffleError")
    assert re.search(r"\d+ records were judged, but \d+ were sent", answer.message)


def test_each_share_answers_once(kept_cluster: Cluster) -> None:
    """Two answers of one share do not stand for that of another."""
    judged = kept_cluster.judge_all(all_rows(kept_cluster))
    answers = [(0, kept_cluster.write(0, known_of(0, judged))) for _ in range(SHARES)]

    with pytest.raises(IncompleteShuffleError, match=r"\[0, 0\]"):
        unite_results(kept_cluster.job, kept_cluster.plan, answers)


def test_executions_of_pass_two_share_no_object(kept_cluster: Cluster) -> None:
    """Spark may run two at a time; whichever answers names objects that are its own."""
    judged = kept_cluster.judge_all(all_rows(kept_cluster))

    first, second = (kept_cluster.write(1, known_of(1, judged)) for _ in range(2))

    assert isinstance(first, JobResult)
    assert isinstance(second, JobResult)
    names = [file.object_name for result in (first, second) for file in result.files]
    assert len(set(names)) == len(names) == 2
    assert set(names) <= set(kept_cluster.harness.objects())
    plain = [
        [replace(file, file_id=UUID(int=0), object_name="") for file in result.files]
        for result in (first, second)
    ]
    assert plain[0] == plain[1]


def test_judges_that_spark_joins_in_one_task_are_as_good(cluster: Cluster) -> None:
    """A cluster may be set to make fewer, larger tasks."""
    rows = all_rows(cluster)

    judged = [
        survivors
        for first, last in ((0, 3), (3, JUDGES))
        for survivors in cluster.judge(row for row in rows if first <= row.judge < last)
    ]

    cluster.check(cluster.write_all(judged))


@given(st.data())
def test_no_mixture_of_executions_loses_a_record(kept_cluster: Cluster, data: st.DataObject) -> None:
    """Each judge, and then each share, reads one execution of each task before it, whichever that is."""
    fails = st.sampled_from([False, False, False, True])
    which = [data.draw(st.sampled_from(["first", "again", "mixed"])) for _ in range(SHARES)]
    failed = [kept_cluster.fail_cut(share, data.draw(st.integers(0, 12))) for share in range(SHARES)]
    rows = [
        row
        for share in range(SHARES)
        for judge in range(JUDGES)
        for row in (
            failed[share]
            if which[share] == "again" or (which[share] == "mixed" and data.draw(fails))
            else kept_cluster.cuts[share]
        )
        if row.judge == judge
    ]
    judged = kept_cluster.judge_all(rows)
    given_up = data.draw(st.integers(-1, JUDGES - 1))
    if given_up >= 0:  # another execution of this judge fails, and only share 1 reads what it sends
        sent = [row for row in judged if row.judge == given_up][: data.draw(st.integers(0, 5))]
        failure = JobFailure.of(kept_cluster.job.job_id, StoreIsBusyError("the worker answers 503"))
        told = [*sent, *failed_judging(kept_cluster.plan, given_up, failure)]
        judged = [row for row in judged if (row.judge, row.share) != (given_up, 1)]
        judged += [row for row in told if row.share == 1]

    answer = kept_cluster.write_all(judged)

    whole = all(rows.count(row) for row in all_rows(kept_cluster) if row.kind == END) and given_up < 0
    assert isinstance(answer, JobResult) is whole
    if isinstance(answer, JobResult):
        assert answer.counts["records_out"] == PARTITIONS * (RECORDS + RECORDS // 2)
    else:
        assert answer.retryable
        assert "503" in answer.message
