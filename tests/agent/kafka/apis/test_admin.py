"""Administrative requests of librdkafka's admin client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exported, but not in __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.agent.kafka.in_process_clients import produce
from tests.agent.kafka.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.agent.kafka.brokers import BrokerThread

_TIMEOUT_SECONDS = 20


@pytest.fixture
def admin(broker: BrokerThread) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.address})


def result(futures: dict[Any, Any]) -> Any:  # noqa: ANN401  # the result of any call
    """Return the result of a call for one resource."""
    (future,) = futures.values()
    return future.result(_TIMEOUT_SECONDS)


def code(futures: dict[Any, Any]) -> int:
    """Return the error code of a call for one resource that fails."""
    with pytest.raises(KafkaException) as failure:
        result(futures)
    found: int = failure.value.args[0].code()
    return found


def settings(admin: AdminClient, topic: str) -> dict[str, str]:
    described = result(admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))
    return {name: entry.value for name, entry in described.items()}


def test_a_topic_is_created_described_and_deleted(broker: BrokerThread, admin: AdminClient) -> None:
    wanted = NewTopic("granite", 3, 3, config={"cleanup.policy": "compact"})
    result(admin.create_topics([wanted]))
    assert broker.catalog.topics.get("granite").partition_count == 3
    assert settings(admin, "granite")["cleanup.policy"] == "compact"
    described = result(admin.describe_topics(TopicCollection(["granite"])))
    assert [partition.id for partition in described.partitions] == [0, 1, 2]
    assert code(admin.create_topics([wanted])) == KafkaError.TOPIC_ALREADY_EXISTS
    result(admin.delete_topics(["granite"]))
    assert code(admin.delete_topics(["granite"])) == KafkaError.UNKNOWN_TOPIC_OR_PART


@pytest.mark.parametrize(
    ("name", "partitions", "config", "expected"),
    [
        ("not/allowed", 1, {}, KafkaError.TOPIC_EXCEPTION),
        ("granite", 1, {"no.such.setting": "1"}, KafkaError.INVALID_CONFIG),
        ("granite", 1, {"retention.ms": "soon"}, KafkaError.INVALID_CONFIG),
        ("__cluster_metadata", 1, {}, KafkaError.INVALID_REQUEST),
    ],
)
def test_an_invalid_topic_is_rejected(
    admin: AdminClient, name: str, partitions: int, config: dict[str, str], expected: int
) -> None:
    assert code(admin.create_topics([NewTopic(name, partitions, 1, config=config)])) == expected


def test_validate_only_creates_no_topic(broker: BrokerThread, admin: AdminClient) -> None:
    result(admin.create_topics([NewTopic("granite", 1, 1)], validate_only=True))
    assert broker.catalog.topics.list() == []


def test_partitions_can_be_added_and_not_removed(broker: BrokerThread, admin: AdminClient) -> None:
    broker.create_topic("granite", 2)
    result(admin.create_partitions([NewPartitions("granite", 4)]))
    produce(broker.address, "granite", [(None, b"new")], partition=3)
    assert code(admin.create_partitions([NewPartitions("granite", 3)])) == KafkaError.INVALID_PARTITIONS


@pytest.mark.filterwarnings("ignore:alter_configs has been deprecated:DeprecationWarning")
def test_settings_are_changed_incrementally_and_replaced(broker: BrokerThread, admin: AdminClient) -> None:
    broker.create_topic("granite", retention_ms="1000")
    changes = [
        ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND),
        ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE),
    ]
    resource = ConfigResource(ResourceType.TOPIC, "granite", incremental_configs=changes)
    result(admin.incremental_alter_configs([resource]))
    changed = settings(admin, "granite")
    assert changed["cleanup.policy"] == "delete,compact"
    assert changed["retention.ms"] == str(7 * 24 * 3600 * 1000)
    whole = ConfigResource(ResourceType.TOPIC, "granite", set_config={"segment.bytes": "2000000"})
    result(admin.alter_configs([whole]))
    replaced = settings(admin, "granite")
    assert replaced["cleanup.policy"] == "delete"
    assert replaced["segment.bytes"] == "2000000"


def test_a_broker_shows_its_settings(broker: BrokerThread, admin: AdminClient) -> None:
    own = str(next(iter(admin.list_topics(timeout=_TIMEOUT_SECONDS).brokers)))
    described = result(admin.describe_configs([ConfigResource(ResourceType.BROKER, own)]))
    assert described["advertised.listeners"].value == f"PLAINTEXT://{broker.address}"


def test_records_are_deleted_up_to_an_offset(broker: BrokerThread, admin: AdminClient) -> None:
    broker.create_topic("granite")
    produce(broker.address, "granite", [(None, b"a"), (None, b"b"), (None, b"c")])
    assert result(admin.delete_records([TopicPartition("granite", 0, 2)])).low_watermark == 2
    earliest = OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # the library's
    assert result(admin.list_offsets({TopicPartition("granite", 0): earliest})).offset == 2
    assert code(admin.delete_records([TopicPartition("granite", 0, 9)])) == KafkaError.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("policy", ["compact", ""])
def test_records_are_deleted_only_if_the_cleanup_policy_deletes(
    broker: BrokerThread, admin: AdminClient, policy: str
) -> None:
    """As in Kafka, records of a topic that keeps all records cannot be deleted by request."""
    broker.create_topic("granite", cleanup_policy=policy)
    produce(broker.address, "granite", [(b"k", b"a")])
    assert code(admin.delete_records([TopicPartition("granite", 0, 1)])) == KafkaError.POLICY_VIOLATION


def test_the_record_with_the_largest_timestamp_is_found(broker: BrokerThread, admin: AdminClient) -> None:
    broker.create_topic("granite")
    for number in range(3):
        produce(broker.address, "granite", [(None, str(number).encode())])
    latest = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]  # the library's
    found = result(admin.list_offsets({TopicPartition("granite", 0): latest}))
    assert found.offset == 2
    assert found.timestamp > 0


def test_all_live_agents_are_brokers_and_lead_partitions(
    start_broker: Callable[..., BrokerThread],
) -> None:
    one, other = start_broker(), start_broker()
    one.create_topic("granite", 40)
    admin = AdminClient({"bootstrap.servers": one.address})

    def both_are_listed() -> bool:
        cluster = admin.describe_cluster().result(_TIMEOUT_SECONDS)
        return {f"{node.host}:{node.port}" for node in cluster.nodes} == {one.address, other.address}

    until(both_are_listed)
    seen = admin.list_topics(timeout=_TIMEOUT_SECONDS)
    assert {partition.leader for partition in seen.topics["granite"].partitions.values()} == set(seen.brokers)
    assert (
        seen.cluster_id
        == AdminClient({"bootstrap.servers": other.address}).list_topics(timeout=120).cluster_id
    )


def test_the_partitions_of_a_stopped_agent_are_led_by_others(
    start_broker: Callable[..., BrokerThread],
) -> None:
    one, other = start_broker(), start_broker()
    one.create_topic("granite", 8)
    other.stop()
    bootstrap = one.address
    for partition in range(8):
        produce(bootstrap, "granite", [(None, b"still")], partition=partition)
    assert (
        len(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=_TIMEOUT_SECONDS).brokers) == 1
    )


def test_all_operations_are_authorized(broker: BrokerThread, admin: AdminClient) -> None:
    """The lists are those of Kafka without an authorizer. They are empty unless the request wants them."""
    broker.create_topic("granite")
    on_topic = {"READ", "WRITE", "CREATE", "DESCRIBE", "DELETE", "ALTER", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"}
    on_cluster = {
        "CREATE",
        "CLUSTER_ACTION",
        "DESCRIBE_CONFIGS",
        "ALTER_CONFIGS",
        "IDEMPOTENT_WRITE",
        "ALTER",
        "DESCRIBE",
    }
    on_group = {"READ", "DESCRIBE", "DELETE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"}
    loner = Consumer({"bootstrap.servers": broker.address, "group.id": "masons"})
    loner.commit(offsets=[TopicPartition("granite", 0, 0)], asynchronous=False)
    loner.close()
    for included in (True, False):
        how: dict[str, Any] = {"include_authorized_operations": included, "request_timeout": _TIMEOUT_SECONDS}
        cluster = admin.describe_cluster(**how).result()
        topic = result(admin.describe_topics(TopicCollection(["granite"]), **how))
        group = result(admin.describe_consumer_groups(["masons"], **how))
        found = [
            {each.name for each in described.authorized_operations or ()}
            for described in (cluster, topic, group)
        ]
        assert found == ([on_cluster, on_topic, on_group] if included else [set()] * 3)
