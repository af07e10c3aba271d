"""FindCoordinator: which agent coordinates a group.

Versions 0 to 6; 4 brought many keys at once (KIP-699). A group's coordinator is found by rendezvous hashing
over the live agents. Only groups (key type 0) have coordinators: transactions (1) are not served, and clients
that want them get INVALID_REQUEST rather than something they would repeat for ever; nor are share groups (2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent.kafka.api import Api
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from agent.kafka.api import Context

_GROUP = 0


async def handle(request: Struct, context: Context) -> Struct:
    """Name a coordinator for each key."""
    if context.version >= 4:
        found = [(key, await _find(key, request, context)) for key in request.coordinator_keys]
        return Struct(coordinators=[Struct(key=key, **values) for key, values in found])
    return Struct(**await _find(request.key, request, context))


async def _find(key: str, request: Struct, context: Context) -> dict[str, Any]:
    if request.key_type != _GROUP:
        return {
            "error_code": ErrorCode.invalid_request,
            "error_message": "only groups have coordinators here",
            "node_id": -1,
            "host": "",
            "port": -1,
        }
    broker = await context.services.brokers.coordinator(key)
    return {"node_id": broker.node_id, "host": broker.host, "port": broker.port}


API = Api(name="find_coordinator", lowest=0, highest=6, handle=handle)
