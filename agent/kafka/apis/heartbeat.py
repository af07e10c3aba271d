"""Heartbeat: a member of a classic group lives, and learns whether it has to join again.

Versions 0 to 4; 3 brought static members.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.groups.messages import MemberStamp
from agent.kafka.api_definition import Api
from agent.kafka.apis.group_requests import error_response
from agent.kafka.codec import Struct

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Note the sign of life."""
    stamp = MemberStamp(
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id,
    )
    return Struct(error_code=await context.services.groups.heartbeat(request.group_id, stamp))


API = Api(name="heartbeat", min_version=0, max_version=4, handle=handle, error_response=error_response)
