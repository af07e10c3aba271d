"""CreateAcls (KIP-140): adds ACLs.

Versions 1 to 3. Version 2 is the first flexible one, version 3 added the resource type USER.

All valid ACLs of a request are added in one transaction. This agent enforces them when it responds, and the
others within a second. Differences from Kafka:

- A resource of type DELEGATION_TOKEN or USER is INVALID_REQUEST, because there are no delegation tokens.
- A host that is no IP address is INVALID_REQUEST. Kafka stores it, and it never matches.
- There are at most 20,000 ACLs.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.apis.security.acl_messages import follower_of, read_binding
from agent.kafka.authorization import require
from agent.kafka.codec import Struct
from agent.kafka.errors import code_of, message_of, to_kafka_error
from agent.runtime.cooperative_yield import CooperativeYield
from agent.security.rights import ALTER_CLUSTER
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext
    from catalog.security.acl_bindings import AclBinding


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Add the valid ACLs, and report each."""
    follower = follower_of(context)
    require(context, ALTER_CLUSTER)
    read: list[AclBinding | SiltstoneError] = []
    yielding = CooperativeYield()
    for wanted in request.creations:
        await yielding.step()
        try:
            read.append(read_binding(wanted))
        except SiltstoneError as error:
            read.append(error)
    failure = None
    valid = [each for each in read if not isinstance(each, SiltstoneError)]
    if valid:
        services = context.services
        try:
            await services.pools.catalog.run(partial(services.catalog.acls.add, valid))
        except SiltstoneError as error:
            failure = to_kafka_error(error)
        else:
            await follower.refresh()
    return Struct(results=[_result(each if isinstance(each, SiltstoneError) else failure) for each in read])


def error_response(request: Struct, context: RequestContext, error: Exception) -> Struct:
    """Return the error for each ACL."""
    del context
    result = Struct(error_code=code_of(error), error_message=message_of(error))
    return Struct(results=[result for _ in request.creations])


def _result(error: SiltstoneError | None) -> Struct:
    return Struct() if error is None else Struct(error_code=code_of(error), error_message=message_of(error))


API = Api(name="create_acls", min_version=1, max_version=3, handle=handle, error_response=error_response)
