"""Planned faults at named points of Spark's tasks, and a trace of the points that each execution reached.

A query gets the product's own functions, with points at which a fault may happen: `begin`; `receive`, a row
from the stage before; `send`, a row for the next stage; each call of the object store and of its uploads;
`end`. A fault is an action at a point of one execution of one task: `cut-3.2` is the second execution of
share 3 in the first stage. Each execution writes a trace file with one line for each point that it reaches.
Plans and traces are files because each worker is a separate process.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final, TypeVar
from unittest.mock import patch

import psutil
from pyspark import TaskContext
from typing_extensions import override

from core.errors import RetryableError
from object_store.open import open_store
from spark_jobs import queries
from spark_jobs.shuffle import query as shuffle_query
from spark_jobs.shuffle import rows as shuffle_rows
from spark_jobs.shuffle.query import StageFunctions
from spark_jobs.task import entry as task_entry
from spark_jobs.task.entry import JobFunction
from tests.crash.fail_points import FailPoints, instrument_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa
    import pytest

    from core.clock import Clock
    from core.ids import Ids
    from object_store.interface import ObjectStore
    from object_store.open import StoreConfig

T = TypeVar("T")

MAX_WAIT_SECONDS: Final = 600.0
BEGIN: Final = "begin"
RECEIVE: Final = "receive"
SEND: Final = "send"
END: Final = "end"
STREAM_OPENED: Final = "after store.open_stream"
UPLOAD_COMPLETED: Final = "after upload.complete"


class StoreIsBusyError(RetryableError):
    """The error for a store that responds with status 503."""


class Action(StrEnum):
    """What happens at a point."""

    KILL = "kill"
    """The worker dies of SIGKILL."""

    KILL_EXECUTOR = "kill executor"
    """The worker's executor, a Java process, dies with the shuffle files that it serves."""

    DELETE_SHUFFLE_FILES = "delete shuffle files"
    """All shuffle files are deleted; only where Spark is one process."""

    FAIL = "fail"
    """The object store responds with an error."""

    WAIT = "wait"
    """The execution waits until the next execution of the same task reaches its end."""


@dataclass(frozen=True, slots=True)
class PlannedFaults:
    """Faults of one test; plans and traces are below `directory`, local Spark's files below `spark_local`."""

    directory: Path
    spark_local: Path

    def plan(self, execution: str, point: str, action: Action, nth: int = 1) -> None:
        """Plan an action for the n-th time that the execution reaches the point."""
        self.plans.mkdir(parents=True, exist_ok=True)
        (self.plans / f"{execution} {point}").write_text(f"{nth} {action}", encoding="utf-8")

    def all_happened(self) -> bool:
        """Return True if every planned fault has happened."""
        return not list(self.plans.iterdir())

    def executions(self) -> Counter[str]:
        """Return how often each task was started."""
        return Counter(trace.stem for trace in self._traces())

    def count_points(self, point: str) -> Counter[str]:
        """Return how often the executions of each task have reached a point."""
        reached: Counter[str] = Counter()
        for trace in self._traces():
            reached[trace.stem] += trace.read_text(encoding="utf-8").splitlines().count(point)
        return reached

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Make queries use functions with points."""
        patch.setattr(queries, "JobFunction", partial(FaultyJobFunction, self))
        patch.setattr(shuffle_query, "StageFunctions", partial(FaultyStageFunctions, self))

    def run_task(
        self,
        stage: str,
        work: Callable[[Iterable[pa.RecordBatch]], Iterator[T]],
        batches: Iterable[pa.RecordBatch],
    ) -> Iterator[T]:
        """Yield what `work` makes of the batches of this worker's task."""
        context = TaskContext.get()
        assert context is not None
        execution = _Execution(self, f"{stage}-{context.partitionId()}")
        execution.reach(BEGIN)
        with execution.instrumented():
            for made in work(batches):
                yield made
                execution.reach(SEND)
        execution.reach(END)

    @property
    def plans(self) -> Path:
        """Directory of the faults that have not happened yet."""
        return self.directory / "plans"

    @property
    def traces(self) -> Path:
        """Directory of the trace files."""
        return self.directory / "traces"

    def _traces(self) -> list[Path]:
        return sorted(self.traces.iterdir())


