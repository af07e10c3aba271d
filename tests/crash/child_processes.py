"""The processes that crash tests kill: a real agent, and a worker that plans, compacts and collects garbage.

The worker does what `siltstone compact` does, without Spark, so that a round takes a fraction of a second.
Leases and grace periods are short.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from agent.app import Agent
from agent.listeners import HttpListener, KafkaListener
from agent.settings import AgentSettings
from catalog.open import Reserve, open_catalog
from core.clock import SystemClock
from core.errors import SiltstoneError
from core.ids import SystemIds
from maintenance.garbage_collection import collect_garbage
from maintenance.runner import MaintenanceRunner
from maintenance.settings import MaintenanceSettings
from maintenance.tasks import maintenance_tasks
from object_store.binding import verify_binding
from object_store.open import open_store
from planner.planner import plan_and_submit
from planner.settings import PlannerSettings
from siltstone.logging_setup import configure_logs
from spark_jobs.task.compaction_task import TaskHooks, run_compaction
from tests.crash.fail_points import FailPoints, instrument_catalog, instrument_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection
    from pathlib import Path

    from catalog.model import Job
    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids
    from object_store.interface import ObjectStore
    from object_store.open import StoreConfig
    from tests.crash.fail_points import Crash

GRACE_MS = 2_000
LEASE_MS = 2_000
MAX_JOBS = 10
GARBAGE = MaintenanceSettings(
    grace_ms=GRACE_MS, session_silence_ms=2_000, fence_confirm_ms=1_000, topic_delete_delay_ms=0
)
PLANNER = PlannerSettings(table_bytes=1 << 20, force=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildConfig:
    """The resources of a child process, its log file, and the crash that it must simulate."""

    catalog_url: str
    store: StoreConfig
    crash: Crash | None = None
    log: Path
    kafka_port: int = 0
    disks: tuple[Path, ...] = ()
    listen_url: str | None = None  # of the server itself, if the catalog's is that of a pooler


class SteppedClock:
    """A machine's clock whose wall time can be wrong. The catalog's clock is another one."""

    def __init__(self, inner: Clock) -> None:
        self._inner = inner
        self._offset_ms = 0

    def step(self, seconds: float) -> None:
        """Move the wall time, forward or back."""
        self._offset_ms += round(seconds * 1000)

    def now_ms(self) -> int:
        """Return the wall time that this machine believes in."""
        return self._inner.now_ms() + self._offset_ms

    def monotonic(self) -> float:
        """Return seconds since a fixed point in time; the value never decreases."""
        return self._inner.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        self._inner.sleep(seconds)


@contextlib.contextmanager
def _open_system(config: ChildConfig) -> Iterator[tuple[Catalog, ObjectStore, Clock, Ids]]:
    with config.log.open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    configure_logs("info")  # as in every process of Siltstone: a full disk loses events, and fails nothing
    clock = SystemClock()
    ids = SystemIds(clock)
    points = FailPoints(config.crash)
    with (
        open_catalog(config.catalog_url, clock, ids, listen_url=config.listen_url) as catalog,
        contextlib.closing(open_store(config.store, clock, ids)) as store,
    ):
        verify_binding(store, catalog.store_binding, ids)
        yield instrument_catalog(catalog, points), instrument_store(store, points), clock, ids


def run_agent(config: ChildConfig, control: Connection) -> None:
    """Run an agent: send "ready" when it serves, and stop at a message that is no step of the clock."""
    settings = AgentSettings(
        http_listeners=(HttpListener(port=0),),
        kafka_listeners=(KafkaListener(port=config.kafka_port),),
        flush_interval_ms=20,
        retry_pause_ms=10,
        max_retry_pause_ms=200,
        write_attempts=20,
        heartbeat_interval_ms=300,
        broker_silent_ms=1_500,
        topic_cache_ms=100,
        local_directories=config.disks,
    )
    with _open_system(config) as (catalog, store, clock, ids):

        async def serve() -> None:
            stepped = SteppedClock(clock)
            tasks = maintenance_tasks(catalog, store, GARBAGE)
            dedicate = partial(catalog.dedicate_thread, Reserve.MAINTENANCE)
            running = Agent(
                settings=settings,
                store=store,
                catalog=catalog,
                clock=stepped,
                ids=ids,
                maintenance=MaintenanceRunner(tasks, catalog, clock=clock, ids=ids, prepare=dedicate),
            )
            await running.start()
            control.send("ready")
            with contextlib.suppress(EOFError):
                while isinstance(step := await asyncio.to_thread(control.recv), float):
                    stepped.step(step)
            await running.stop()

        asyncio.run(serve())


def run_worker(config: ChildConfig, control: Connection) -> None:
    """Run rounds of planning, compaction and garbage collection until the connection has a message."""
    with _open_system(config) as (catalog, store, clock, ids):
        control.send("ready")
        while not control.poll(0.05):
            with contextlib.suppress(SiltstoneError):
                _round(catalog, store, clock, ids, control)


def _round(catalog: Catalog, store: ObjectStore, clock: Clock, ids: Ids, control: Connection) -> None:
    catalog.jobs.release_expired(LEASE_MS, 1_000)
    plan_and_submit(catalog, clock, ids, PLANNER)
    for _ in range(MAX_JOBS):
        if control.poll():  # on a busy machine, a few jobs may take longer than the test waits
            return
        jobs = catalog.jobs.claim(f"worker-{ids.new_uuid()}", 1)
        if not jobs:
            break
        with contextlib.suppress(SiltstoneError):
            _run(jobs[0], catalog, store, clock, ids)
    collect_garbage(catalog, store, clock, GARBAGE)


def _run(job: Job, catalog: Catalog, store: ObjectStore, clock: Clock, ids: Ids) -> None:
    attempt_id = job.attempt_id
    assert attempt_id is not None
    hooks = TaskHooks(progress=lambda _done, _total: catalog.jobs.heartbeat(job.spec.job_id, attempt_id))
    try:
        result = run_compaction(job.spec, store, attempt_id=attempt_id, clock=clock, ids=ids, hooks=hooks)
        catalog.jobs.complete(result)
    except SiltstoneError:
        catalog.jobs.release(job.spec.job_id, attempt_id)
        raise
