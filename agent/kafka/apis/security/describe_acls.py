"""DescribeAcls (KIP-140): lists the ACLs that a filter selects.

Versions 1 to 3. Version 2 is the first flexible one, version 3 added the resource type USER.

The agent compares its ACLs with the catalog first, so that it lists those that any agent has just changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.apis.security.acl_messages import follower_of, read_filter
from agent.kafka.authorization import require
from agent.kafka.codec import Struct
from agent.kafka.errors import code_of, message_of
from agent.runtime.cooperative_yield import CooperativeYield
from agent.security.rights import DESCRIBE_CLUSTER

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext


async def handle(request: Struct, context: RequestContext) -> Struct:
    """List the ACLs by resource pattern."""
    follower = follower_of(context)
    require(context, DESCRIBE_CLUSTER)
    wanted = read_filter(request)
    await follower.refresh()
    resources: dict[tuple[int, int, str], Struct] = {}
    yielding = CooperativeYield()
    for each in follower.authorizer.index.bindings:
        await yielding.step()
        if not wanted.matches(each):
            continue
        resource = resources.setdefault(
            each[:3],
            Struct(
                resource_type=each.resource_type,
                resource_name=each.resource_name,
                pattern_type=each.pattern_type,
                acls=[],
            ),
        )
        resource.acls.append(
            Struct(
                principal=each.principal,
                host=each.host,
                operation=each.operation,
                permission_type=each.permission,
            )
        )
    return Struct(resources=list(resources.values()))


def error_response(request: Struct, context: RequestContext, error: Exception) -> Struct:
    """Return the error code and its message."""
    del request, context
    return Struct(error_code=code_of(error), error_message=message_of(error), resources=[])


API = Api(name="describe_acls", min_version=1, max_version=3, handle=handle, error_response=error_response)
