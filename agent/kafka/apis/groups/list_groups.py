"""ListGroups: lists the groups that this agent coordinates. Admin clients ask every agent.

Versions 0 to 5. Version 4 added the filter by state (KIP-518), version 5 the filter by type (KIP-848).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.apis.groups.group_requests import error_response
from agent.kafka.authorization import is_allowed, listed_names
from agent.kafka.codec import Struct
from agent.security.rights import DESCRIBE_CLUSTER, DESCRIBE_GROUP

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext


async def handle(request: Struct, context: RequestContext) -> Struct:
    """List the groups that match the filters of the request."""
    states = {state.lower() for state in request.states_filter}
    types = {each.lower() for each in request.types_filter}
    found = await context.services.groups.list()
    visible = None
    if not is_allowed(context, DESCRIBE_CLUSTER, log_denied=False):
        visible = await listed_names(context, DESCRIBE_GROUP, (group.group_id for group in found))
    return Struct(
        groups=[
            Struct(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state,
                group_type=group.group_type.value,
            )
            for group in found
            if visible is None or group.group_id in visible
            if not states or group.state.lower() in states
            if not types or group.group_type.value in types
        ]
    )


API = Api(name="list_groups", min_version=0, max_version=5, handle=handle, error_response=error_response)
