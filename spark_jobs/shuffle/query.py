"""The shuffle plan as one Spark query, on classic Spark and on Spark Connect alike."""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING

import orjson
from pyspark.sql import functions as sql

from catalog.model import JobResult
from core.clock import SystemClock
from core.errors import CorruptDataError, SiltstoneError
from core.ids import SystemIds
from object_store.open import open_store
from spark_jobs.errors import IncompleteShuffleError
from spark_jobs.report import JobFailure, merge_counts
from spark_jobs.session.worker_gc import settle
from spark_jobs.shuffle.rows import (
    BLOB_SCHEMA,
    SURVIVOR_SCHEMA,
    BlobRow,
    SurvivorRow,
    read_blob_rows,
    read_survivor_rows,
    write_blob_rows,
    write_survivor_rows,
)
from spark_jobs.shuffle.stages import (
    KnownShare,
    StageContext,
    cut_share,
    failed_cut,
    failed_judging,
    judge_buckets,
    write_share,
)
from spark_jobs.task.entry import ANSWER_SCHEMA, PackedJob, answer_rows, parent_watch, read_answer
from spark_jobs.transport import pack_result, unpack_spec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from catalog.model import JobSpec
    from object_store.interface import ObjectStore
    from object_store.open import StoreConfig
    from spark_jobs.shuffle.plan import ShufflePlan


class ShuffleKernel:
    """`cut`, `judge` and `write` are the functions that `mapInArrow` calls, one per stage.

    Errors of a job are an answer, not a failure of the task: they travel on to every task of the next
    stage, until the last stage answers with them. It is pickled by reference to this module, as `JobKernel`.
    """

    def __init__(self, store: StoreConfig, job: PackedJob, plan: ShufflePlan) -> None:
        self._store = store
        self._job = job
        self._plan = plan

    def cut(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stage 1: from ids of shares to rows of `BLOB_SCHEMA`."""
        for batch in batches:
            for share in batch.column(0).to_pylist():
                yield from write_blob_rows(self._cut(share))
        settle("cut")

    def judge(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stage 2: from sorted rows of `BLOB_SCHEMA` to rows of `SURVIVOR_SCHEMA`."""
        yield from write_survivor_rows(self._judge(read_blob_rows(batches)))
        for _ in batches:  # what a failure leaves unread: Spark ends workers that do not read to the end
            pass
        settle("judge")

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stage 3: from rows of `SURVIVOR_SCHEMA` to one row of `ANSWER_SCHEMA` for each share."""
        shares: defaultdict[int, KnownShare] = defaultdict(KnownShare)
        for row in read_survivor_rows(batches):
            shares[row.share].add(row)
        for share in sorted(shares):
            done, answer = self._write(share, shares.pop(share))
            yield answer_rows(share, done=done, answer=answer)
        settle("write")

    def _cut(self, share: int) -> Iterator[BlobRow]:
        try:
            with self._opened_store() as store:
                yield from cut_share(self._context(), share, store)
        except Exception as error:  # noqa: BLE001 -- an error of the job is its answer, see above
            yield from failed_cut(self._plan, share, JobFailure.of(self._job.job_id, error))

    def _judge(self, rows: Iterable[BlobRow]) -> Iterator[SurvivorRow]:
        try:
            yield from judge_buckets(self._context(), rows)
        except Exception as error:  # noqa: BLE001 -- an error of the job is its answer, see above
            yield from failed_judging(self._plan, 0, JobFailure.of(self._job.job_id, error))

    def _write(self, share: int, known: KnownShare) -> tuple[bool, bytes]:
        failure = next((report.failure for report in known.reports if report.failure is not None), None)
        if failure is not None:
            return False, orjson.dumps(failure)
        ids = SystemIds(SystemClock())
        try:
            with self._opened_store() as store:
                return True, pack_result(
                    write_share(self._context(), share, known, store, self._job.attempt_id, ids)
                )
        except Exception as error:  # noqa: BLE001 -- an error of the job is its answer, see above
            return False, orjson.dumps(JobFailure.of(self._job.job_id, error))

    def _context(self) -> StageContext:
        return StageContext(
            spec=unpack_spec(self._job.spec), plan=self._plan, clock=SystemClock(), check=parent_watch()
        )

    @contextmanager
    def _opened_store(self) -> Iterator[ObjectStore]:
        clock = SystemClock()
        store = open_store(self._store, clock, SystemIds(clock))
        try:
            yield store
        finally:
            store.close()


def run_shuffled(
    spark: SparkSession, store: StoreConfig, job: PackedJob, plan: ShufflePlan
) -> JobResult | JobFailure:
    """Runs one job and returns its result, or its first share's failure. Raises what Spark raises."""
    kernel = ShuffleKernel(store, job, plan)
    written = (
        survivors_of(spark, kernel, plan)
        .repartitionById(len(plan.shares), sql.col("share"))
        .mapInArrow(kernel.write, ANSWER_SCHEMA)
    )
    answers = [(row["job"], read_answer(row.asDict())) for row in written.collect()]
    try:
        return unite_answers(job, plan, answers)
    except SiltstoneError as error:
        return JobFailure.of(job.job_id, error)


def survivors_of(spark: SparkSession, kernel: ShuffleKernel, plan: ShufflePlan) -> DataFrame:
    """The first two stages: rows of `SURVIVOR_SCHEMA`."""
    count = len(plan.shares)
    return (
        spark.range(0, count, 1, count)
        .mapInArrow(kernel.cut, BLOB_SCHEMA)
        .repartitionById(plan.judges, sql.col("judge"))
        .sortWithinPartitions(sql.col("kind"), sql.col("number"), sql.col("first_offset").desc())
        .mapInArrow(kernel.judge, SURVIVOR_SCHEMA)
    )


def unite_answers(
    job: PackedJob, plan: ShufflePlan, answers: list[tuple[int, JobResult | JobFailure]]
) -> JobResult | JobFailure:
    """One answer of those of all shares, by the shares' numbers; the first failure, if there is any.

    Raises IncompleteShuffleError unless each share has answered, once.
    """
    results = []
    for _, answer in answers:
        if isinstance(answer, JobFailure):
            return answer
        results.append(answer)
    shares = sorted(share for share, _ in answers)
    if shares != list(range(len(plan.shares))):
        raise IncompleteShuffleError(
            f"job {job.job_id}: of its {len(plan.shares)} shares, these answered: {shares}"
        )
    counts = merge_counts(result.counts for result in results)
    counts |= {
        "partitions": len(plan.bits),
        "shuffled_jobs": 1,
        "shares": len(plan.shares),
        "buckets": plan.buckets,
        "input_files": counts.get("input_files", 0) + len(plan.cut_files),
        "input_files_cut": len(plan.cut_files),
    }
    _check_records(unpack_spec(job.spec), counts["records_in"])
    return JobResult(
        job_id=job.job_id,
        attempt_id=job.attempt_id,
        files=tuple(file for result in results for file in result.files),
        counts=counts,
    )


def _check_records(spec: JobSpec, found: int) -> None:
    """Shares that read a file together have what the catalog counts only together."""
    counted = sum(extent.record_count for each in spec.inputs for extent in each.extents)
    if found != counted:
        raise CorruptDataError(
            f"job {spec.job_id}: its input files have {found} records, where the catalog counts {counted}"
        )
