"""SyncGroup: takes the assignments of a generation from its leader and gives each member its own.

Versions 0 to 5. Version 3 added static members (KIP-345). Version 5 added the type and the name of the
protocol; both are required from then on and must be those of the group. The right to read the group is
checked again after the wait for the leader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.groups.classic.messages import SyncRequest
from agent.kafka.api_definition import Api
from agent.kafka.apis.groups.group_requests import error_response
from agent.kafka.authorization import current_acls, require, require_again
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError
from agent.security.rights import READ_GROUP

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Store the leader's assignments, or wait for them."""
    if context.version >= 5 and (request.protocol_type is None or request.protocol_name is None):
        raise KafkaError(ErrorCode.inconsistent_group_protocol)
    require(context, READ_GROUP, request.group_id)
    acls = current_acls(context)
    response = await context.services.groups.sync(
        request.group_id,
        SyncRequest(
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id,
            protocol_type=request.protocol_type,
            protocol=request.protocol_name,
            assignments={each.member_id: bytes(each.assignment) for each in request.assignments},
        ),
    )
    require_again(context, acls, READ_GROUP, request.group_id)
    return Struct(
        error_code=response.error,
        protocol_type=response.protocol_type,
        protocol_name=response.protocol,
        assignment=response.assignment,
    )


API = Api(name="sync_group", min_version=0, max_version=5, handle=handle, error_response=error_response)
