"""SyncGroup: the leader brings the assignments of a generation, every member gets its own.

Versions 0 to 5. Version 3 brought static members, 5 the protocol's type and name, which must be there then
and must be the group's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.groups.messages import SyncRequest
from agent.kafka.api_definition import Api
from agent.kafka.apis.group_requests import error_response
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Sync, and wait."""
    if context.version >= 5 and (request.protocol_type is None or request.protocol_name is None):
        raise KafkaError(ErrorCode.inconsistent_group_protocol)
    answer = await context.services.groups.sync(
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
    return Struct(
        error_code=answer.error,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol,
        assignment=answer.assignment,
    )


API = Api(name="sync_group", min_version=0, max_version=5, handle=handle, error_response=error_response)
