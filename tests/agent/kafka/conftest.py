"""Fixtures of the Kafka tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core.clock import SystemClock
from object_store.local.store import LocalStore
from tests.agent.faulty_store import FaultyStore
from tests.agent.kafka.brokers import BrokerThread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids


@pytest.fixture
def clock() -> Clock:
    """The system clock. No test depends on elapsed time."""
    return SystemClock()


@pytest.fixture
def store(tmp_path: Path, ids: Ids) -> FaultyStore:
    """A local store that fails on request."""
    return FaultyStore(LocalStore(tmp_path / "objects", ids))


@pytest.fixture
def start_broker(
    catalog: Catalog, store: FaultyStore, clock: Clock, ids: Ids
) -> Iterator[Callable[..., BrokerThread]]:
    """Start agents in threads; they stop with the test."""
    started: list[BrokerThread] = []

    def start(**changes: object) -> BrokerThread:
        broker = BrokerThread(catalog, store, clock, ids, changes)
        started.append(broker)
        broker.start()
        return broker

    yield start
    for broker in started:
        broker.stop()


@pytest.fixture
def broker(start_broker: Callable[..., BrokerThread]) -> BrokerThread:
    """Start one agent."""
    return start_broker()