class _Execution(FailPoints):
    """One execution of a task, in its worker."""

    def __init__(self, faults: PlannedFaults, task: str) -> None:
        super().__init__(None)
        self._faults = faults
        self._task = task
        faults.traces.mkdir(parents=True, exist_ok=True)
        for number in count(1):
            self._number = number
            with suppress(FileExistsError):
                self._trace = self._trace_of(number).open("x", encoding="utf-8", buffering=1)
                break
        self._times_reached: Counter[str] = Counter()

    def _trace_of(self, number: int) -> Path:
        return self._faults.traces / f"{self._task}.{number}"

    @override
    def reach(self, point: str) -> None:
        self._trace.write(f"{point}\n")
        self._times_reached[point] += 1
        planned = self._faults.plans / f"{self._task}.{self._number} {point}"
        try:
            nth, _, action = planned.read_text(encoding="utf-8").partition(" ")
        except FileNotFoundError:
            return
        if self._times_reached[point] == int(nth):
            planned.unlink()
            self._do(Action(action))

    def _do(self, action: Action) -> None:
        match action:
            case Action.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case Action.KILL_EXECUTOR:
                psutil.Process(os.getppid()).parent().kill()  # type: ignore[union-attr]  # it has one
            case Action.DELETE_SHUFFLE_FILES:
                for file in self._faults.spark_local.glob("blockmgr-*/*/shuffle_*"):
                    file.unlink()
            case Action.FAIL:
                raise StoreIsBusyError("the store responded with 503")
            case Action.WAIT:
                self._await_next()

    def _await_next(self) -> None:
        end = time.monotonic() + MAX_WAIT_SECONDS
        trace = self._trace_of(self._number + 1)
        while not (trace.exists() and END in trace.read_text(encoding="utf-8").split("\n")):
            if time.monotonic() > end:
                raise TimeoutError(f"{trace.name} does not reach its end")
            time.sleep(0.02)

    @contextmanager
    def instrumented(self) -> Iterator[None]:
        """Add points to the product's functions, and make batches of rows small, so that there are many."""
        with (
            patch.object(shuffle_rows, "_BATCH_ROWS", 2),
            patch.object(shuffle_query, "read_blob_rows", self._receiving(shuffle_rows.read_blob_rows)),
            patch.object(
                shuffle_query, "read_survivor_rows", self._receiving(shuffle_rows.read_survivor_rows)
            ),
            patch.object(shuffle_query, "open_store", self._opening(open_store)),
            patch.object(task_entry, "open_store", self._opening(open_store)),
        ):
            yield

    def _receiving(
        self, read: Callable[[Iterable[pa.RecordBatch]], Iterator[T]]
    ) -> Callable[[Iterable[pa.RecordBatch]], Iterator[T]]:
        def receiving(batches: Iterable[pa.RecordBatch]) -> Iterator[T]:
            for row in read(batches):
                self.reach(RECEIVE)
                yield row

        return receiving

    def _opening(
        self, real: Callable[[StoreConfig, Clock, Ids], ObjectStore]
    ) -> Callable[[StoreConfig, Clock, Ids], ObjectStore]:
        return lambda config, clock, ids: instrument_store(real(config, clock, ids), self)


class FaultyJobFunction(JobFunction):
    """The function of one-task jobs, with points."""

    def __init__(self, faults: PlannedFaults, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]  # the arguments of JobFunction
        self._faults = faults

    @override
    def results(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self._faults.run_task("job", super().results, batches)


class FaultyStageFunctions(StageFunctions):
    """The functions of a shuffled job, with points."""

    def __init__(self, faults: PlannedFaults, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]  # the arguments of StageFunctions
        self._faults = faults

    @override
    def cut(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self._faults.run_task("cut", super().cut, batches)

    @override
    def judge(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self._faults.run_task("judge", super().judge, batches)

    @override
    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self._faults.run_task("write", super().write, batches)
