"""Driver for aiokafka."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import TYPE_CHECKING, Any

import aiokafka  # type: ignore[import-untyped]  # it brings no types
from aiokafka.abc import AbstractTokenProvider  # type: ignore[import-untyped]  # as above
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic  # type: ignore[import-untyped]  # as above
from aiokafka.admin.config_resource import (  # type: ignore[import-untyped]  # as above
    ConfigResource,
    ConfigResourceType,
)
from typing_extensions import override

from tests.real_clients.drivers.request_loop import serve
from tests.real_clients.drivers.security import Security

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_loop = asyncio.new_event_loop()
_security: dict[str, Any] = {}
_COMMIT_SECONDS = 0.3
"""A member that commits after every few records is slower than the producer, and falls behind for ever."""


class _Token(AbstractTokenProvider):  # type: ignore[misc]  # it has no types
    def __init__(self, token: str) -> None:
        self._token = token

    @override
    async def token(self) -> str:
        return self._token


def _awaited(call: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    def blocking(**given: Any) -> Any:  # noqa: ANN401  # any request
        return asyncio.run_coroutine_threadsafe(call(**given), _loop).result(120)

    return blocking


async def traits() -> dict[str, Any]:
    return {"codecs": ["none", "gzip", "snappy", "lz4", "zstd"], "acks": [0, 1, -1], "idempotent": True}


async def secure(**given: str) -> None:
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


async def produce(
    *, bootstrap: str, topic: str, values: list[str], codec: str, acks: int, idempotent: bool
) -> None:
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type=None if codec == "none" else codec,
        acks="all" if acks == -1 else acks,
        enable_idempotence=idempotent,
        **_security,
    )
    async with producer:
        deliveries = [await producer.send(topic, value.encode(), value.encode(), 0) for value in values]
        await asyncio.gather(*deliveries)


def _consumer(bootstrap: str, group: str | None, *topics: str, session: int = 10_000) -> Any:  # noqa: ANN401  # it has no types
    return aiokafka.AIOKafkaConsumer(
        *topics,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=session,
        heartbeat_interval_ms=200,
        **_security,
    )


async def bounds(*, bootstrap: str, topic: str, timestamp: int) -> list[int]:
    partition = aiokafka.TopicPartition(topic, 0)
    async with _consumer(bootstrap, None) as consumer:
        found = (await consumer.offsets_for_times({partition: timestamp}))[partition]
        low = (await consumer.beginning_offsets([partition]))[partition]
        high = (await consumer.end_offsets([partition]))[partition]
    return [low, high, -1 if found is None else found.offset]


async def read(*, bootstrap: str, topic: str, offset: int, count: int, group: str) -> list[tuple[int, str]]:
    del group
    partition = aiokafka.TopicPartition(topic, 0)
    consumer = _consumer(bootstrap, None)
    consumer.assign([partition])
    async with consumer:
        consumer.seek(partition, offset)
        records = [await consumer.getone() for _ in range(count)]
    return [(record.offset, record.value.decode()) for record in records]


async def transact(*, bootstrap: str, topic: str, name: str, outcomes: list[bool]) -> None:
    """Write the number of each transaction, and commit it or not."""
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name) as producer:
        for number, commits in enumerate(outcomes):
            await producer.begin_transaction()
            await producer.send_and_wait(topic, str(number).encode(), partition=0)
            await (producer.commit_transaction() if commits else producer.abort_transaction())


async def read_committed(*, bootstrap: str, topic: str, count: int) -> list[tuple[int, str]]:
    partition = aiokafka.TopicPartition(topic, 0)
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed")
    consumer.assign([partition])
    async with consumer:
        consumer.seek(partition, 0)
        records = [await consumer.getone() for _ in range(count)]
    return [(record.offset, record.value.decode()) for record in records]


class Member:
    """A member that reads and commits in a task."""

    def __init__(self, bootstrap: str, topic: str, group: str, session: int) -> None:
        self.records: list[tuple[int, int, str]] = []
        self.consumer = _consumer(bootstrap, group, topic, session=session)

    async def start(self) -> None:
        await self.consumer.start()
        self.task = asyncio.create_task(self._work())

    async def _work(self) -> None:
        commit_at, is_ahead = 0.0, False
        while True:
            found = await self.consumer.getmany(timeout_ms=100)
            records = [record for records in found.values() for record in records]
            self.records += [(each.partition, each.offset, each.value.decode()) for each in records]
            is_ahead |= bool(records)
            if not is_ahead or _loop.time() < commit_at:
                continue
            commit_at, is_ahead = _loop.time() + _COMMIT_SECONDS, False
            try:
                await self.consumer.commit()
            except (aiokafka.errors.CommitFailedError, aiokafka.errors.IllegalStateError) as failure:
                # A rebalance has started, or has left no partition. The records will be read again.
                sys.stderr.write(f"{failure!r}\n")

    def check(self) -> None:
        """Raise the exception that ended the task, if any."""
        if self.task.done() and not self.task.cancelled():
            self.task.result()

    async def leave(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])
        self.check()
        await self.consumer.stop()


_members: list[Member] = []


async def join(*, bootstrap: str, topic: str, group: str, session: int) -> None:
    _members.append(Member(bootstrap, topic, group, session))
    await _members[0].start()


async def seen(*, topic: str) -> dict[str, Any]:
    del topic
    _members[0].check()
    assigned = len(_members[0].consumer.assignment())
    return {"assigned": assigned, "records": list(_members[0].records)}


async def leave() -> None:
    await _members[0].leave()


async def administer(*, bootstrap: str, topic: str) -> dict[str, Any]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(topic, 2, 1, topic_configs={"cleanup.policy": "compact"})])
    await admin.create_partitions({topic: NewPartitions(3)})
    await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "1000"})])
    (described,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    entries = described.resources[0][4]
    (found,) = await admin.describe_topics([topic])
    listed = topic in await admin.list_topics()
    await admin.delete_topics([topic])
    await admin.close()
    retention = {entry[0]: entry[1] for entry in entries}["retention.ms"]
    return {"partitions": len(found["partitions"]), "retention": retention, "listed": listed}


if __name__ == "__main__":
    threading.Thread(target=_loop.run_forever, daemon=True).start()
    serve(
        {
            each.__name__: _awaited(each)
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
