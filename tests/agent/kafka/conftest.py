"""Fixtures of the Kafka tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.agent.kafka.brokers import BrokerThread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids
    from tests.agent.faulty_store import FaultyStore


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
