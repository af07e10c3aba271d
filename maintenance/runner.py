"""Periodic maintenance: runs each task in its own thread, under its own lease.

A task that hangs or fails does not delay the others. Each has its thread, its lease in the catalog, its
back-off and its totals. The lease is renewed whenever the task makes progress, so another process takes over
a task that hangs. Tasks are harmless if two processes run them at once (`catalog.lifecycle.leases`).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from catalog.errors import SchemaVersionError
from core.errors import SiltstoneError
from core.outage import Outage
from maintenance.report import MaintenanceReport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from catalog.lifecycle.leases import Lease
    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids

_log = structlog.get_logger(__name__)
MAX_PAUSE_SECONDS: Final = 60.0
_MIN_LEASE_SECONDS: Final = 30.0
_STOP_SECONDS: Final = 10.0


def _do_nothing() -> None:
    """Prepare nothing."""


class StoppedError(Exception):
    """The runner stops, or has lost the lease of the task; the round ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceTask:
    """Task that runs every `interval_seconds`.

    `run` does one round, adds what it removed to the report, and calls its second argument whenever it has
    made progress; that call may raise StoppedError.
    """

    name: str
    interval_seconds: float
    run: Callable[[MaintenanceReport, Callable[[], None]], None]

    @property
    def lease_ms(self) -> int:
        """Duration of the task's lease."""
        return round(1000 * (1.5 * self.interval_seconds + _MIN_LEASE_SECONDS))


@dataclass(slots=True, kw_only=True)
class TaskTotals:
    """Totals of one task since the start of the process; written by its thread, read by any.

    `success_at` is the time of the last successful round in any process, by this machine's monotonic clock.
    """

    rounds: int = 0
    failures: int = 0
    is_leader: bool = False
    success_at: float | None = None
    report: MaintenanceReport = field(default_factory=MaintenanceReport)


class MaintenanceRunner:
    """Runs maintenance tasks until `stop`.

    `excluded` is set when a migration has excluded this code: no round begins from then on.
    """

    def __init__(
        self,
        tasks: Sequence[MaintenanceTask],
        catalog: Catalog,
        *,
        clock: Clock,
        ids: Ids,
        prepare: Callable[[], None] = _do_nothing,
    ) -> None:
        """Take the tasks; each of their threads calls `prepare` first."""
        self._prepare = prepare
        self.holder_id: UUID = ids.new_uuid()
        self.clock = clock
        self._tasks = tasks
        self._leases = catalog.leases
        self._sessions = catalog.sessions
        self._ids = ids
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self.totals = {task.name: TaskTotals() for task in tasks}
        self.excluded: SchemaVersionError | None = None

    def start(self) -> None:
        """Start one thread for each task."""
        for task in self._tasks:
            thread = threading.Thread(
                target=self._loop, args=(task,), name=f"maintenance-{task.name}", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    @property
    def is_running(self) -> bool:
        """Return True if the threads of all tasks run."""
        return all(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """End the rounds at their next progress, for some seconds, and release all leases; blocks."""
        self._stopped.set()
        if not self._threads:
            return  # never started, so it holds no lease
        deadline = self.clock.monotonic() + _STOP_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - self.clock.monotonic()))
        try:
            self._leases.release(self.holder_id)
        except SiltstoneError as error:  # they end by themselves
            _log.warning("leases of maintenance tasks could not be released", reason=str(error))

    def run_once(self) -> tuple[MaintenanceReport, dict[str, Exception]]:
        """Run one round of each task now, without leases; return their sum, and the failures by task."""
        failures: dict[str, Exception] = {}
        total = MaintenanceReport()
        for task in self._tasks:
            report = MaintenanceReport()
            try:
                task.run(report, self._check_stopped)
                self._leases.record_success(task.name)
            except SiltstoneError as error:
                failures[task.name] = error
            total.add(report)
        return total, failures

    def _loop(self, task: MaintenanceTask) -> None:
        self._prepare()
        outage = Outage(
            f"maintenance: {task.name}", clock=self.clock, ids=self._ids, max_pause_seconds=MAX_PAUSE_SECONDS
        )
        pause = self._ids.random() * min(1.0, task.interval_seconds)
        while not self._stopped.wait(pause):
            try:
                self._run_round(task)
            except StoppedError:
                pause = task.interval_seconds
            except SchemaVersionError as error:
                self.excluded = error  # its process ends; an agent's heartbeat finds the same
                pause = task.interval_seconds
            except Exception as error:  # noqa: BLE001  # a defect in one task must not end its thread for ever
                self.totals[task.name].failures += 1
                pause = max(outage.failed(error), min(1.0, task.interval_seconds))
            else:
                outage.succeeded()
                pause = task.interval_seconds * (0.9 + 0.2 * self._ids.random())

    def _run_round(self, task: MaintenanceTask) -> None:
        totals = self.totals[task.name]
        self._sessions.check_schema()
        lease = self._leases.acquire(task.name, self.holder_id, task.lease_ms)
        self._note(totals, lease)
        if not lease.is_held:
            return
        if self._stopped.is_set():  # after `stop` has released all others, if this thread was slow
            self._leases.release(self.holder_id)
            raise StoppedError(task.name)
        report = MaintenanceReport()
        try:
            task.run(report, self._progress(task))
        finally:
            totals.report.add(report)
            if counts := report.removed():
                _log.info("maintenance", task=task.name, **counts)
        self._leases.record_success(task.name)
        totals.rounds += 1
        totals.success_at = self.clock.monotonic()

    def _note(self, totals: TaskTotals, lease: Lease) -> None:
        totals.is_leader = lease.is_held
        if lease.success_age_ms is not None:
            totals.success_at = self.clock.monotonic() - lease.success_age_ms / 1000

    def _progress(self, task: MaintenanceTask) -> Callable[[], None]:
        """Return the function that a round calls: it renews the lease, and ends the round on a stop."""
        renewed_at = self.clock.monotonic()

        def progress() -> None:
            nonlocal renewed_at
            self._check_stopped()
            if self.clock.monotonic() - renewed_at < task.lease_ms / 3000:
                return
            if not self._leases.renew(task.name, self.holder_id, task.lease_ms):
                raise StoppedError(task.name)
            renewed_at = self.clock.monotonic()

        return progress

    def _check_stopped(self) -> None:
        if self._stopped.is_set():
            raise StoppedError
