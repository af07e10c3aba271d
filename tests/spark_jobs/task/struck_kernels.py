"""Spark's Python workers that die, and what is shuffled that is lost, where a test says; and a book of it.

A query's kernels are the product's own, but for points that their tasks pass: `begin`; `take`, a row of the
stage before; `give`, a row for the next one; each call of the object store and of its uploads; `end`. A
*strike* is a deed at a point of one execution of one task: `cut-3.2` is the second execution of share 3 in
the first stage. Each execution has a page in the book, with a line for each point that it has passed.
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
from spark_jobs.task import entry as job_kernel
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

PATIENCE_SECONDS: Final = 600.0
BEGIN: Final = "begin"
TAKE: Final = "take"
GIVE: Final = "give"
END: Final = "end"
ASKED: Final = "after store.open_stream"
UPLOADED: Final = "after upload.complete"


class StoreIsBusyError(RetryableError):
    """What a store answers with 503."""


class Deed(StrEnum):
    """What happens at a point."""

    KILL = "kill"  # the worker dies of SIGKILL
    KILL_EXECUTOR = (
        "kill executor"  # the Java process dies that the worker works for, with what it has shuffled
    )
    LOSE = "lose"  # all that was shuffled so far is deleted, where Spark is one process
    FAIL = "fail"  # the object store does not answer
    HOLD = "hold"  # until the next execution of the same task is at its end, or all but


@dataclass(frozen=True, slots=True)
class Strikes:
    """Those of a test; `directory` is its own, `shuffled` where a local Spark writes."""

    directory: Path
    shuffled: Path

    def arm(self, execution: str, point: str, deed: Deed, passage: int = 1) -> None:
        """A deed for the time that the execution passes the point for the `passage`-th time."""
        (self.directory / "armed").mkdir(parents=True, exist_ok=True)
        (self.directory / "armed" / f"{execution} {point}").write_text(f"{passage} {deed}", encoding="utf-8")

    def are_spent(self) -> bool:
        """Whether all were done that were armed."""
        return not list((self.directory / "armed").iterdir())

    def executions(self) -> Counter[str]:
        """How often each task was with_grace_from."""
        return Counter(page.stem for page in self._pages())

    def passages(self, point: str) -> Counter[str]:
        """How often the executions of each task have passed a point."""
        passed: Counter[str] = Counter()
        for page in self._pages():
            passed[page.stem] += page.read_text(encoding="utf-8").splitlines().count(point)
        return passed

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Have queries take kernels that are struck."""
        patch.setattr(queries, "JobFunction", partial(StruckJobs, self))
        patch.setattr(shuffle_query, "StageFunctions", partial(StruckShuffle, self))

    def follow(
        self,
        stage: str,
        work: Callable[[Iterable[pa.RecordBatch]], Iterator[T]],
        batches: Iterable[pa.RecordBatch],
    ) -> Iterator[T]:
        """What `work` makes of the batches of this worker's task."""
        context = TaskContext.get()
        assert context is not None
        passing = _Passing(self, f"{stage}-{context.partitionId()}")
        passing.reach(BEGIN)
        with passing.in_the_way():
            for made in work(batches):
                yield made
                passing.reach(GIVE)
        passing.reach(END)

    @property
    def book(self) -> Path:
        """Where the pages are."""
        return self.directory / "book"

    def _pages(self) -> list[Path]:
        return sorted(self.book.iterdir())


class _Passing(FailPoints):
    """An execution of a task in its worker."""

    def __init__(self, strikes: Strikes, task: str) -> None:
        super().__init__(None)
        self._strikes = strikes
        self._task = task
        strikes.book.mkdir(parents=True, exist_ok=True)
        for number in count(1):
            self._number = number
            with suppress(FileExistsError):
                self._page = self._page_of(number).open("x", encoding="utf-8", buffering=1)
                break
        self._passages_of: Counter[str] = Counter()

    def _page_of(self, number: int) -> Path:
        return self._strikes.book / f"{self._task}.{number}"

    @override
    def reach(self, point: str) -> None:
        self._page.write(f"{point}\n")
        self._passages_of[point] += 1
        armed = self._strikes.directory / "armed" / f"{self._task}.{self._number} {point}"
        try:
            passage, _, deed = armed.read_text(encoding="utf-8").partition(" ")
        except FileNotFoundError:
            return
        if self._passages_of[point] == int(passage):
            armed.unlink()
            self._do(Deed(deed))

    def _do(self, deed: Deed) -> None:
        match deed:
            case Deed.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case Deed.KILL_EXECUTOR:
                psutil.Process(os.getppid()).parent().kill()  # type: ignore[union-attr]  # it has one
            case Deed.LOSE:
                for lost in self._strikes.shuffled.glob("blockmgr-*/*/shuffle_*"):
                    lost.unlink()
            case Deed.FAIL:
                raise StoreIsBusyError("the store answers 503")
            case Deed.HOLD:
                self._await_next()

    def _await_next(self) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        page = self._page_of(self._number + 1)
        while not (page.exists() and END in page.read_text(encoding="utf-8").split("\n")):
            if time.monotonic() > end:
                raise TimeoutError(f"{page.name} does not come to its end")
            time.sleep(0.02)

    @contextmanager
    def in_the_way(self) -> Iterator[None]:
        """Points where the product's own functions are, and small batches of rows, so that there are many."""
        with (
            patch.object(shuffle_rows, "_BATCH_ROWS", 2),
            patch.object(shuffle_query, "read_blob_rows", self._taken(shuffle_rows.read_blob_rows)),
            patch.object(shuffle_query, "read_survivor_rows", self._taken(shuffle_rows.read_survivor_rows)),
            patch.object(shuffle_query, "open_store", self._opened(open_store)),
            patch.object(job_kernel, "open_store", self._opened(open_store)),
        ):
            yield

    def _taken(
        self, read: Callable[[Iterable[pa.RecordBatch]], Iterator[T]]
    ) -> Callable[[Iterable[pa.RecordBatch]], Iterator[T]]:
        def taken(batches: Iterable[pa.RecordBatch]) -> Iterator[T]:
            for row in read(batches):
                self.reach(TAKE)
                yield row

        return taken

    def _opened(
        self, real: Callable[[StoreConfig, Clock, Ids], ObjectStore]
    ) -> Callable[[StoreConfig, Clock, Ids], ObjectStore]:
        return lambda config, clock, ids: instrument_store(real(config, clock, ids), self)


class StruckJobs(JobFunction):
    """The kernel of jobs that are one task each."""

    def __init__(self, strikes: Strikes, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]  # whatever it takes
        self._strikes = strikes

    @override
    def results(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self._strikes.follow("job", super().results, batches)


class StruckShuffle(StageFunctions):
    """The kernel of a job that goes through the shuffle."""

    def __init__(self, strikes: Strikes, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]  # whatever it takes
        self._strikes = strikes

    @override
    def cut(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self._strikes.follow("cut", super().cut, batches)

    @override
    def judge(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self._strikes.follow("judge", super().judge, batches)

    @override
    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self._strikes.follow("write", super().write, batches)
