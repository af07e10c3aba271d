"""JoinGroup: a member of a classic group wants to be in its next generation.

Versions 0 to 9. Version 1 brought the rebalance timeout, which was the session's before. 4 sends new members
back with an id (KIP-394), 5 brought static members (KIP-345), 7 the protocol type, 8 the reason (KIP-800), 9
lets a leader skip its assignment (KIP-814). Answered when the generation begins; like Kafka's broker, this
one takes the connection's next request only then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.groups.messages import JoinRequest, Protocol
from agent.kafka.api_definition import Api
from agent.kafka.apis.group_requests import group_code_of
from agent.kafka.codec import Struct

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext


_REBALANCE_TIMEOUT_SINCE = 1


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Join, and wait."""
    answer = await context.services.groups.join(
        request.group_id,
        JoinRequest(
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            protocol_type=request.protocol_type,
            protocols=tuple(Protocol(each.name, bytes(each.metadata)) for each in request.protocols),
            session_timeout_ms=request.session_timeout,
            rebalance_timeout_ms=(
                request.session_timeout
                if context.version < _REBALANCE_TIMEOUT_SINCE
                else request.rebalance_timeout
            ),
            client_id=context.client_id or "",
            client_host=f"/{context.client_host}",
            reason=request.reason or "",
            requires_known_member_id=context.version >= 4,
            supports_skipping_assignment=context.version >= 9,
        ),
    )
    return Struct(
        error_code=answer.error,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=_name(answer.protocol, context.version),
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=[
            Struct(member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata)
            for member in answer.members
        ],
    )


def error_response(request: Struct, context: RequestContext, error: Exception) -> Struct:
    """The error, and the id that was given."""
    return Struct(
        error_code=group_code_of(error),
        generation_id=-1,
        protocol_name=_name(None, context.version),
        leader="",
        member_id=request.member_id,
        members=[],
    )


def _name(protocol: str | None, version: int) -> str | None:
    """Before version 7 there is no null."""
    return "" if protocol is None and version < 7 else protocol


API = Api(name="join_group", min_version=0, max_version=9, handle=handle, error_response=error_response)
