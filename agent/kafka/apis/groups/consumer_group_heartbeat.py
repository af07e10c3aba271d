"""ConsumerGroupHeartbeat (KIP-848): keeps a member in its group and exchanges assignments.

Versions 0 and 1. Version 1 added subscriptions by regular expression (RE2 syntax) and member ids that
clients generate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.groups.consumer.messages import ConsumerHeartbeat
from agent.kafka.api_definition import Api
from agent.kafka.apis.groups.group_requests import group_code_of
from agent.kafka.authorization import refusal, refused_names, require
from agent.kafka.codec import Struct
from agent.kafka.errors import message_of
from agent.security.rights import DESCRIBE_TOPIC, READ_GROUP
from catalog.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.kafka.api_definition import RequestContext

# From this version on, clients generate their member ids.
_MEMBER_ID_REQUIRED_SINCE = 1


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Apply the heartbeat, and respond once the change is stored in the catalog."""
    require(context, READ_GROUP, request.group_id)
    if await refused_names(context, DESCRIBE_TOPIC, request.subscribed_topic_names or ()):
        raise refusal(DESCRIBE_TOPIC)
    groups = context.services.groups
    response = await groups.consumers.heartbeat(
        request.group_id,
        ConsumerHeartbeat(
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            instance_id=request.instance_id,
            rack_id=request.rack_id,
            rebalance_timeout_ms=request.rebalance_timeout,
            topics=_names(request.subscribed_topic_names),
            regex=request.subscribed_topic_regex,
            assignor=request.server_assignor,
            owned=None if request.topic_partitions is None else _owned(request.topic_partitions),
            client_id=context.client_id or "",
            client_host=f"/{context.client.host}",
            principal=str(context.client.principal),
            member_id_required=context.version >= _MEMBER_ID_REQUIRED_SINCE,
        ),
    )
    assignment = None
    if response.assignment is not None:
        assignment = Struct(topic_partitions=by_topic(response.assignment))
    return Struct(
        member_id=response.member_id,
        member_epoch=response.member_epoch,
        heartbeat_interval=response.heartbeat_interval_ms,
        assignment=assignment,
    )


def error_response(request: Struct, context: RequestContext, error: Exception) -> Struct:
    """Return the error code, and a message for the log of the client."""
    del request, context
    return Struct(error_code=group_code_of(error), error_message=message_of(error))


def by_topic(partitions: Iterable[PartitionId]) -> list[Struct]:
    """Return the partitions as the protocol lists them: sorted, and grouped by topic."""
    topics: dict[object, Struct] = {}
    for each in sorted(partitions):
        topic = topics.setdefault(each.topic_id, Struct(topic_id=each.topic_id, partitions=[]))
        topic.partitions.append(each.partition)
    return list(topics.values())


def _names(names: Iterable[str] | None) -> frozenset[str] | None:
    return None if names is None else frozenset(names)


def _owned(topics: Iterable[Struct]) -> frozenset[PartitionId]:
    return frozenset(
        PartitionId(topic.topic_id, each)
        for topic in topics
        if topic.topic_id is not None
        for each in topic.partitions
    )


API = Api(
    name="consumer_group_heartbeat",
    min_version=0,
    max_version=1,
    handle=handle,
    error_response=error_response,
)
