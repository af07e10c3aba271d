"""Entry point of a Spark task: take a packed job, run it, and return one row.

If an input file is proven to be corrupt, or the log has changed, the error is the job's result: another
executor would find the same. Every other error may be due to this executor: its credentials, disk, memory or
versions. It fails the task, so that Spark tries another executor.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson
import pyarrow as pa

from core.clock import SystemClock
from core.ids import SystemIds
from object_store.open import open_store
from spark_jobs.arrow_rows import record_batch
from spark_jobs.errors import JobCancelledError, TaskFaultError
from spark_jobs.report import JobFailure
from spark_jobs.task.compaction_task import TaskHooks, run_compaction
from spark_jobs.task.worker_gc import freeze_loaded_objects
from spark_jobs.transport import pack_result, unpack_result, unpack_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from uuid import UUID

    from catalog.model import JobResult
    from object_store.open import StoreConfig

RESULT_SCHEMA = "job int, done boolean, result binary"
_ARROW_SCHEMA = pa.schema([("job", pa.int32()), ("done", pa.bool_()), ("result", pa.binary())])


@dataclass(frozen=True, slots=True)
class PackedJob:
    """A job and its attempt, as they travel in the closure of a query."""

    job_id: UUID
    attempt_id: UUID
    spec: bytes


class JobFunction:
    """Picklable function for `mapInArrow`; the id in a row selects one of `jobs`.

    It is pickled by reference to this installed module, so that workers compile kernels once and not per job.
    """

    def __init__(self, store: StoreConfig, jobs: tuple[PackedJob, ...]) -> None:
        self._store = store
        self._jobs = jobs

    def results(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the selected jobs and yield one row of `RESULT_SCHEMA` for each."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                done, result = self._run(self._jobs[number])
                yield result_row(number, done=done, result=result)
        freeze_loaded_objects("job")

    def _run(self, job: PackedJob) -> tuple[bool, bytes]:
        clock = SystemClock()
        ids = SystemIds(clock)
        try:
            store = open_store(self._store, clock, ids)
            try:
                result = run_compaction(
                    unpack_spec(job.spec),
                    store,
                    attempt_id=job.attempt_id,
                    clock=clock,
                    ids=ids,
                    hooks=TaskHooks(check=parent_watch()),
                )
            finally:
                store.close()
        except Exception as error:  # noqa: BLE001 -- some errors are results, see above
            return False, orjson.dumps(failure_result(job.job_id, error))
        return True, pack_result(result)


def result_row(number: int, *, done: bool, result: bytes) -> pa.RecordBatch:
    """Return one row of `RESULT_SCHEMA`; `number` is the index of the job in its query, or of the share."""
    return record_batch([(number, done, result)], _ARROW_SCHEMA)


def read_result_row(row: dict[str, object]) -> JobResult | JobFailure:
    """Parse a row of `RESULT_SCHEMA`."""
    result = row["result"]
    assert isinstance(result, bytes)
    return unpack_result(result) if row["done"] else JobFailure(**orjson.loads(result))


def failure_result(job_id: UUID, error: Exception) -> JobFailure:
    """Return the failure that is a job's result. Raise TaskFaultError if another executor may succeed."""
    failure = JobFailure.of(job_id, error)
    if failure.is_worth_another_executor:
        raise TaskFaultError(f"{failure.error}: {' '.join(failure.message.split())}") from error
    return failure


def parent_watch() -> Callable[[], None]:
    """Return a check that raises when the Spark executor that started this worker is gone."""
    parent = os.getppid()

    def check() -> None:
        if os.getppid() != parent:
            raise JobCancelledError("the Spark executor that started this task is gone")

    return check
