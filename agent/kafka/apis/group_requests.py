"""What the APIs of groups share: codes as a coordinator gives them, and the partitions they name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError, code_of
from bedrock.errors import NotFoundError, RetryableError

if TYPE_CHECKING:
    from agent.kafka.api import Context
    from catalog.model import Topic


def group_code_of(error: BaseException) -> ErrorCode:
    """What a member is told: to wait or to look for the coordinator again, whatever the catalog's trouble."""
    if isinstance(error, RetryableError) and not isinstance(error, KafkaError):
        return ErrorCode.coordinator_not_available
    return code_of(error)


def refuse(request: Struct, context: Context, error: Exception) -> Struct:
    """An answer with nothing but an error code at its top."""
    del request, context
    return Struct(error_code=group_code_of(error))


async def topic_of(wanted: Struct, context: Context, *, by_id: bool) -> Topic | None:
    """The topic that part of a request names, by identifier or by name; None when there is none."""
    directory = context.services.directory
    try:
        if by_id:
            return None if wanted.topic_id is None else await directory.get_by_id(wanted.topic_id)
        return await directory.get(wanted.name)
    except NotFoundError:
        return None


def missing_topic_code(*, by_id: bool) -> ErrorCode:
    """What is said of a topic that does not exist."""
    return ErrorCode.unknown_topic_id if by_id else ErrorCode.unknown_topic_or_partition
