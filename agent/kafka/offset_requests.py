"""Topics and offsets in the requests that name committed offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.errors import ErrorCode
from catalog.groups.offsets import CommittedOffset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.kafka.api_definition import RequestContext
    from agent.kafka.codec import Struct
    from catalog.model import Topic


async def topics_of(wanted: Sequence[Struct], context: RequestContext, *, by_id: bool) -> list[Topic | None]:
    """Return the topic of each entry of a request, looked up by id or by name; None if it does not exist."""
    directory = context.services.directory
    if by_id:
        identified = await directory.get_many_by_id(each.topic_id for each in wanted if each.topic_id)
        return [identified.get(each.topic_id) for each in wanted]
    named = await directory.get_many(each.name for each in wanted)
    return [named.get(each.name) for each in wanted]


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
