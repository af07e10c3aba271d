"""Administration: topics, partitions, settings and quotas."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from agent.kafka.codec import Struct
from tests.agent.kafka.waiting import until
from tests.kafka_differences.session import code

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.kafka_differences.session import Session

_TOPIC, _GROUP = 2, 32
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
_MARKS = count(1_000)


def topics(s: Session) -> None:
    """Creation, growth, description and deletion of topics."""
    topic = "administered"
    _create(s, "create", topic, partitions=2)
    _create(s, "exists", topic)
    _create(s, "twice in a request", "twice", times=2)
    _create(s, "invalid name", "a b")
    _create(s, "empty name", "")
    _create(s, "name .", ".")
    _create(s, "name of 250 characters", "x" * 250)
    _create(s, "name of 249 characters", "x" * 249)
    _create(s, "no partitions", "none", partitions=0)
    _create(s, "-2 partitions", "none", partitions=-2)
    _create(s, "replication factor 0", "none", replicas=0)
    _create(s, "default numbers", "defaults", partitions=-1, replicas=-1)
    _create(s, "default numbers in version 2", "old-defaults", partitions=-1, replicas=-1, version=2)
    _create(s, "validate", "none", validate_only=True)
    _create(s, "validate, exists", topic, validate_only=True)
    _create(s, "unknown setting", "none", config={"unknown": "1"})
    _create(s, "invalid setting", "none", config={"retention.ms": "x"})
    _create(s, "null setting", "none", config={"retention.ms": None})
    _create(s, "setting out of range", "none", config={"segment.bytes": "1"})
    _create(s, "unknown value of a list", "none", config={"cleanup.policy": "delete,unknown"})

    _grow(s, "as many partitions", topic, 2)
    _grow(s, "fewer partitions", topic, 1)
    _grow(s, "no partition", topic, 0)
    _grow(s, "partitions of an unknown topic", "unknown", 3)
    _grow(s, "twice in a request, partitions", topic, 3, times=2)
    _grow(s, "validate partitions", topic, 3, validate_only=True)
    _grow(s, "two assignments for one partition", topic, 3, assignments=2)
    _grow(s, "more partitions", topic, 4)
    s.create_topic("later")  # metadata that has it has the earlier changes

    for version in (1, 5, 12):
        _describe(s, f"describe in version {version}", version, Struct(name=topic))
    _describe(s, "describe an unknown topic", 12, Struct(name="unknown"))
    _describe(s, "describe an invalid name", 12, Struct(name="a b"))
    topic_id = s.topic_id(topic)
    _describe(s, "describe by id", 12, Struct(name=None, topic_id=topic_id))

    _delete(s, "delete by name and id", Struct(name=topic, topic_id=topic_id))
    _delete(s, "delete nothing", Struct(name=None))
    _delete(s, "delete an unknown topic", Struct(name="unknown"))
    _delete(s, "delete twice in a request", Struct(name=topic), Struct(name=topic))
    _delete(s, "delete once by name and once by id", Struct(name=topic), Struct(name=None, topic_id=topic_id))
    _delete(s, "delete", Struct(name=None, topic_id=topic_id))
    _delete(s, "delete again", Struct(name=topic))


def settings(s: Session) -> None:
    """Changes of settings, and the form in which they are described."""
    topic, group = "configured", "configured"
    s.create_topic(topic, retention_ms="1000")
    _alter(s, "set", topic, ("retention.ms", _SET, "5"))
    _alter(s, "unknown setting", topic, ("unknown", _SET, "5"))
    _alter(s, "delete an unknown setting", topic, ("unknown", _DELETE, None))
    _alter(s, "invalid value", topic, ("retention.ms", _SET, "x"))
    _alter(s, "null", topic, ("retention.ms", _SET, None))
    _alter(s, "empty value", topic, ("retention.ms", _SET, ""))
    _alter(s, "append to a number", topic, ("retention.ms", _APPEND, "1"))
    _alter(s, "append an unknown value", topic, ("cleanup.policy", _APPEND, "unknown"))
    _alter(s, "twice", topic, ("retention.ms", _SET, "1"), ("retention.ms", _SET, "2"))
    _alter(s, "unknown topic", "unknown", ("retention.ms", _SET, "1"))
    _alter(s, "validate", topic, ("retention.ms", _SET, "77"), validate_only=True)
    _alter(s, "validate an invalid value", topic, ("retention.ms", _SET, "x"), validate_only=True)
    _alter(s, "not a boolean", topic, ("preallocate", _SET, "yes"))
    _alter(s, "ratio above 1", topic, ("min.cleanable.dirty.ratio", _SET, "1.5"))
    _show(s, "set: described", topic, "retention.ms", "cleanup.policy")
    _alter(s, "append", topic, ("cleanup.policy", _APPEND, "compact"))
    _show(s, "append: described", topic, "cleanup.policy")
    _alter(s, "append what is there", topic, ("cleanup.policy", _APPEND, "compact"))
    _show(s, "append what is there: described", topic, "cleanup.policy")
    _alter(s, "subtract", topic, ("cleanup.policy", _SUBTRACT, "delete"))
    _show(s, "subtract: described", topic, "cleanup.policy")
    _alter(s, "delete", topic, ("cleanup.policy", _DELETE, None), ("retention.ms", _DELETE, None))
    _show(s, "delete: described", topic, "cleanup.policy", "retention.ms")
    for name, value in (
        ("cleanup.policy", " compact , delete "),
        ("cleanup.policy", "delete,"),
        ("cleanup.policy", "DELETE"),
        ("segment.bytes", " +02000000 "),
        ("min.cleanable.dirty.ratio", "0.50"),
        ("min.cleanable.dirty.ratio", "1e-1"),
        ("preallocate", " TRUE "),
        ("message.timestamp.type", " CreateTime "),
        ("message.timestamp.type", "createtime"),
        ("compression.type", "ZSTD"),
        ("leader.replication.throttled.replicas", "0:1, 1:1"),
    ):
        _alter(s, f"{name}={value!r}", topic, (name, _SET, value))
        _show(s, f"{name}={value!r}: described", topic, name)
    _alter(s, "group", group, ("consumer.session.timeout.ms", _SET, "50000"), kind=_GROUP)
    _alter(s, "group, too short", group, ("consumer.session.timeout.ms", _SET, "1"), kind=_GROUP)
    _alter(s, "group, unknown setting", group, ("unknown", _SET, "1"), kind=_GROUP)
    _alter(s, "empty group name", "", ("consumer.session.timeout.ms", _SET, "50000"), kind=_GROUP)


def quotas(s: Session) -> None:
    """Checks of quotas. Nothing is changed, because a quota would hold for the other families, too."""
    rate, connections = "consumer_byte_rate", "connection_creation_rate"
    user, address = {"user": "quota"}, {"ip": "192.0.2.1"}
    _quota(s, "user", user, rate, 1e6)
    _quota(s, "unknown key", user, "unknown", 1.0)
    _quota(s, "negative", user, rate, -1.0)
    _quota(s, "zero", user, rate, 0.0)
    _quota(s, "fraction", user, rate, 1.5)
    _quota(s, "unknown entity", {"unknown": "x"}, rate, 1.0)
    _quota(s, "user and address", {**user, **address}, rate, 1.0)
    _quota(s, "byte rate of an address", address, rate, 1.0)
    _quota(s, "connections of an address", address, connections, 1.0)
    _quota(s, "connections of a host", {"ip": "localhost"}, connections, 1.0)
    _quota(s, "no entity", {}, rate, 1.0)
    _quota(s, "empty user", {"user": ""}, rate, 1.0)
    _quota(s, "remove what is not set", {"user": "unlimited"}, rate, None)
    _quota(s, "remove an unknown key", {"user": "unlimited"}, "unknown", None)


def _create(  # one for each field of the request
    s: Session,
    step: str,
    name: str,
    *,
    partitions: int = 1,
    replicas: int = 1,
    config: Mapping[str, str | None] | None = None,
    validate_only: bool = False,
    version: int = 7,
    times: int = 1,
) -> None:
    """Create a topic: (code, number of partitions, replication factor) of each result."""
    topic = Struct(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[Struct(name=key, value=value) for key, value in (config or {}).items()],
    )
    response = s.ask(
        "create_topics", version, topics=[topic] * times, timeout=60_000, validate_only=validate_only
    )
    s.saw(
        step,
        [(code(each.error_code), each.num_partitions, each.replication_factor) for each in response.topics],
    )


def _grow(  # one for each field of the request
    s: Session,
    step: str,
    name: str,
    partitions: int,
    *,
    assignments: int = 0,
    validate_only: bool = False,
    times: int = 1,
) -> None:
    """Raise the number of partitions of a topic."""
    assigned = [Struct(broker_ids=[1])] * assignments or None
    topic = Struct(name=name, count=partitions, assignments=assigned)
    s.codes(
        step,
        "create_partitions",
        3,
        topics=[topic] * times,
        timeout=60_000,
        validate_only=validate_only,
    )


def _describe(s: Session, step: str, version: int, topic: Struct) -> None:
    """Ask for the metadata of a topic: code, name, and code of each partition."""
    response = s.ask("metadata", version, topics=[topic], allow_auto_topic_creation=False)
    s.saw(
        step,
        [
            (
                code(each.error_code),
                each.name,
                sorted((part.partition_index, code(part.error_code)) for part in each.partitions),
            )
            for each in response.topics
        ],
    )


def _delete(s: Session, step: str, *topics: Struct) -> None:
    """Delete topics."""
    s.codes(step, "delete_topics", 6, topics=topics, timeout=60_000)


def _alter(
    s: Session,
    step: str,
    name: str,
    *changes: tuple[str, int, str | None],
    kind: int = _TOPIC,
    validate_only: bool = False,
) -> None:
    """Change settings of a topic or a group; a change is (setting, operation, value)."""
    configs = [Struct(name=key, config_operation=how, value=value) for key, how, value in changes]
    resource = Struct(resource_type=kind, resource_name=name, configs=configs)
    s.codes(step, "incremental_alter_configs", 1, resources=[resource], validate_only=validate_only)


def _show(s: Session, step: str, topic: str, *names: str) -> None:
    """Describe settings of a topic: (name, value, source) of each."""
    mark, setting = str(next(_MARKS)), "file.delete.delay.ms"
    change = Struct(name=setting, config_operation=_SET, value=mark)
    resource = Struct(resource_type=_TOPIC, resource_name=topic, configs=[change])
    s.ask("incremental_alter_configs", 1, resources=[resource])
    # Kafka's controller responds before its brokers know of a change.
    until(lambda: [value for _, value, _ in _configs(s, topic, setting)] == [mark])
    s.saw(step, sorted(_configs(s, topic, *names)))


def _configs(s: Session, topic: str, *names: str) -> Sequence[tuple[str, str, int]]:
    """Return (name, value, source) of some settings of a topic."""
    resource = Struct(resource_type=_TOPIC, resource_name=topic, configuration_keys=names)
    (described,) = s.ask("describe_configs", 4, resources=[resource]).results
    return [(each.name, each.value, each.config_source) for each in described.configs]


def _quota(s: Session, step: str, entity: Mapping[str, str], key: str, value: float | None) -> None:
    """Ask whether a quota can be set, or removed."""
    entry = Struct(
        entity=[Struct(entity_type=kind, entity_name=name) for kind, name in entity.items()],
        ops=[Struct(key=key, value=value or 0.0, remove=value is None)],
    )
    s.codes(step, "alter_client_quotas", 1, entries=[entry], validate_only=True)
