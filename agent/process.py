"""An agent as a process: event loop, signals and garbage collection."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
from typing import TYPE_CHECKING

from agent.app import Agent
from agent.runtime.process_resources import keep_freed_memory, raise_open_file_limit
from agent.runtime.slow_start_warning import warn_if_slow
from catalog.open import open_catalog
from core.clock import SystemClock
from core.ids import SystemIds
from object_store.binding import verify_binding
from object_store.open import StoreConfig, open_store

try:
    import uvloop
except ImportError:  # not available on this platform
    _new_loop = asyncio.new_event_loop
else:
    _new_loop = uvloop.new_event_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.settings import AgentSettings
    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids
    from object_store.interface import ObjectStore

_GC_THRESHOLD = 20_000


def run(
    settings: AgentSettings,
    *,
    store_config: StoreConfig,
    catalog_url: str,
    on_ready: Callable[[Mapping[str, str]], None],
) -> None:
    """Run an agent until SIGTERM or SIGINT; blocks. `on_ready` receives the addresses once it serves.

    A second signal ends the process at once. Raises the error that keeps the agent from starting.
    """
    raise_open_file_limit()
    keep_freed_memory()
    clock = SystemClock()
    ids = SystemIds(clock)
    with contextlib.ExitStack() as opened:
        with warn_if_slow("opening the catalog"):
            catalog = opened.enter_context(contextlib.closing(open_catalog(catalog_url, clock, ids)))
        with warn_if_slow("checking the object store"):
            store = opened.enter_context(contextlib.closing(open_store(store_config, clock, ids)))
            store.check()
            verify_binding(store, catalog.store_binding, ids)
        runner = opened.enter_context(asyncio.Runner(loop_factory=_new_loop))
        runner.run(_serve(settings, store, catalog, clock, ids, on_ready))


def freeze_garbage() -> None:
    """Exclude all existing objects from garbage collection, and collect new ones less often.

    A collection of all objects takes longer than a request. The objects of a request live until its file is
    committed, so collecting them earlier frees nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, 10, 10)


async def _serve(
    settings: AgentSettings,
    store: ObjectStore,
    catalog: Catalog,
    clock: Clock,
    ids: Ids,
    on_ready: Callable[[Mapping[str, str]], None],
) -> None:
    agent = Agent(settings=settings, store=store, catalog=catalog, clock=clock, ids=ids)
    loop = asyncio.get_running_loop()

    def ready(addresses: Mapping[str, str]) -> None:
        freeze_garbage()
        on_ready(addresses)

    def stop() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        agent.request_stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    await agent.serve(ready)
