"""Driver for kafka-python."""

from __future__ import annotations

import sys
import threading
import warnings
from itertools import islice
from typing import Any

from typing_extensions import override

from tests.agent.kafka.work import Work
from tests.real_clients.drivers.request_loop import serve
from tests.real_clients.drivers.security import Security

with warnings.catch_warnings():
    # The library uses a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka  # type: ignore[import-untyped]  # it brings no types
    from kafka import codec as codecs
    from kafka.admin import (  # type: ignore[import-untyped]  # as above
        ConfigResource,
        ConfigResourceType,
        NewPartitions,
        NewTopic,
    )
    from kafka.net.sasl.oauth import AbstractTokenProvider  # type: ignore[import-untyped]  # as above

_TIMEOUT_SECONDS = 120
_security: dict[str, Any] = {}


class _Token(AbstractTokenProvider):  # type: ignore[misc]  # it has no types
    def __init__(self, token: str) -> None:
        self._token = token

    @override
    def token(self) -> str:
        return self._token

    @override
    def extensions(self) -> dict[str, str]:
        return {"traceId": "123"}


def secure(**given: str) -> None:
    """Set how the clients of further requests connect."""
    security = Security(**given)
    _security.clear()
    _security.update(security_protocol=security.protocol, ssl_context=security.context())
    if security.mechanism:
        _security.update(
            sasl_mechanism=security.mechanism,
            sasl_plain_username=security.username or None,
            sasl_plain_password=security.password or None,
            sasl_oauth_token_provider=_Token(security.token) if security.token else None,
        )


def traits() -> dict[str, Any]:
    usable = [each for each in ("gzip", "snappy", "lz4", "zstd") if getattr(codecs, f"has_{each}")()]
    return {"codecs": ["none", *usable], "acks": [0, 1, -1], "idempotent": True}


def produce(
    *, bootstrap: str, topic: str, values: list[str], codec: str, acks: int, idempotent: bool
) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap.split(","),
        compression_type=None if codec == "none" else codec,
        acks="all" if acks == -1 else acks,
        enable_idempotence=idempotent,
        **_security,
    )
    deliveries = [producer.send(topic, value.encode(), value.encode(), partition=0) for value in values]
    for delivery in deliveries:
        delivery.get(_TIMEOUT_SECONDS)
    producer.close()


def _consumer(bootstrap: str, group: str | None, *topics: str, session: int = 10_000) -> Any:  # noqa: ANN401  # it has no types
    return kafka.KafkaConsumer(
        *topics,
        bootstrap_servers=bootstrap.split(","),
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=session,
        heartbeat_interval_ms=200,
        **_security,
    )


def bounds(*, bootstrap: str, topic: str, timestamp: int) -> list[int]:
    consumer = _consumer(bootstrap, None)
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])  # otherwise the library requests metadata of all topics
    found = consumer.offsets_for_times({partition: timestamp})[partition]
    both = consumer.beginning_offsets([partition]), consumer.end_offsets([partition])
    consumer.close()
    return [both[0][partition], both[1][partition], -1 if found is None else found.offset]


def read(*, bootstrap: str, topic: str, offset: int, count: int, group: str) -> list[tuple[int, str]]:
    del group
    consumer = _consumer(bootstrap, None)
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, offset)
    found = [(record.offset, record.value.decode()) for record in islice(consumer, count)]
    consumer.close()
    return found


def transact(*, bootstrap: str, topic: str, name: str, outcomes: list[bool]) -> None:
    """Write the number of each transaction, and commit it or not."""
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap.split(","), transactional_id=name)
    producer.init_transactions()
    for number, commits in enumerate(outcomes):
        producer.begin_transaction()
        producer.send(topic, str(number).encode(), partition=0).get(_TIMEOUT_SECONDS)
        if commits:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.close()


def read_committed(*, bootstrap: str, topic: str, count: int) -> list[tuple[int, str]]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap.split(","), isolation_level="read_committed")
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    found = [(record.offset, record.value.decode()) for record in islice(consumer, count)]
    consumer.close()
    return found


class Member:
    """A member that polls and commits in a thread."""

    def __init__(self, bootstrap: str, topic: str, group: str, session: int) -> None:
        self.records: list[tuple[int, int, str]] = []
        self.assigned = 0
        self.leaving = threading.Event()
        self._consumer = _consumer(bootstrap, group, topic, session=session)
        self.work = Work(self._work)

    def _work(self) -> None:
        while not self.leaving.is_set():
            polled = self._consumer.poll(timeout_ms=500)
            self.records += [
                (record.partition, record.offset, record.value.decode())
                for records in polled.values()
                for record in records
            ]
            self._commit()
            self.assigned = len(self._consumer.assignment())
        self._consumer.close()

    def _commit(self) -> None:
        """Commit the position. After a failure, a later commit covers it or a member reads again.

        If a poll ends during a join, the consumer is still in the rebalance. It then raises
        RebalanceInProgressError without a request, and expects another poll before the commit is retried.
        Retriable errors are raised after half a minute of retries.
        """
        try:
            self._consumer.commit()
        except (
            kafka.errors.CommitFailedError,
            kafka.errors.RebalanceInProgressError,
            kafka.errors.RetriableError,
        ) as failure:
            sys.stderr.write(f"{failure!r}\n")


_members: list[Member] = []


def join(*, bootstrap: str, topic: str, group: str, session: int) -> None:
    _members.append(Member(bootstrap, topic, group, session))


def seen(*, topic: str) -> dict[str, Any]:
    del topic
    _members[0].work.check()
    return {"assigned": _members[0].assigned, "records": list(_members[0].records)}


def leave() -> None:
    _members[0].leaving.set()
    _members[0].work.finish()


def administer(*, bootstrap: str, topic: str) -> dict[str, Any]:
    admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap.split(","))
    admin.create_topics([NewTopic(topic, 2, 1, topic_configs={"cleanup.policy": "compact"})])
    admin.create_partitions({topic: NewPartitions(3)})
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "1000"})])
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    config = admin.describe_configs([resource])
    partitions = len(admin.describe_topics([topic])[0]["partitions"])
    listed = topic in admin.list_topics()
    admin.delete_topics([topic])
    admin.close()
    return {"partitions": partitions, "retention": _value(config, "retention.ms"), "listed": listed}


def _value(described: Any, name: str) -> str:  # noqa: ANN401  # it has no types
    """Return the value of a setting. Its place in the result depends on the version of the library."""
    if isinstance(described, dict):
        if name in described:
            found = described[name]
            return str(found["value"] if isinstance(found, dict) else found)
        return next((found for each in described.values() if (found := _value(each, name))), "")
    if isinstance(described, list | tuple):
        return next((found for each in described if (found := _value(each, name))), "")
    return ""


if __name__ == "__main__":
    serve(
        {
            each.__name__: each
            for each in (
                traits,
                secure,
                produce,
                bounds,
                read,
                join,
                seen,
                leave,
                administer,
                transact,
                read_committed,
            )
        }
    )
