"""DescribeLogDirs: returns the sizes of partitions by log directory.

Versions 1 to 5. Version 3 added an error code at the top, version 4 the size of the volume (KIP-827).

- The object store is one directory of unknown size. Each agent lists the partitions that it leads, so that
  the sum over all brokers counts every partition once.
- The directories on an agent's disks list the logs of local topics and the size of the volume. The cached
  tails of other topics are not replicas, and are not listed. A log that moves is listed twice: its copy is
  future, and has the number of offsets that it is behind.
- A directory that has failed is KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.authorization import is_allowed, refusal
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, code_of
from agent.runtime.cooperative_yield import CooperativeYield
from agent.security.rights import DESCRIBE_CLUSTER
from catalog.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.kafka.api_definition import RequestContext
    from agent.local_topics.reader import LogSize
    from catalog.model import Topic

OBJECT_STORE = "/object-store"
_ERROR_SINCE = 3
_CHUNK_TOPICS = 1_000  # topics of one catalog query


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Describe the requested partitions, or all."""
    if not is_allowed(context, DESCRIBE_CLUSTER):
        return Struct(error_code=refusal(DESCRIBE_CLUSTER).code, results=[])
    requested = await _requested(request, context)
    found = await _describe_object_store([each for each in requested if not each[0].is_local], context)
    return Struct(
        results=[Struct(log_dir=OBJECT_STORE, topics=found), *await _describe_disks(request, context)]
    )


def error_response(request: Struct, context: RequestContext, error: Exception) -> Struct:
    """Return the error code at the top, or before version 3 as that of the directory.

    A response without directories would mean that the client is not authorized.
    """
    del request
    code = code_of(error)
    if context.version < _ERROR_SINCE:
        return Struct(results=[Struct(log_dir=OBJECT_STORE, error_code=code)])
    return Struct(error_code=code)


async def _requested(request: Struct, context: RequestContext) -> list[tuple[Topic, Sequence[int]]]:
    """Return the requested topics and partitions; as in Kafka, unknown ones are left out."""
    services = context.services
    if request.topics is None:
        return [(topic, range(topic.partition_count)) for topic in await services.directory.all()]
    known = await services.directory.get_many(wanted.topic for wanted in request.topics)
    return [(known[wanted.topic], wanted.partitions) for wanted in request.topics if wanted.topic in known]


async def _describe_disks(request: Struct, context: RequestContext) -> list[Struct]:
    services = context.services
    wanted = None if request.topics is None else {each.topic: set(each.partitions) for each in request.topics}
    on_disks = {
        path: [
            each
            for each in sorted(logs)
            if wanted is None or each.name.partition in wanted.get(each.name.topic, ())
        ]
        for path, logs in (await services.local_logs.sizes()).items()
    }
    known = await services.directory.get_many(each.name.topic for logs in on_disks.values() for each in logs)
    directories, yielding = [], CooperativeYield()
    for path, logs in on_disks.items():
        topics: dict[str, Struct] = {}
        for each in logs:
            await yielding.step()
            topic = each.name.topic
            if topic in known and known[topic].is_local:
                entry = topics.setdefault(topic, Struct(name=topic, partitions=[]))
                entry.partitions.append(_partition(each))
        total, usable = await services.local_logs.space(path)
        directories.append(
            Struct(log_dir=path, topics=list(topics.values()), total_bytes=total, usable_bytes=usable)
        )
    failed = [
        Struct(log_dir=path, error_code=ErrorCode.kafka_storage_error) for path in services.local_logs.offline
    ]
    return directories + failed


def _partition(log: LogSize) -> Struct:
    return Struct(
        partition_index=log.name.partition,
        partition_size=log.size,
        offset_lag=log.offset_lag,
        is_future_key=log.is_future,
    )


async def _describe_object_store(
    requested: Sequence[tuple[Topic, Sequence[int]]], context: RequestContext
) -> list[Struct]:
    """Return the sizes of the partitions in the object store that this agent leads, by topic."""
    services = context.services
    replicas = services.replicas.among(await services.brokers.live(), None)
    own = services.brokers.own.node_id
    yielding, topics = CooperativeYield(), []
    for start in range(0, len(requested), _CHUNK_TOPICS):
        chunk = requested[start : start + _CHUNK_TOPICS]
        ids = [topic.topic_id for topic, _ in chunk]
        sizes = await services.pools.catalog.run(partial(services.catalog.topics.sizes, ids))
        for topic, partitions in chunk:
            parts = []
            for partition in partitions:
                size = sizes.get(PartitionId(topic.topic_id, partition))
                steps = 1 if size is None else 1 + replicas.steps_of(topic.topic_id, partition)
                if size is not None and replicas.of(topic.topic_id, partition)[0] == own:
                    parts.append(Struct(partition_index=partition, partition_size=size))
                await yielding.step(steps)
            if parts:
                topics.append(Struct(name=topic.name, partitions=parts))
    return topics


API = Api(
    name="describe_log_dirs", min_version=1, max_version=5, handle=handle, error_response=error_response
)
