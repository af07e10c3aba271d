"""DeleteAcls (KIP-140): removes the ACLs that filters select.

Versions 1 to 3. Version 2 is the first flexible one, version 3 added the resource type USER.

All ACLs of a request are removed in one transaction. This agent no longer applies them when it responds, and
the others within a second. A request has at most 100 filters.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.apis.security.acl_messages import follower_of, read_filter
from agent.kafka.authorization import require
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError, code_of, message_of
from agent.security.rights import ALTER_CLUSTER
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext
    from catalog.security.acl_bindings import AclBinding, AclFilter

_MAX_FILTERS = 100  # each is compared with all ACLs while the ACLs are locked


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Remove the selected ACLs, and list them for each filter."""
    follower = follower_of(context)
    require(context, ALTER_CLUSTER)
    if len(request.filters) > _MAX_FILTERS:
        raise KafkaError(ErrorCode.policy_violation, f"a request has at most {_MAX_FILTERS} filters")
    read: list[AclFilter | KafkaError] = []
    for wanted in request.filters:
        try:
            read.append(read_filter(wanted))
        except KafkaError as error:
            read.append(error)
    services = context.services
    valid = [each for each in read if not isinstance(each, KafkaError)]
    removed = iter(await services.pools.catalog.run(partial(services.catalog.acls.remove, valid)))
    await follower.refresh()
    return Struct(
        filter_results=[
            _failed(each) if isinstance(each, SiltstoneError) else _removed(next(removed)) for each in read
        ]
    )


def error_response(request: Struct, context: RequestContext, error: Exception) -> Struct:
    """Return the error for each filter."""
    del context
    return Struct(filter_results=[_failed(error) for _ in request.filters])


def _failed(error: Exception) -> Struct:
    return Struct(error_code=code_of(error), error_message=message_of(error), matching_acls=[])


def _removed(bindings: list[AclBinding]) -> Struct:
    return Struct(
        matching_acls=[
            Struct(
                resource_type=each.resource_type,
                resource_name=each.resource_name,
                pattern_type=each.pattern_type,
                principal=each.principal,
                host=each.host,
                operation=each.operation,
                permission_type=each.permission,
            )
            for each in bindings
        ]
    )


API = Api(name="delete_acls", min_version=1, max_version=3, handle=handle, error_response=error_response)
