"""Connections of an agent to the catalog, counted by PostgreSQL."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import httpx
import psycopg
import pytest
from confluent_kafka import Consumer

from agent.app import Agent
from catalog.open import Reserve, open_catalog
from core.ids import SystemIds
from maintenance.runner import MaintenanceRunner
from maintenance.settings import MaintenanceSettings
from maintenance.tasks import maintenance_tasks
from tests.agent.kafka.brokers import BrokerThread
from tests.agent.kafka.waiting import QUICK_GROUPS, until
from tests.fixtures.postgres import PATIENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from core.clock import Clock
    from tests.agent.faulty_store import FaultyStore

# No connection counts as stuck on a machine that stalls, and spare ones are closed soon.
_LIMITS = replace(PATIENT, stuck_seconds=240.0, idle_seconds=60.0, spare_seconds=0.3)
_COUNT = b"""
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'siltstone'
"""
_REQUESTS = 25


@pytest.fixture
def busy(catalog_url: str, store: FaultyStore, clock: Clock) -> Iterator[BrokerThread]:
    """An agent with maintenance that reads all data from the catalog and the store."""
    ids = SystemIds(clock)
    with open_catalog(catalog_url, clock, ids, limits=_LIMITS) as catalog:
        changes = {"tail_bytes": 0, "groups": QUICK_GROUPS, "heartbeat_interval_ms": 20}
        broker = BrokerThread(catalog, store, clock, ids, changes)
        broker._make = lambda: Agent(
            settings=broker.settings,
            store=store,
            catalog=catalog,
            clock=clock,
            ids=ids,
            maintenance=MaintenanceRunner(
                maintenance_tasks(catalog, store, MaintenanceSettings()),
                catalog,
                clock=clock,
                ids=ids,
                prepare=partial(catalog.dedicate_thread, Reserve.MAINTENANCE),
            ),
        )
        broker.start()
        yield broker
        broker.stop()


def _work(broker: BrokerThread, number: int) -> None:
    """Produce to a new topic, create topics, and read everything in a group with commits."""
    name = f"t{number}"
    broker.create_topic(name, 4)
    with httpx.Client(base_url=f"http://{broker.http_address}", timeout=240, trust_env=False) as http:
        for each in range(_REQUESTS):
            body = {"records": [{"value": "x"}] * 4}
            http.post(f"/v1/topics/{name}/records", json=body).raise_for_status()
            http.post("/v1/topics", json={"name": f"{name}-{each}", "partitions": 1}).raise_for_status()
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": f"g{number}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([name])
    read = 0
    while read < 4 * _REQUESTS:
        if messages := consumer.consume(10, 1.0):
            read += len(messages)
            consumer.commit(asynchronous=False)
    consumer.close()


def test_an_agent_has_at_most_six_connections_under_load_and_four_when_idle(
    busy: BrokerThread, catalog_url: str
) -> None:
    counts: list[int] = []
    done = threading.Event()
    with psycopg.connect(catalog_url, autocommit=True) as observer, ThreadPoolExecutor(9) as threads:

        def count() -> int:
            row = observer.execute(_COUNT).fetchone()
            assert row is not None
            return int(row[0])

        def observe() -> None:
            while not done.is_set():
                counts.append(count())

        observing = threads.submit(observe)
        for each in [threads.submit(_work, busy, number) for number in range(8)]:
            each.result()
        done.set()
        observing.result()
        assert 3 <= max(counts) <= 6
        until(lambda: count() <= 4)
