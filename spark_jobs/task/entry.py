"""What a Spark task does: take a packed job, run it, and answer with one row, whatever happens.

Errors of a job are an answer, not a failure of the task: the object store has had its retries, and the other
jobs of the query must not suffer. Spark's own retries are for tasks that die without an answer.
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
from spark_jobs.errors import JobCancelledError
from spark_jobs.report import JobFailure
from spark_jobs.session.worker_gc import settle
from spark_jobs.task.compaction_task import TaskHooks, run_compaction
from spark_jobs.transport import pack_result, unpack_result, unpack_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from uuid import UUID

    from catalog.model import JobResult
    from object_store.open import StoreConfig
    from spark_jobs.shuffle.plan import ShufflePlan

ANSWER_SCHEMA = "job int, done boolean, answer binary"
_ARROW_SCHEMA = pa.schema([("job", pa.int32()), ("done", pa.bool_()), ("answer", pa.binary())])


@dataclass(frozen=True, slots=True)
class PackedJob:
    """A job and the attempt that runs it, as they travel in the closure of a query.

    With `shuffle` it is spread over tasks (`spark_jobs.shuffle.plan`); else it is one task.
    """

    job_id: UUID
    attempt_id: UUID
    spec: bytes
    shuffle: ShufflePlan | None = None


class JobKernel:
    """`answers` is the function that `mapInArrow` calls: the id of a row says which of `jobs` to run.

    It is pickled by reference to this module, which workers import: kernels are compiled once, not per job.
    """

    def __init__(self, store: StoreConfig, jobs: tuple[PackedJob, ...]) -> None:
        self._store = store
        self._jobs = jobs

    def answers(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One row of `ANSWER_SCHEMA` for each job."""
        for batch in batches:
            for place in batch.column(0).to_pylist():
                done, answer = self._run(self._jobs[place])
                yield answer_rows(place, done=done, answer=answer)
        settle("job")

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
        except Exception as error:  # noqa: BLE001 -- an error of one job is its answer, see above
            return False, orjson.dumps(JobFailure.of(job.job_id, error))
        return True, pack_result(result)


def answer_rows(number: int, *, done: bool, answer: bytes) -> pa.RecordBatch:
    """The row of `ANSWER_SCHEMA` of one task; `number` is that of the job in its query, or of the share."""
    return pa.RecordBatch.from_pylist([{"job": number, "done": done, "answer": answer}], schema=_ARROW_SCHEMA)


def read_answer(row: dict[str, object]) -> JobResult | JobFailure:
    """What a row of `ANSWER_SCHEMA` says."""
    answer = row["answer"]
    assert isinstance(answer, bytes)
    return unpack_result(answer) if row["done"] else JobFailure(**orjson.loads(answer))


def parent_watch() -> Callable[[], None]:
    """A check that stops the work of a worker whose Spark is gone: nobody would take its answer."""
    parent = os.getppid()

    def check() -> None:
        if os.getppid() != parent:
            raise JobCancelledError("the Spark executor that started this task is gone")

    return check
