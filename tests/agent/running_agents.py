"""Real agents over a real catalog and a store with faults on demand, with HTTP clients."""

from __future__ import annotations

import ssl
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import httpx

from agent.app import Agent
from agent.listeners import HttpListener
from agent.settings import AgentSettings
from object_store.accounting import Purpose

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids
    from object_store.accounting import RequestKind
    from tests.agent.faulty_store import FaultyStore

SETTINGS = AgentSettings(
    http_listeners=(HttpListener(port=0),),
    flush_interval_ms=1,
    retry_pause_ms=1,
    max_retry_pause_ms=2,
    topic_cache_ms=1,
)

# The clients use plain HTTP, and loading certificates takes tens of milliseconds for each of them.
_NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@dataclass
class RunningAgent:
    """An agent and an HTTP client of it."""

    agent: Agent
    http: httpx.AsyncClient

    async def create_topic(self, name: str, partitions: int = 1, **config: str) -> None:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        body = {"name": name, "partitions": partitions, "config": settings}
        (await self.http.post("/v1/topics", json=body)).raise_for_status()

    async def produce(
        self, topic: str, *records: dict[str, Any], partition: int | None = None
    ) -> dict[str, Any]:
        where = f"/v1/topics/{topic}" + ("" if partition is None else f"/partitions/{partition}")
        response = await self.http.post(f"{where}/records", json={"records": records})
        response.raise_for_status()
        body: dict[str, Any] = response.json()
        return body

    async def read(self, topic: str, partition: int = 0, **query: int) -> dict[str, Any]:
        response = await self.http.get(f"/v1/topics/{topic}/partitions/{partition}/records", params=query)
        response.raise_for_status()
        body: dict[str, Any] = response.json()
        return body


class Agents:
    """Starts agents over one catalog and one store."""

    def __init__(self, catalog: Catalog, store: FaultyStore, clock: Clock, ids: Ids) -> None:
        self._catalog = catalog
        self._store = store
        self._clock = clock
        self._ids = ids

    @asynccontextmanager
    async def running(self, **changes: Any) -> AsyncIterator[RunningAgent]:  # noqa: ANN401  # any setting
        """Run an agent with changed settings."""
        agent = Agent(
            settings=replace(SETTINGS, **changes),
            store=self._store,
            catalog=self._catalog,
            clock=self._clock,
            ids=self._ids,
        )
        addresses = await agent.start()
        try:
            async with httpx.AsyncClient(
                base_url=f"http://{addresses['http']}", timeout=240, trust_env=False, verify=_NO_CERTIFICATES
            ) as http:
                yield RunningAgent(agent, http)
        finally:
            await agent.stop()

    def requests(self, kind: RequestKind) -> int:
        """Return the number of requests of a kind that the store received, without the agents' probes."""
        counts = self._store.counts.snapshot()
        return counts.of(kind).requests - counts.of(kind, Purpose.CHECK).requests
