"""Producers with default settings and a real agent: why files are closed, and how many there are.

A flush interval of two seconds shows every file that waits for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from tests.agent.kafka.in_process_clients import TIMEOUT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.agent.kafka.brokers import BrokerThread

pytestmark = pytest.mark.integration


def closed_files(broker: BrokerThread) -> dict[str, int]:
    """Return the number of files by the reason for which they were closed."""
    families = broker.agent.metrics.files_closed.collect()
    samples = [sample for family in families for sample in family.samples]
    return {each.labels["reason"]: int(each.value) for each in samples if each.value}


@pytest.mark.parametrize("idempotent", [False, True])
def test_files_of_librdkafka_do_not_wait_for_the_interval(
    start_broker: Callable[..., BrokerThread], idempotent: bool
) -> None:
    """An idempotent one sends one request of 1 MB at a time, which says nothing about its limit."""
    broker = start_broker(flush_interval_ms=2_000)
    broker.create_topic("default", 1)
    producer = Producer({"bootstrap.servers": broker.address, "enable.idempotence": idempotent})
    megabytes = 8
    for _ in range(megabytes * 1000):
        producer.produce("default", bytes(1000), partition=0)
    assert producer.flush(TIMEOUT_SECONDS) == 0
    reasons = closed_files(broker)
    assert reasons.get("interval", 0) <= 1, "of the last records, if they are few"
    assert sum(reasons.values()) <= 3 * megabytes
