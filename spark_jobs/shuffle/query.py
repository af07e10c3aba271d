"""The shuffle plan as one Spark query, on classic Spark and on Spark Connect alike."""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING

import orjson
from pyspark.sql import functions as sql

from catalog.model import JobResult
from core.clock import SystemClock
from core.errors import CorruptDataError, CorruptFileError, SiltstoneError
from core.ids import SystemIds
from object_store.open import open_store
from spark_jobs.errors import IncompleteShuffleError
from spark_jobs.report import JobFailure, merge_counts
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
    ShareInput,
    StageContext,
    cut_share,
    failed_cut,
    failed_judging,
    judge_buckets,
    write_share,
)
from spark_jobs.task.entry import (
    RESULT_SCHEMA,
    PackedJob,
    failure_result,
    parent_watch,
    read_result_row,
    result_row,
)
from spark_jobs.task.worker_gc import freeze_loaded_objects
from spark_jobs.transport import pack_result, unpack_spec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from catalog.model import JobSpec
    from object_store.interface import ObjectStore
    from object_store.open import StoreConfig
    from spark_jobs.shuffle.plan import ShufflePlan


class StageFunctions:
    """Picklable functions for `mapInArrow`, one for each stage.

    An error that is a job's result (`spark_jobs.task.entry`) travels to every task of the next stage, and the
    last stage returns it. Any other error fails the task. The functions are pickled by reference to this
    installed module, as `JobFunction` is.
    """

    def __init__(self, store: StoreConfig, job: PackedJob, plan: ShufflePlan) -> None:
        self._store = store
        self._job = job
        self._plan = plan

    def cut(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stage 1: turn ids of shares into rows of `BLOB_SCHEMA`."""
        for batch in batches:
            for share in batch.column(0).to_pylist():
                yield from write_blob_rows(self._cut(share))
        freeze_loaded_objects("cut")

    def judge(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stage 2: turn sorted rows of `BLOB_SCHEMA` into rows of `SURVIVOR_SCHEMA`."""
        yield from write_survivor_rows(self._judge(read_blob_rows(batches)))
        for _ in batches:  # after a failure, too: Spark kills workers that do not read their input to the end
            pass
        freeze_loaded_objects("judge")

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stage 3: turn rows of `SURVIVOR_SCHEMA` into one row of `RESULT_SCHEMA` for each share."""
        shares: defaultdict[int, ShareInput] = defaultdict(ShareInput)
        for row in read_survivor_rows(batches):
            shares[row.share].add(row)
        for share in sorted(shares):
            done, result = self._write(share, shares.pop(share))
            yield result_row(share, done=done, result=result)
        freeze_loaded_objects("write")

    def _cut(self, share: int) -> Iterator[BlobRow]:
        try:
            with self._open_store() as store:
                yield from cut_share(self._context(), share, store)
        except Exception as error:  # noqa: BLE001 -- some errors are results, see above
            yield from failed_cut(self._plan, share, failure_result(self._job.job_id, error))

    def _judge(self, rows: Iterable[BlobRow]) -> Iterator[SurvivorRow]:
        try:
            yield from judge_buckets(self._context(), rows)
        except Exception as error:  # noqa: BLE001 -- some errors are results, see above
            yield from failed_judging(self._plan, 0, failure_result(self._job.job_id, error))

    def _write(self, share: int, known: ShareInput) -> tuple[bool, bytes]:
        failure = next((report.failure for report in known.reports if report.failure is not None), None)
        if failure is not None:
            return False, orjson.dumps(failure)
        ids = SystemIds(SystemClock())
        try:
            with self._open_store() as store:
                return True, pack_result(
                    write_share(self._context(), share, known, store, self._job.attempt_id, ids)
                )
        except Exception as error:  # noqa: BLE001 -- some errors are results, see above
            return False, orjson.dumps(failure_result(self._job.job_id, error))

    def _context(self) -> StageContext:
        return StageContext(
            spec=unpack_spec(self._job.spec), plan=self._plan, clock=SystemClock(), check=parent_watch()
        )

    @contextmanager
    def _open_store(self) -> Iterator[ObjectStore]:
        clock = SystemClock()
        store = open_store(self._store, clock, SystemIds(clock))
        try:
            yield store
        finally:
            store.close()


def run_shuffled(
    spark: SparkSession, store: StoreConfig, job: PackedJob, plan: ShufflePlan
) -> JobResult | JobFailure:
    """Run one job and return its result, or the failure of its first failed share. Raises Spark's errors."""
    functions = StageFunctions(store, job, plan)
    written = (
        survivors_of(spark, functions, plan)
        .repartitionById(len(plan.shares), sql.col("share"))
        .mapInArrow(functions.write, RESULT_SCHEMA)
    )
    outcomes = [(row["job"], read_result_row(row.asDict())) for row in written.collect()]
    try:
        return unite_results(job, plan, outcomes)
    except SiltstoneError as error:
        return JobFailure.of(job.job_id, error)


def survivors_of(spark: SparkSession, functions: StageFunctions, plan: ShufflePlan) -> DataFrame:
    """Return the first two stages: rows of `SURVIVOR_SCHEMA`."""
    count = len(plan.shares)
    return (
        spark.range(0, count, 1, count)
        .mapInArrow(functions.cut, BLOB_SCHEMA)
        .repartitionById(plan.judges, sql.col("judge"))
        .sortWithinPartitions(sql.col("kind"), sql.col("number"), sql.col("first_offset").desc())
        .mapInArrow(functions.judge, SURVIVOR_SCHEMA)
    )


def unite_results(
    job: PackedJob, plan: ShufflePlan, outcomes: list[tuple[int, JobResult | JobFailure]]
) -> JobResult | JobFailure:
    """Merge the numbered results of all shares into one, or return the first failure.

    Raise IncompleteShuffleError unless each share has returned exactly one result.
    """
    results = []
    for _, outcome in outcomes:
        if isinstance(outcome, JobFailure):
            return outcome
        results.append(outcome)
    shares = sorted(share for share, _ in outcomes)
    if shares != list(range(len(plan.shares))):
        raise IncompleteShuffleError(
            f"job {job.job_id}: of its {len(plan.shares)} shares, these returned a result: {shares}"
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
    """Check the total of records, because shares of one file have the counted records only together."""
    counted = sum(extent.record_count for each in spec.inputs for extent in each.extents)
    if found == counted:
        return
    message = f"job {spec.job_id}: its input files have {found} records, but the catalog counts {counted}"
    if len(spec.inputs) == 1:
        raise CorruptFileError(message, file_id=spec.inputs[0].file_id)
    raise CorruptDataError(message)
