"""DescribeGroups: describes classic groups and their members.

Versions 0 to 6. Version 3 added the authorized operations (KIP-430), version 4 static members (KIP-345).

A group that does not exist is described as `Dead`; from version 6 on it is an error (KIP-1043). As in Kafka,
groups of the consumer protocol do not exist for this API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.groups.classic.messages import ClassicGroupState
from agent.kafka.api_definition import Api
from agent.kafka.apis.groups.group_requests import group_code_of
from agent.kafka.authorization import authorized_operations, require
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, message_of
from agent.security.rights import DESCRIBE_GROUP
from catalog.security.acl_bindings import ResourceType

if TYPE_CHECKING:
    from agent.groups.classic.messages import ClassicGroupDescription
    from agent.kafka.api_definition import RequestContext

_MISSING_GROUP_IS_ERROR_SINCE = 6


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Describe each group."""
    groups = dict.fromkeys(request.groups)  # a group that is named often is described once
    return Struct(groups=[await _describe(group_id, request, context) for group_id in groups])


def error_response(request: Struct, context: RequestContext, error: Exception) -> Struct:
    """Return the same error code for every group."""
    del context
    code = group_code_of(error)
    return Struct(groups=[_failed(group_id, code) for group_id in request.groups])


async def _describe(group_id: str, request: Struct, context: RequestContext) -> Struct:
    try:
        require(context, DESCRIBE_GROUP, group_id)
        found = await context.services.groups.describe(group_id)
    except Exception as error:  # noqa: BLE001  # each group has its own error code
        code = group_code_of(error)
        if code is ErrorCode.group_id_not_found:
            return _missing(
                group_id, message_of(error) if context.version >= _MISSING_GROUP_IS_ERROR_SINCE else None
            )
        return _failed(group_id, code)
    requested = request.include_authorized_operations
    return _described(
        found, authorized_operations(context, ResourceType.GROUP, group_id, requested=requested)
    )


def _missing(group_id: str, message: str | None) -> Struct:
    return Struct(
        group_id=group_id,
        group_state=ClassicGroupState.DEAD.value,
        error_code=ErrorCode.none if message is None else ErrorCode.group_id_not_found,
        error_message=message,
        protocol_type="",
        protocol_data="",
        members=[],
    )


def _described(group: ClassicGroupDescription, operations: int) -> Struct:
    return Struct(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol,
        authorized_operations=operations,
        members=[
            Struct(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in group.members
        ],
    )


def _failed(group_id: str, code: ErrorCode) -> Struct:
    return Struct(
        group_id=group_id, error_code=code, group_state="", protocol_type="", protocol_data="", members=[]
    )


API = Api(name="describe_groups", min_version=0, max_version=6, handle=handle, error_response=error_response)
