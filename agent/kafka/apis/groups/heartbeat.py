"""Heartbeat: keeps a member in its classic group, and requests a rejoin during a rebalance.

Versions 0 to 4. Version 3 added static members (KIP-345).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.groups.classic.messages import MemberIdentity
from agent.kafka.api_definition import Api
from agent.kafka.apis.groups.group_requests import error_response
from agent.kafka.authorization import require
from agent.kafka.codec import Struct
from agent.security.rights import READ_GROUP

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Extend the session of the member."""
    require(context, READ_GROUP, request.group_id)
    identity = MemberIdentity(
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id,
    )
    return Struct(error_code=await context.services.groups.heartbeat(request.group_id, identity))


API = Api(name="heartbeat", min_version=0, max_version=4, handle=handle, error_response=error_response)
