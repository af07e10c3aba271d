"""ListPartitionReassignments (KIP-455): lists no reassignments.

Version 0. A partition in the object store has nothing to move, and a local one stays on its agent. Consoles
ask for reassignments to draw a page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.authorization import require
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from agent.security.rights import DESCRIBE_CLUSTER

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Return an empty list to a client that may describe the cluster."""
    del request
    require(context, DESCRIBE_CLUSTER)
    return Struct(error_code=ErrorCode.none, topics=[])


API = Api(name="list_partition_reassignments", min_version=0, max_version=0, handle=handle)
