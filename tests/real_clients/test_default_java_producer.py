"""Kafka's own producer with default settings and a real agent: the reasons and number of closed files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core.clock import SystemClock
from core.ids import SeededIds
from object_store.local.store import LocalStore
from tests.agent.faulty_store import FaultyStore
from tests.agent.kafka.brokers import BrokerThread
from tests.agent.kafka.clients.test_default_producers import closed_files
from tests.fixtures import kafka_tools

if TYPE_CHECKING:
    from pathlib import Path

    from catalog.open import Catalog

pytestmark = pytest.mark.integration
_PERFORMANCE_TEST = "org.apache.kafka.tools.ProducerPerformance"


def test_its_files_do_not_wait_for_the_interval(catalog: Catalog, tmp_path: Path) -> None:
    """It has five requests with a batch of 16 KiB of each partition in flight: 0.98 MB."""
    clock = SystemClock()
    ids = SeededIds(7, clock)
    store = FaultyStore(LocalStore(tmp_path / "objects", ids))
    broker = BrokerThread(catalog, store, clock, ids, {"flush_interval_ms": 2_000})
    broker.start()
    try:
        broker.create_topic("default", 12)
        count = 12_000
        arguments = f"--topic default --num-records {count} --record-size 1024 --throughput -1"
        output = kafka_tools.run(_PERFORMANCE_TEST, *arguments.split(), "--bootstrap-server", broker.address)
        assert f"{count} records sent" in output
        reasons = closed_files(broker)
        assert reasons.get("interval", 0) <= 1, "of the last records, if they are few"
        assert reasons["stalled"] >= 5
        assert sum(reasons.values()) <= 3 * count * 1024 / 1e6
    finally:
        broker.stop()
