"""ConsumerGroupHeartbeat: a member of a consumer group says what it wants and has (KIP-848).

Versions 0 and 1; 1 brought patterns of topics, which RE2 matches, and ids that members give themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.groups.consumer.messages import ConsumerHeartbeat
from agent.kafka.api_definition import Api
from agent.kafka.apis.group_requests import group_code_of
from agent.kafka.codec import Struct
from agent.kafka.errors import message_of
from catalog.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agent.kafka.api_definition import RequestContext

_SELF_NAMED = 1


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Take the heartbeat; answered once what it changes is stored."""
    groups = context.services.groups
    answer = await groups.consumers.heartbeat(
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
            client_host=f"/{context.client_host}",
            member_id_required=context.version >= _SELF_NAMED,
        ),
    )
    assignment = None
    if answer.assignment is not None:
        assignment = Struct(topic_partitions=by_topic(answer.assignment))
    return Struct(
        member_id=answer.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval=answer.heartbeat_interval_ms,
        assignment=assignment,
    )


def error_response(request: Struct, context: RequestContext, error: Exception) -> Struct:
    """The code, and words for those who read the client's log."""
    del request, context
    return Struct(error_code=group_code_of(error), error_message=message_of(error))


def by_topic(partitions: Iterable[PartitionId]) -> list[Struct]:
    """Partitions as the protocol lists them."""
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
