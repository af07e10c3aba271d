"""An agent as a process: event loop, signals and garbage collection."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import os
import signal
from functools import partial
from typing import TYPE_CHECKING

import structlog

from agent.app import Agent
from agent.runtime.process_resources import keep_freed_memory, raise_open_file_limit
from agent.runtime.slow_start_warning import warn_if_slow
from catalog.open import Reserve, open_catalog
from core.clock import SystemClock
from core.errors import RetryableError
from core.exit_codes import PART_FAILED
from core.ids import SystemIds
from core.outage import StartWait
from maintenance.runner import MaintenanceRunner
from maintenance.tasks import maintenance_tasks
from object_store.binding import verify_binding
from object_store.open import StoreConfig, open_store

try:
    import uvloop
except ImportError:  # not available on this platform
    new_loop = asyncio.new_event_loop
else:
    new_loop = uvloop.new_event_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.settings import AgentSettings
    from catalog.open import Catalog, DatabaseLimits
    from core.ids import Ids
    from object_store.interface import ObjectStore

_GC_THRESHOLD = 20_000
_log = structlog.get_logger(__name__)


def run(
    settings: AgentSettings,
    *,
    store_config: StoreConfig,
    catalog_url: str,
    on_ready: Callable[[Mapping[str, str]], None],
    wait: StartWait | None = None,
    database_limits: DatabaseLimits | None = None,
    listen_url: str | None = None,
) -> None:
    """Run an agent until SIGTERM or SIGINT; blocks. `on_ready` receives the addresses once it serves.

    A second signal ends the process at once. Raises the error that keeps the agent from starting. `wait` says
    for how long a catalog or a store that does not respond is no such error; None: not at all.
    `database_limits` and `listen_url` are those of `open_catalog`.
    """
    raise_open_file_limit()
    keep_freed_memory()
    clock = SystemClock()
    ids = SystemIds(clock)
    wait = wait or StartWait(0, clock=clock, ids=ids)
    with contextlib.ExitStack() as opened:
        with warn_if_slow("opening the catalog"):
            opening = partial(
                open_catalog, catalog_url, clock, ids, limits=database_limits, listen_url=listen_url
            )
            catalog = opened.enter_context(contextlib.closing(wait.run("opening the catalog", opening)))
        with warn_if_slow("checking the object store"):
            opening_store = open_store(store_config, clock, ids, hedges=settings.hedge_requests)
            store = opened.enter_context(contextlib.closing(opening_store))
            wait.run("checking the object store", partial(_check, store, catalog, ids))
        timeout_seconds = settings.probe_timeout_ms / 1000
        probe_store = opened.enter_context(
            contextlib.closing(open_store(store_config, clock, ids, probe_timeout_seconds=timeout_seconds))
        )
        new_runner: Callable[[], MaintenanceRunner | None] = _no_maintenance
        if settings.maintenance is not None:
            tasks = maintenance_tasks(catalog, store, settings.maintenance)
            dedicate = partial(catalog.dedicate_thread, Reserve.MAINTENANCE)
            new_runner = partial(MaintenanceRunner, tasks, catalog, clock=clock, ids=ids, prepare=dedicate)
        runner = opened.enter_context(asyncio.Runner(loop_factory=new_loop))
        parts = partial(
            Agent,
            settings=settings,
            store=store,
            probe_store=probe_store,
            catalog=catalog,
            clock=clock,
            ids=ids,
        )

        def new_agent(request_stop: Callable[[], None]) -> Agent:
            return parts(request_stop=request_stop, on_stuck=_end_stuck_process, maintenance=new_runner())

        runner.run(_serve(new_agent, on_ready, wait))


def _end_stuck_process() -> None:
    """End the process without its event loop; the log has the stacks of all threads."""
    faulthandler.dump_traceback()
    os._exit(PART_FAILED)


def _no_maintenance() -> None:
    return None


def _check(store: ObjectStore, catalog: Catalog, ids: Ids) -> None:
    store.check()
    verify_binding(store, catalog.store_binding, ids)


def freeze_garbage() -> None:
    """Exclude all existing objects from garbage collection, and collect new ones less often.

    A collection of all objects takes longer than a request. The objects of a request live until its file is
    committed, so collecting them earlier frees nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, 10, 10)


async def _serve(
    new_agent: Callable[[Callable[[], None]], Agent],
    on_ready: Callable[[Mapping[str, str]], None],
    wait: StartWait,
) -> None:
    """Start an agent, again after each outage during its start, and serve until a signal.

    Raises SchemaVersionError if a migration of the catalog excludes this version, and BackgroundTaskError if
    an essential part of the agent has ended.
    """
    loop = asyncio.get_running_loop()
    stop_requested = asyncio.Event()

    def stop() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        stop_requested.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    outage = wait.outage("starting the agent")
    while not stop_requested.is_set():
        agent = new_agent(stop_requested.set)
        try:
            addresses = await agent.start()
        except RetryableError as error:  # the agent has stopped what it had started
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop_requested.wait(), wait.pause(outage, error))
            continue
        outage.succeeded()
        freeze_garbage()
        _log.info("the agent serves clients", **addresses)
        try:
            on_ready(addresses)
            await stop_requested.wait()
        finally:
            _log.info("the agent stops")
            await agent.stop()
        if agent.exclusion is not None:
            raise agent.exclusion
        if agent.failure is not None:
            raise agent.failure
