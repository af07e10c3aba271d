"""Requests behind a long poll."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

from agent.kafka.codec import Struct
from tests.agent.kafka.in_process_clients import produce
from tests.agent.kafka.wire import Wire, request_frame

if TYPE_CHECKING:
    from tests.agent.kafka.brokers import BrokerThread


def test_a_long_poll_delays_only_later_requests_of_its_connection(broker: BrokerThread) -> None:
    """For example `list_topics` of a librdkafka consumer, at a broker that it polls."""
    broker.create_topic("granite")
    wanted = Struct(partition=0, fetch_offset=0, partition_max_bytes=1_000_000)
    poll = Struct(max_wait=600_000, min_bytes=1, topics=[Struct(topic="granite", partitions=[wanted])])
    everything = Struct(topics=None)
    with Wire(broker.host_and_port) as polling, Wire(broker.host_and_port) as other:
        polling.send(request_frame("fetch", 12, 1, poll) + request_frame("metadata", 12, 2, everything))
        for _ in range(3):
            assert other.ask("metadata", 12, everything).topics[0].name == "granite"
        arrived = select.poll()  # unlike `select.select`, it takes any file descriptor
        arrived.register(polling.socket, select.POLLIN)
        assert arrived.poll(0) == []
        produce(broker.address, "granite", [(None, b"one")])
        responses = [polling.receive(), polling.receive()]
    assert [response[0] for response in responses if response is not None] == [1, 2]
