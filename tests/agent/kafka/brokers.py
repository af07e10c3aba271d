"""Agents for tests that block: each agent runs in a separate thread."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar
from unittest.mock import patch

from agent.app import Agent
from agent.assembly import http_front_end
from agent.http.app import create_app
from agent.listeners import KafkaListener
from agent.process import new_loop
from tests.agent.running_agents import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from starlette.types import ASGIApp, Receive, Scope, Send

    from agent.http.context import HttpContext
    from catalog.model import Topic
    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids
    from tests.agent.faulty_store import FaultyStore

T = TypeVar("T")
_TIMEOUT_SECONDS = 300.0  # the first agent may have to compile its kernels


class _AppOnDemand:
    """HTTP application that is made for its first request: making it is most of the work of a start.

    Most of these tests send no HTTP request.
    """

    def __init__(self, context: HttpContext) -> None:
        self._context = context
        self._app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None:
            self._app = create_app(self._context)
        await self._app(scope, receive, send)


class BrokerThread:
    """An agent whose event loop runs in its own thread."""

    def __init__(
        self, catalog: Catalog, store: FaultyStore, clock: Clock, ids: Ids, changes: Mapping[str, Any]
    ) -> None:
        self.catalog = catalog
        self.store, self.clock, self.ids = store, clock, ids
        self.settings = replace(SETTINGS, **{"kafka_listeners": (KafkaListener(port=0),), **changes})
        self._make: Callable[[], Agent] = lambda: Agent(
            settings=self.settings, store=store, catalog=catalog, clock=clock, ids=ids
        )
        self._loop = new_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="broker")
        self.agent: Agent
        self.address = self.http_address = ""
        self.addresses: Mapping[str, str] = {}

    def start(self) -> None:
        self._thread.start()
        self.agent = self.run(self._create())
        with patch.object(http_front_end, "create_app", _AppOnDemand):
            self.addresses = self.run(self.agent.start())
        self.address, self.http_address = self.addresses["kafka"], self.addresses["http"]

    async def _create(self) -> Agent:
        return self._make()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the agent's event loop, and return its result."""
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(_TIMEOUT_SECONDS)

    def stop(self) -> None:
        """Stop the agent cleanly. Has no effect on an agent that is stopped."""
        if self._loop.is_closed():
            return
        if self.address:
            self.run(self.agent.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_TIMEOUT_SECONDS)
        self._loop.close()

    @property
    def host_and_port(self) -> tuple[str, int]:
        host, _, port = self.address.rpartition(":")
        return host, int(port)

    def catalog_calls(self) -> Counter[str]:
        """Return the number of calls of the catalog, by operation."""
        counts = self.catalog.operation_counts()
        return Counter({operation: count.calls for operation, count in counts.items()})

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> Topic:
        """Create a topic directly in the catalog. Underscores in the names of settings stand for dots."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        return self.catalog.topics.create(name, partitions, settings)
