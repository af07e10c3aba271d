"""Rules that the group APIs share: error codes of a coordinator, and lookups of topics."""

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
    """Return the error code that a group API reports for `error`.

    An unavailable catalog is COORDINATOR_NOT_AVAILABLE: clients then back off and look up the coordinator.
    """
    if isinstance(error, RetryableError) and not isinstance(error, KafkaError):
        return ErrorCode.coordinator_not_available
    return code_of(error)


def error_response(request: Struct, context: RequestContext, error: Exception) -> Struct:
    """Return a response that has only an error code at its top."""
    del request, context
    return Struct(error_code=group_code_of(error))


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
