"""Topics and offsets in the requests that name committed offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from agent.kafka.authorization import refused_names
from agent.kafka.errors import ErrorCode
from catalog.groups.offsets import CommittedOffset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.kafka.api_definition import RequestContext
    from agent.kafka.codec import Struct
    from agent.security.rights import Right
    from catalog.model import Topic


class RequestedTopic(NamedTuple):
    """The topic of an entry, None if it does not exist or the client may not use it."""

    topic: Topic | None
    is_refused: bool


async def topics_of(
    wanted: Sequence[Struct], context: RequestContext, right: Right, *, by_id: bool
) -> list[RequestedTopic]:
    """Return the topic of each entry of a request, looked up by id or by name.

    Refused names are not looked up, as in `find_permitted_topics`.
    """
    directory = context.services.directory
    if by_id:
        identified = await directory.get_many_by_id(each.topic_id for each in wanted if each.topic_id)
        refused = await refused_names(context, right, (each.name for each in identified.values()))
        permitted = {key: each for key, each in identified.items() if each.name not in refused}
        return [
            RequestedTopic(
                permitted.get(each.topic_id), each.topic_id in identified and each.topic_id not in permitted
            )
            for each in wanted
        ]
    refused = await refused_names(context, right, (each.name for each in wanted))
    named = await directory.get_many(each.name for each in wanted if each.name not in refused)
    return [RequestedTopic(named.get(each.name), each.name in refused) for each in wanted]


def missing_topic_code(*, by_id: bool) -> ErrorCode:
    """Return the error code of a topic that does not exist."""
    return ErrorCode.unknown_topic_id if by_id else ErrorCode.unknown_topic_or_partition


def check_offset(
    partition: Struct, topic: Topic | None, context: RequestContext, *, by_id: bool = False
) -> ErrorCode:
    """Return the error code of an offset that cannot be stored, or `none`."""
    if topic is None:
        return missing_topic_code(by_id=by_id)
    if not 0 <= partition.partition_index < topic.partition_count:
        return ErrorCode.unknown_topic_or_partition
    max_metadata = context.services.groups.settings.offset_metadata_max_bytes
    if len(partition.committed_metadata or "") > max_metadata:
        return ErrorCode.offset_metadata_too_large
    return ErrorCode.none


def offset_of(partition: Struct, topic: Topic) -> CommittedOffset:
    """Return the offset that a request commits in one partition."""
    return CommittedOffset(
        topic_id=topic.topic_id,
        partition=partition.partition_index,
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata or "",
    )
