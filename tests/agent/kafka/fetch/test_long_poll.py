"""What waits behind a long poll, and what does not."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

from agent.kafka.codec import Struct
from tests.agent.kafka.in_process_clients import produce
from tests.agent.kafka.wire import Wire, request_frame

if TYPE_CHECKING:
    from tests.agent.kafka.brokers import BrokerThread


def test_what_follows_a_long_poll_waits_for_it_on_its_connection_alone(broker: BrokerThread) -> None:
    """So does a consumer of librdkafka whose `list_topics` goes to a broker that it polls."""
    broker.create_topic("granite")
    wanted = Struct(partition=0, fetch_offset=0, partition_max_bytes=1_000_000)
    poll = Struct(max_wait=600_000, min_bytes=1, topics=[Struct(topic="granite", partitions=[wanted])])
    everything = Struct(topics=None)
    with Wire(broker.host_and_port) as polling, Wire(broker.host_and_port) as other:
        polling.send(request_frame("fetch", 12, 1, poll) + request_frame("metadata", 12, 2, everything))
        for _ in range(3):
            assert other.ask("metadata", 12, everything).topics[0].name == "granite"
        assert select.select([polling.socket], [], [], 0)[0] == []
        produce(broker.address, "granite", [(None, b"one")])
        answers = [polling.receive(), polling.receive()]
    assert [answer[0] for answer in answers if answer is not None] == [1, 2]
