"""Agents that serve Kafka clients while a test, which may block, uses them."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from agent.app import Agent
from agent.process import _new_loop
from tests.agent.running_agents import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from catalog.model import Topic
    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids
    from tests.agent.faulty_store import FaultyStore

T = TypeVar("T")
_PATIENCE_SECONDS = 300.0  # the first one may have to compile its kernels


class BrokerThread:
    """An agent with an event loop in a thread of its own."""

    def __init__(
        self, catalog: Catalog, store: FaultyStore, clock: Clock, ids: Ids, changes: Mapping[str, Any]
    ) -> None:
        self.catalog = catalog
        self.settings = replace(SETTINGS, **{"kafka_host": "127.0.0.1", "kafka_port": 0, **changes})
        self._make: Callable[[], Agent] = lambda: Agent(
            settings=self.settings, store=store, catalog=catalog, clock=clock, ids=ids
        )
        self._loop = _new_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="broker")
        self.agent: Agent
        self.address = ""

    def start(self) -> None:
        self._thread.start()
        self.agent = self.run(self._begin())
        self.address = self.run(self.agent.start())["kafka"]

    async def _begin(self) -> Agent:
        return self._make()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine that runs in the agent's loop."""
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(_PATIENCE_SECONDS)

    def stop(self) -> None:
        """Stop the agent in good order; a second time does nothing."""
        if self._loop.is_closed():
            return
        if self.address:
            self.run(self.agent.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_SECONDS)
        self._loop.close()

    @property
    def host_and_port(self) -> tuple[str, int]:
        host, _, port = self.address.rpartition(":")
        return host, int(port)

    def catalog_calls(self) -> Counter[str]:
        """How often the catalog was asked, by operation."""
        counts = self.catalog.operation_counts()
        return Counter({operation: count.calls for operation, count in counts.items()})

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> Topic:
        """A topic, made behind the agent's back; underscores in names of settings stand for dots."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        return self.catalog.topics.create(name, partitions, settings)
