"""DescribeUserScramCredentials (KIP-554): lists users with their mechanisms and iterations, without keys.

Version 0. No users, or a null list, means all. As in Kafka, an unknown user is RESOURCE_NOT_FOUND, and a user
that a request names twice is DUPLICATE_RESOURCE.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.authorization import require
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from agent.security.rights import DESCRIBE_CLUSTER

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext
    from catalog.security.users import CredentialInfo


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Describe the named users, or all."""
    require(context, DESCRIBE_CLUSTER)
    requests = Counter([each.name for each in request.users or ()])
    services = context.services
    describe = partial(services.catalog.users.describe, list(requests) if requests else None)
    found = await services.pools.catalog.run(describe)
    credentials = {user: list(infos) for user, infos in groupby(found, lambda info: info.user)}
    return Struct(
        results=[
            _result(user, credentials.get(user), is_duplicate=requests[user] > 1)
            for user in requests or credentials
        ]
    )


def _result(user: str, infos: list[CredentialInfo] | None, *, is_duplicate: bool) -> Struct:
    if is_duplicate:
        return Struct(
            user=user,
            error_code=ErrorCode.duplicate_resource,
            error_message="Cannot describe SCRAM credentials for the same user twice in a single request: "
            f"{user}",
            credential_infos=[],
        )
    if infos is None:
        return Struct(
            user=user,
            error_code=ErrorCode.resource_not_found,
            error_message=f"Attempt to describe a user credential that does not exist: {user}",
            credential_infos=[],
        )
    return Struct(
        user=user,
        credential_infos=[
            Struct(mechanism=int(info.mechanism), iterations=info.iterations) for info in infos
        ],
    )


API = Api(name="describe_user_scram_credentials", min_version=0, max_version=0, handle=handle)
