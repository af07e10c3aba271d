"""JoinGroup: makes a client a member of the next generation of a classic group.

Versions 0 to 9:

- 1 added the rebalance timeout. Version 0 uses the session timeout for both.
- 4 requires a member id: a new member receives one and joins again with it (KIP-394).
- 5 added static members (KIP-345).
- 7 added the protocol type to the response.
- 8 added the reason for joining (KIP-800).
- 9 lets the leader skip the assignment (KIP-814).

The response is sent when the generation begins. Like a Kafka broker, the agent does not process the next
request of the connection before. The leader's response has the metadata of all members, so it needs the right
to read the group when it is sent, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.groups.classic.messages import JoinRequest, MemberProtocol
from agent.kafka.api_definition import Api
from agent.kafka.apis.groups.group_requests import group_code_of
from agent.kafka.authorization import current_acls, require, require_again
from agent.kafka.codec import Struct
from agent.security.rights import READ_GROUP

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext

_REBALANCE_TIMEOUT_SINCE = 1


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Join the group, and wait for its next generation."""
    require(context, READ_GROUP, request.group_id)
    acls = current_acls(context)
    response = await context.services.groups.join(
        request.group_id,
        JoinRequest(
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            protocol_type=request.protocol_type,
            protocols=tuple(MemberProtocol(each.name, bytes(each.metadata)) for each in request.protocols),
            session_timeout_ms=request.session_timeout,
            rebalance_timeout_ms=(
                request.session_timeout
                if context.version < _REBALANCE_TIMEOUT_SINCE
                else request.rebalance_timeout
            ),
            client_id=context.client_id or "",
            client_host=f"/{context.client.host}",
            reason=request.reason or "",
            requires_known_member_id=context.version >= 4,
            supports_skipping_assignment=context.version >= 9,
        ),
    )
    require_again(context, acls, READ_GROUP, request.group_id)
    return Struct(
        error_code=response.error,
        generation_id=response.generation,
        protocol_type=response.protocol_type,
        protocol_name=_name(response.protocol, context.version),
        leader=response.leader,
        skip_assignment=response.skip_assignment,
        member_id=response.member_id,
        members=[
            Struct(member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata)
            for member in response.members
        ],
    )


def error_response(request: Struct, context: RequestContext, error: Exception) -> Struct:
    """Return the error code and the member id of the request."""
    return Struct(
        error_code=group_code_of(error),
        generation_id=-1,
        protocol_name=_name(None, context.version),
        leader="",
        member_id=request.member_id,
        members=[],
    )


def _name(protocol: str | None, version: int) -> str | None:
    """Return the protocol name; before version 7 it cannot be null."""
    return "" if protocol is None and version < 7 else protocol


API = Api(name="join_group", min_version=0, max_version=9, handle=handle, error_response=error_response)
