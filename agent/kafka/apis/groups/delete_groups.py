"""DeleteGroups (KIP-229): deletes groups that have no members, and their committed offsets.

Versions 0 to 2. Version 2 is the first flexible one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.apis.groups.group_requests import group_code_of
from agent.kafka.authorization import require
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from agent.security.rights import DELETE_GROUP

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Delete each group."""
    names = dict.fromkeys(request.groups_names)
    return Struct(results=[Struct(group_id=name, error_code=await _delete(name, context)) for name in names])


def error_response(request: Struct, context: RequestContext, error: Exception) -> Struct:
    """Return the same error code for every group."""
    del context
    code = group_code_of(error)
    return Struct(results=[Struct(group_id=name, error_code=code) for name in request.groups_names])


async def _delete(group_id: str, context: RequestContext) -> ErrorCode:
    try:
        require(context, DELETE_GROUP, group_id)
        await context.services.groups.delete(group_id)
    except Exception as error:  # noqa: BLE001  # each group has its own error code
        return group_code_of(error)
    return ErrorCode.none


API = Api(name="delete_groups", min_version=0, max_version=2, handle=handle, error_response=error_response)
