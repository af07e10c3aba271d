"""DeleteGroups (KIP-229): deletes groups that have no members, and their committed offsets.

Versions 0 to 2. Version 2 is the first flexible one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.api import Api
from agent.kafka.apis.groups.group_requests import group_code_of
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from agent.kafka.api import Context


async def handle(request: Struct, context: Context) -> Struct:
    """Delete each group."""
    names = dict.fromkeys(request.groups_names)
    return Struct(results=[Struct(group_id=name, error_code=await _delete(name, context)) for name in names])


def refuse(request: Struct, context: Context, error: Exception) -> Struct:
    """Return the same error code for every group."""
    del context
    code = group_code_of(error)
    return Struct(results=[Struct(group_id=name, error_code=code) for name in request.groups_names])


async def _delete(group_id: str, context: Context) -> ErrorCode:
    try:
        await context.services.groups.delete(group_id)
    except Exception as error:  # noqa: BLE001  # each group has its own error code
        return group_code_of(error)
    return ErrorCode.none


API = Api(name="delete_groups", lowest=0, highest=2, handle=handle, refuse=refuse)
