"""Members of librdkafka read although the catalog is away while they look up their committed offsets."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from confluent_kafka import Consumer, Producer

from agent.groups.errors import ErrorCode, GroupError
from agent.groups.offsets import GroupOffsets
from tests.agent.kafka.waiting import QUICK_GROUPS, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.agent.kafka.brokers import BrokerThread


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_reads_after_refused_look_ups(
    start_broker: Callable[..., BrokerThread], protocol: str
) -> None:
    broker = start_broker(groups=QUICK_GROUPS)
    broker.create_topic("granite")
    producer = Producer({"bootstrap.servers": broker.address})
    producer.produce("granite", b"value", partition=0)
    assert producer.flush(120) == 0
    refusals = [GroupError(ErrorCode.coordinator_not_available)] * 4
    fetch = GroupOffsets.fetch

    async def refuse_at_first(self: GroupOffsets, wanted: list[object]) -> object:
        if refusals:
            raise refusals.pop()
        return await fetch(self, wanted)  # type: ignore[arg-type]  # passed on

    settings = {
        "bootstrap.servers": broker.address,
        "group.id": "masons",
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
    }
    values: list[bytes | None] = []
    with closing(Consumer(settings)) as consumer, patch.object(GroupOffsets, "fetch", refuse_at_first):
        consumer.subscribe(["granite"])

        def has_read() -> bool:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                values.append(message.value())
            return bool(values)

        until(has_read)
    assert values == [b"value"]
    assert not refusals
