"""Metadata: brokers, topics and their partitions.

Versions 0 to 13. Version 0 asks for all topics by an empty list, later ones by null; version 12 asks by topic
identifier (KIP-516). A topic that does not exist is created on the way where client and configuration allow
it, and is there in the answer. The leader of a partition is a hint, as any agent can serve it: an agent of
the zone that the client's name gives, if there is one. The other replicas are those whom clients of other
zones are sent to. A partition of a local topic is led by the node that has its log.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING

from agent.kafka.api import Api
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from agent.kafka.permitted import ON_CLUSTER, ON_TOPIC, permitted
from agent.kafka.placement import placement_of
from bedrock.errors import NotFoundError
from catalog.errors import InvalidTopicError, TopicExistsError
from catalog.topic_names import check_topic_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from agent.kafka.api import Context
    from catalog.model import Broker, Topic


async def handle(request: Struct, context: Context) -> Struct:
    """Describe the brokers and the topics that were asked for."""
    services = context.services
    brokers = await services.brokers.live()
    controller = await services.brokers.controller()
    if request.topics is None or (context.version == 0 and not request.topics):
        found = await services.pools.catalog.run(services.catalog.topics.list)
        topics = [await _describe_topic(topic, request, brokers, context) for topic in found]
    else:
        topics = list(
            await asyncio.gather(*(_one(wanted, request, brokers, context) for wanted in request.topics))
        )
    return Struct(
        brokers=describe_brokers(brokers),
        cluster_id=services.brokers.cluster_id,
        controller_id=controller.node_id,
        topics=topics,
        cluster_authorized_operations=permitted(
            ON_CLUSTER, asked=request.include_cluster_authorized_operations
        ),
    )


def describe_brokers(brokers: Sequence[Broker]) -> list[Struct]:
    """Brokers as Metadata lists them."""
    return [
        Struct(node_id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack)
        for broker in brokers
    ]


async def _one(wanted: Struct, request: Struct, brokers: Sequence[Broker], context: Context) -> Struct:
    directory = context.services.directory
    if context.version < 12 and (wanted.name is None or wanted.topic_id is not None):
        # They carry identifiers, and name topics by names all the same.
        return Struct(error_code=ErrorCode.invalid_request, name=wanted.name or "", topic_id=wanted.topic_id)
    if wanted.name is None or (context.version >= 12 and wanted.topic_id is not None):
        try:
            topic = await directory.get_by_id(wanted.topic_id)
        except NotFoundError:
            return _missing(ErrorCode.unknown_topic_id, None, wanted.topic_id, context)
        return await _describe_topic(topic, request, brokers, context)
    try:
        check_topic_name(wanted.name)
        may_create = request.allow_auto_topic_creation and context.services.settings.auto_create_topics
        topic = await (_get_or_create(wanted.name, context) if may_create else directory.get(wanted.name))
    except InvalidTopicError:
        return _missing(ErrorCode.invalid_topic_exception, wanted.name, None, context)
    except NotFoundError:
        return _missing(ErrorCode.unknown_topic_or_partition, wanted.name, None, context)
    return await _describe_topic(topic, request, brokers, context)


async def _get_or_create(name: str, context: Context) -> Topic:
    services = context.services
    try:
        return await services.directory.get(name)
    except NotFoundError:
        pass
    create = partial(services.catalog.topics.create, name, services.settings.default_partitions, {})
    with contextlib.suppress(TopicExistsError):  # another client was first
        await services.pools.catalog.run(create)
    services.directory.forget(name)
    return await services.directory.get(name)


def _missing(code: ErrorCode, name: str | None, topic_id: UUID | None, context: Context) -> Struct:
    shown = name if name is not None or context.version >= 12 else ""
    return Struct(error_code=code, name=shown, topic_id=topic_id)


async def _describe_topic(
    topic: Topic, request: Struct, brokers: Sequence[Broker], context: Context
) -> Struct:
    """A topic with its partitions."""
    placement = await placement_of(topic, brokers, context)
    return Struct(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[placement.describe(partition) for partition in range(topic.partition_count)],
        topic_authorized_operations=permitted(ON_TOPIC, asked=request.include_topic_authorized_operations),
    )


API = Api(name="metadata", lowest=0, highest=13, handle=handle)
