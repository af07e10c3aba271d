"""What the APIs of groups share: codes as a coordinator gives them, and the partitions they name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError, code_of
from core.errors import RetryableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.kafka.api_definition import RequestContext
    from catalog.model import Topic


def group_code_of(error: BaseException) -> ErrorCode:
    """What a member is told: to wait or to look for the coordinator again, whatever the catalog's trouble."""
    if isinstance(error, RetryableError) and not isinstance(error, KafkaError):
        return ErrorCode.coordinator_not_available
    return code_of(error)


def error_response(request: Struct, context: RequestContext, error: Exception) -> Struct:
    """An answer with nothing but an error code at its top."""
    del request, context
    return Struct(error_code=group_code_of(error))


async def topics_of(wanted: Sequence[Struct], context: RequestContext, *, by_id: bool) -> list[Topic | None]:
    """The topic that each part of a request names, by identifier or by name; None where there is none."""
    directory = context.services.directory
    if by_id:
        identified = await directory.get_many_by_id(each.topic_id for each in wanted if each.topic_id)
        return [identified.get(each.topic_id) for each in wanted]
    named = await directory.get_many(each.name for each in wanted)
    return [named.get(each.name) for each in wanted]


def missing_topic_code(*, by_id: bool) -> ErrorCode:
    """What is said of a topic that does not exist."""
    return ErrorCode.unknown_topic_id if by_id else ErrorCode.unknown_topic_or_partition
