"""DescribeAcls: there are no access control lists, as in a Kafka without an authorizer.

Versions 1 to 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Refuse."""
    del request, context
    return Struct(
        error_code=ErrorCode.security_disabled, error_message="No Authorizer is configured on the broker"
    )


API = Api(name="describe_acls", min_version=1, max_version=3, handle=handle)
