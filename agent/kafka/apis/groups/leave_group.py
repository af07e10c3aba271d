"""LeaveGroup: removes members from a classic group before their sessions expire.

Versions 0 to 5. Up to version 2 a request names one member, and its error code is at the top of the response.
Version 3 added many members per request, and static members by their instance id (KIP-345). Version 5 added
the reason for leaving (KIP-800).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.groups.classic.messages import LeavingMember
from agent.kafka.api_definition import Api
from agent.kafka.apis.groups.group_requests import error_response
from agent.kafka.authorization import require
from agent.kafka.codec import Struct
from agent.security.rights import READ_GROUP

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Remove the members, and return an error code for each."""
    require(context, READ_GROUP, request.group_id)
    groups = context.services.groups
    if context.version < 3:
        (code,) = await groups.leave(request.group_id, [LeavingMember(member_id=request.member_id)])
        return Struct(error_code=code)
    codes = await groups.leave(
        request.group_id,
        [
            LeavingMember(
                member_id=each.member_id, instance_id=each.group_instance_id, reason=each.reason or ""
            )
            for each in request.members
        ],
    )
    return Struct(
        members=[
            Struct(member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=code)
            for each, code in zip(request.members, codes, strict=True)
        ]
    )


API = Api(name="leave_group", min_version=0, max_version=5, handle=handle, error_response=error_response)
