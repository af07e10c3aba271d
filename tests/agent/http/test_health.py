"""Health of a real agent while its PostgreSQL and its S3 server freeze, commits wait, a disk is full."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import httpx
import psycopg
import pytest

from agent.app import Agent
from agent.listeners import KafkaListener
from agent.runtime.probes import PROBE_FILE
from catalog.open import open_catalog
from core.clock import SystemClock
from core.ids import SystemIds
from object_store.accounting import Purpose
from object_store.binding import verify_binding
from object_store.open import StoreConfig, open_store
from tests.agent.running_agents import SETTINGS
from tests.fixtures.postgres_node import PostgresNode, running_copy
from tests.object_store.s3.fault_proxy import running_proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from agent.settings import AgentSettings
    from tests.fixtures.restartable import RestartablePostgres, RestartableS3

pytestmark = [pytest.mark.anyio, pytest.mark.integration]
TIMEOUT_SECONDS: Final = 240
FAST: Final = replace(
    SETTINGS,
    unready_after_ms=1_500,
    probe_interval_ms=200,
    probe_timeout_ms=300,
    heartbeat_interval_ms=100,
    unready_heartbeat_ms=1_000,
    stop_timeout_ms=2_000,
)


@pytest.fixture
def primary(
    postgres_template: PostgresNode, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PostgresNode]:
    """A running server with an empty catalog."""
    with running_copy(postgres_template, tmp_path_factory.mktemp("primary")) as node:
        yield node


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A log directory."""
    path = tmp_path / "disk"
    path.mkdir()
    return path


class Watched:
    """An agent, and the health that a client of it sees."""

    def __init__(self, agent: Agent, http: httpx.AsyncClient) -> None:
        self.agent = agent
        self._http = http
        self.states: list[bool] = []

    async def problems(self, route: str = "/readyz") -> dict[str, str]:
        """Return the problems; the agent responds whatever happens to its dependencies."""
        response = await self._http.get(route)
        body = response.json()
        assert (response.status_code, body["status"]) in {(200, "ok"), (503, "unhealthy")}
        assert (response.status_code == 200) == (body["problems"] == {})
        found: dict[str, str] = body["problems"]
        return found

    async def until(self, parts: set[str]) -> None:
        """Wait until exactly these parts have problems; record each change between ready and not ready."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while True:
                found = await self.problems()
                if [not found] != self.states[-1:]:
                    self.states.append(not found)
                if set(found) == parts:
                    return
                await asyncio.sleep(0.02)


@asynccontextmanager
async def watched(
    catalog_url: str, config: StoreConfig, disk: Path, settings: AgentSettings = FAST
) -> AsyncIterator[Watched]:
    """Run an agent with short intervals."""
    clock = SystemClock()
    ids = SystemIds(clock)
    with (
        contextlib.closing(open_catalog(catalog_url, clock, ids)) as catalog,
        contextlib.closing(open_store(config, clock, ids)) as store,
        contextlib.closing(open_store(config, clock, ids, probe_timeout_seconds=0.3)) as probe_store,
    ):
        verify_binding(store, catalog.store_binding, ids)
        agent = Agent(
            settings=replace(settings, local_directories=(disk,), kafka_listeners=(KafkaListener(port=0),)),
            store=store,
            probe_store=probe_store,
            catalog=catalog,
            clock=clock,
            ids=ids,
        )
        addresses = await agent.start()
        try:
            async with httpx.AsyncClient(
                base_url=f"http://{addresses['http']}", timeout=TIMEOUT_SECONDS, trust_env=False
            ) as http:
                yield Watched(agent, http)
        finally:
            await agent.stop()


async def test_readiness_follows_a_frozen_catalog_and_a_frozen_store(
    restartable_postgres: RestartablePostgres, restartable_s3: RestartableS3, disk: Path
) -> None:
    """The agent is idle, it stays live, and it changes its state once per fault and once per return."""
    with running_proxy(restartable_s3.server.endpoint) as proxy:
        config = replace(restartable_s3.config, endpoint=proxy.endpoint)
        async with watched(restartable_postgres.url, config, disk) as seen:
            await seen.until(set())
            with restartable_postgres.frozen():
                proxy.freeze()
                await seen.until({"catalog", "object_store"})
                assert await seen.problems("/livez") == {}
                assert set(await seen.problems("/healthz")) == {"catalog", "object_store"}
                proxy.thaw()
            await seen.until(set())
            assert seen.states == [True, False, True]
            counts = seen.agent._probe_store.counts.snapshot()
            assert counts.of(purpose=Purpose.CHECK).requests == counts.of().requests > 0


async def test_readiness_follows_the_disks_and_the_session_and_liveness_the_tasks(
    restartable_postgres: RestartablePostgres, restartable_s3: RestartableS3, disk: Path
) -> None:
    """Every log directory is full; the session is fenced and the catalog takes no new one."""
    async with watched(restartable_postgres.url, restartable_s3.config, disk) as seen:
        await seen.until(set())
        with psycopg.connect(restartable_postgres.url, autocommit=True) as connection:
            run(connection, "SET search_path = siltstone")
            (disk / PROBE_FILE).symlink_to("/dev/full")
            await seen.until({"disks"})
            (disk / PROBE_FILE).unlink()
            await seen.until(set())

            run(
                connection,
                "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN RAISE EXCEPTION 'no new sessions'; END $$",
            )
            run(
                connection,
                "CREATE TRIGGER refuse BEFORE INSERT ON sessions FOR EACH ROW EXECUTE FUNCTION refuse()",
            )
            seen.agent.resources.catalog.sessions.fence(seen.agent.session.session_id)
            await seen.until({"session"})
            run(connection, "DROP TRIGGER refuse ON sessions")
            await seen.until(set())
        assert seen.states == [True, False, True, False, True]

        committer = seen.agent.data.write_path._committer
        assert committer is not None
        committer.cancel()
        await seen.until({"commits"})
        assert set(await seen.problems("/livez")) == {"commits"}


async def test_readiness_follows_commits_that_wait_for_a_standby(
    primary: PostgresNode, restartable_s3: RestartableS3, disk: Path
) -> None:
    """Reads succeed meanwhile, and the agent is idle: only its heartbeats commit."""
    settings = replace(FAST, broker_silent_ms=3_600_000)
    async with watched(primary.url, restartable_s3.config, disk, settings) as seen:
        await seen.until(set())
        await asyncio.to_thread(primary.set, "synchronous_standby_names", "absent")
        await seen.until({"catalog"})
        assert await seen.problems("/livez") == {}
        assert seen.agent.resources.catalog.topics.list() == []
        await asyncio.to_thread(primary.set, "synchronous_standby_names", "")
        await seen.until(set())
        assert seen.states == [True, False, True]


async def test_a_stopping_agent_is_live_and_not_ready(
    restartable_postgres: RestartablePostgres, restartable_s3: RestartableS3, disk: Path
) -> None:
    async with watched(restartable_postgres.url, restartable_s3.config, disk) as seen:
        seen.agent._stopping = True
        assert await seen.problems() == {"agent": "is stopping"}
        assert await seen.problems("/livez") == {}


def run(connection: psycopg.Connection, statement: str) -> None:
    """Execute a statement."""
    connection.execute(statement.encode())
