"""DescribeLogDirs: how many bytes partitions have.

Versions 1 to 5. The object store is a directory whose own size is not known; each agent shows of it the
partitions that it leads, so that the sum over all brokers counts every partition once. The directories on its
disks show the logs of local topics, and how much room there is; one that has failed, KAFKA_STORAGE_ERROR. The
copies that it keeps there of the tails of others are no replicas.
"""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING

from agent.kafka.api import Api
from agent.kafka.brokers import choose, partition_subject
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from agent.local_logs.local_topics import is_local
from bedrock.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.kafka.api import Context
    from catalog.model import Broker, Topic

_DIRECTORY = "/object-store"


async def handle(request: Struct, context: Context) -> Struct:
    """Describe the partitions that were asked for, or all."""
    services = context.services
    brokers = await services.brokers.live()
    topics = []
    if request.topics is None:
        every = await services.pools.catalog.run(services.catalog.topics.list)
        topics = [await _describe(topic, range(topic.partition_count), brokers, context) for topic in every]
    else:
        for wanted in request.topics:
            try:
                topic = await services.directory.get(wanted.topic)
            except NotFoundError:
                continue  # as in Kafka, what is not there has no size
            topics.append(await _describe(topic, wanted.partitions, brokers, context))
    found = [topic for topic in topics if topic.partitions]
    return Struct(
        results=[Struct(log_dir=_DIRECTORY, topics=found), *await _describe_disks(request, context)]
    )


async def _describe_disks(request: Struct, context: Context) -> list[Struct]:
    wanted = None if request.topics is None else {each.topic: set(each.partitions) for each in request.topics}
    directories = []
    for path, logs in (await context.services.disks.sizes()).items():
        topics: dict[str, Struct] = {}
        for (topic, partition), size in sorted(logs.items()):
            if (wanted is None or partition in wanted.get(topic, ())) and await _has_its_home_there(
                topic, context
            ):
                entry = topics.setdefault(topic, Struct(name=topic, partitions=[]))
                entry.partitions.append(Struct(partition_index=partition, partition_size=size))
        total, usable = await context.services.pools.disks.run(partial(_space, path))
        directories.append(
            Struct(log_dir=path, topics=list(topics.values()), total_bytes=total, usable_bytes=usable)
        )
    failed = [
        Struct(log_dir=path, error_code=ErrorCode.kafka_storage_error)
        for path in context.services.disks.offline
    ]
    return directories + failed


def _space(path: str) -> tuple[int, int]:
    """The bytes of a volume, and those that are free; -1 where it does not say."""
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return -1, -1
    return usage.total, usage.free


async def _has_its_home_there(name: str, context: Context) -> bool:
    try:
        return is_local(await context.services.directory.get(name))
    except NotFoundError:
        return False


async def _describe(
    topic: Topic, partitions: Sequence[int], brokers: Sequence[Broker], context: Context
) -> Struct:
    services = context.services
    sizes = await services.pools.catalog.run(partial(services.catalog.topics.sizes, topic.topic_id))
    own = services.brokers.own.node_id
    return Struct(
        name=topic.name,
        partitions=[
            Struct(partition_index=partition, partition_size=sizes[partition])
            for partition in partitions
            if partition in sizes
            and not is_local(topic)
            and choose(brokers, partition_subject(topic.topic_id, partition)).node_id == own
        ],
    )


API = Api(name="describe_log_dirs", lowest=1, highest=5, handle=handle)
