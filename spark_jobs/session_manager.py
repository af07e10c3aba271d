"""A Spark session that is started and checked when it is first needed, and again after it died."""

from __future__ import annotations

import gc
from contextlib import ExitStack
from typing import TYPE_CHECKING

from core.errors import InvalidInputError, SiltstoneError
from spark_jobs.compact import no_more, run_jobs
from spark_jobs.errors import SparkUnavailableError
from spark_jobs.preflight import check_workers
from spark_jobs.session.spark_session import gone_sessions_named, spark_session, task_slots
from spark_jobs.settings import DEFAULT_WAIT_SECONDS

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence
    from typing import Self
    from uuid import UUID

    from pyspark.sql import SparkSession

    from catalog.model import Job
    from core.clock import Clock
    from core.ids import Ids
    from object_store.open import StoreConfig
    from spark_jobs.compact import JobBook, JobOutcome
    from spark_jobs.report import CompactionReport
    from spark_jobs.session.spark_session import SparkSettings
    from spark_jobs.shuffle.plan import PlanChoice


class SparkSessionManager:
    """Context manager that owns at most one session; leaving it ends the session. Not for several threads."""

    def __init__(
        self, settings: SparkSettings, *, executor_wait_seconds: float = DEFAULT_WAIT_SECONDS
    ) -> None:
        self._settings = settings
        self._executor_wait_seconds = executor_wait_seconds
        self._open = ExitStack()
        self._spark: SparkSession | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._spark = None
        self._open.close()

    @property
    def address(self) -> str:
        """The master of the session, for messages."""
        return self._settings.address

    @property
    def is_started(self) -> bool:
        """Return True if there is a session, as far as this process knows."""
        return self._spark is not None

    def start(self) -> None:
        """Start a session if there is none.

        May take minutes, can be interrupted, and raises as `start_session` does.
        """
        if self._spark is None:
            with gone_sessions_named():
                self._spark = self._open.enter_context(spark_session(self._settings))
            # All modules are loaded now. Each scan of their objects takes as long as planning 5,000 extents.
            gc.freeze()

    def check(self, store: StoreConfig, store_id: UUID | None, *, clock: Clock, ids: Ids) -> None:
        """Check the workers as `check_workers` does; end the session if they cannot run jobs.

        Another session has new workers, which load the versions that are installed then.
        """
        try:
            with gone_sessions_named():
                check_workers(
                    self._started(),
                    store,
                    store_id,
                    clock=clock,
                    ids=ids,
                    executor_wait_seconds=self._executor_wait_seconds,
                )
        except SiltstoneError:
            self.drop()
            raise

    @property
    def slots(self) -> int:
        """Number of tasks that the session runs at a time.

        Raise SparkUnavailableError if the session died.
        """
        return task_slots(self._started())

    def run(
        self,
        jobs: Sequence[Job],
        *,
        store: StoreConfig,
        book: JobBook,
        clock: Clock,
        ids: Ids,
        more: Callable[[int], Sequence[Job]] = no_more,
        progress: Callable[[JobOutcome], None],
        cancelled: threading.Event,
        plan: PlanChoice,
    ) -> CompactionReport:
        """Run jobs as `run_jobs` does.

        Drop the session if every failure was Spark's, so that the next start makes a new one. Raise
        SparkUnavailableError if the session is found dead while jobs run.
        """
        with gone_sessions_named():
            report = run_jobs(
                self._started(),
                jobs,
                store=store,
                book=book,
                clock=clock,
                ids=ids,
                more=more,
                progress=progress,
                cancelled=cancelled,
                plan=plan,
                executor_wait_seconds=self._executor_wait_seconds,
            )
        if report.failures and all(each.error == SparkUnavailableError.__name__ for each in report.failures):
            self.drop()
        return report

    def drop(self) -> None:
        """End a session that no longer works."""
        self._spark = None
        self._open.close()

    def _started(self) -> SparkSession:
        if self._spark is None:
            raise InvalidInputError("there is no Spark session", remedy="start it first")
        return self._spark
