from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.codec import Struct
from tests.agent.kafka.wire import Wire

if TYPE_CHECKING:
    from tests.agent.kafka.brokers import BrokerThread


def test_requests_are_counted_by_api_and_version(broker: BrokerThread) -> None:
    with Wire(broker.host_and_port) as wire:
        for version in (0, 1, 1):
            wire.ask("list_groups", version, Struct())
    count = broker.agent.metrics.kafka_requests
    assert [count.labels("list_groups", version)._value.get() for version in "01"] == [1, 2]
