"""Rules that the group APIs share: error codes of a coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError, code_of
from core.errors import RetryableError

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext


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
