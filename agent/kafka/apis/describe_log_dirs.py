"""DescribeLogDirs: how many bytes partitions have.

Versions 1 to 5. There is one directory, the object store; its own size is not known. Each agent shows the
partitions that it leads, so that the sum over all brokers counts every partition once.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from agent.kafka.api import Api
from agent.kafka.brokers import choose, partition_subject
from agent.kafka.codec import Struct
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
    return Struct(results=[Struct(log_dir=_DIRECTORY, topics=found)])


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
            and choose(brokers, partition_subject(topic.topic_id, partition)).node_id == own
        ],
    )


API = Api(name="describe_log_dirs", lowest=1, highest=5, handle=handle)
