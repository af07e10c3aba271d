"""Topics that are created because a client requests their metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from tests.agent.kafka.in_process_clients import consume, produce
from tests.agent.kafka.waiting import until
from tests.agent.kafka.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.agent.kafka.brokers import BrokerThread


def ask(broker: BrokerThread, name: str, version: int = 13, *, allow: bool = True) -> Struct:
    with Wire(broker.host_and_port) as wire:
        request = Struct(topics=[Struct(name=name, topic_id=None)], allow_auto_topic_creation=allow)
        (topic,) = wire.ask("metadata", version, request).topics
    return Struct(**topic.__dict__)


def test_topics_are_created_if_client_and_configuration_allow_it(
    start_broker: Callable[..., BrokerThread],
) -> None:
    """Early versions always allow it. The first response does not wait. An invalid name is rejected."""
    broker = start_broker(default_partitions=3)
    assert ask(broker, "granite", allow=False).error_code == ErrorCode.unknown_topic_or_partition
    for version, name in [(13, "granite"), (1, "basalt")]:
        assert ask(broker, name, version).error_code == ErrorCode.unknown_topic_or_partition
        until(lambda version=version, name=name: not ask(broker, name, version).error_code)  # type: ignore[misc]  # bound here
        assert len(ask(broker, name, version).partitions) == 3
    assert ask(broker, "no/name").error_code == ErrorCode.invalid_topic_exception
    assert ask(broker, "__consumer_offsets").error_code == ErrorCode.unknown_topic_or_partition
    assert sorted(topic.name for topic in broker.catalog.topics.list()) == ["basalt", "granite"]


def test_a_producer_creates_its_topic(start_broker: Callable[..., BrokerThread]) -> None:
    broker = start_broker()
    produce(broker.address, "granite", [(b"k", b"v")])
    (message,) = consume(broker.address, "granite", 1)
    assert message.value() == b"v"


@pytest.mark.parametrize("version", [1, 13])
def test_no_topic_is_created_if_the_setting_forbids_it(
    start_broker: Callable[..., BrokerThread], version: int
) -> None:
    broker = start_broker(auto_create_topics=False)
    assert ask(broker, "granite", version).error_code == ErrorCode.unknown_topic_or_partition
    assert broker.catalog.topics.list() == []


def test_a_deleted_topic_does_not_reappear_in_the_response_that_reports_its_deletion(
    start_broker: Callable[..., BrokerThread],
) -> None:
    broker = start_broker(topic_cache_ms=1)
    broker.create_topic("granite")
    before = ask(broker, "granite")
    broker.catalog.topics.delete("granite")
    responses = [before]

    def is_back() -> bool:
        responses.append(ask(broker, "granite"))
        return bool(responses[-1].error_code == 0 and responses[-1].topic_id != before.topic_id)

    until(is_back)
    assert ErrorCode.unknown_topic_or_partition in {response.error_code for response in responses}
