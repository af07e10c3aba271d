"""FindCoordinator: names the agent that coordinates a group, or the transactions of a producer.

Versions 0 to 6. Version 1 added the key type, version 4 many keys in one request (KIP-699).

Rendezvous hashing over the live agents finds the coordinator of a group (key type 0) or of a transactional id
(1). Any agent can coordinate any transactional id: the catalog has its state. Share groups (2) are rejected
with INVALID_REQUEST.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent.kafka.api_definition import Api
from agent.kafka.authorization import is_allowed, refusal
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from agent.security.rights import DESCRIBE_GROUP, DESCRIBE_TRANSACTION

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext

_GROUP, _TRANSACTION = 0, 1
_NO_NODE = {"node_id": -1, "host": "", "port": -1}


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Return the coordinator of each key."""
    if context.version >= 4:
        found = [(key, await _find(key, request, context)) for key in request.coordinator_keys]
        return Struct(coordinators=[Struct(key=key, **values) for key, values in found])
    return Struct(**await _find(request.key, request, context))


async def _find(key: str, request: Struct, context: RequestContext) -> dict[str, Any]:
    if request.key_type not in {_GROUP, _TRANSACTION}:
        return {
            "error_code": ErrorCode.invalid_request,
            "error_message": "only groups and transactional ids have coordinators",
            **_NO_NODE,
        }
    right = DESCRIBE_TRANSACTION if request.key_type == _TRANSACTION else DESCRIBE_GROUP
    if not is_allowed(context, right, key):
        refused = refusal(right)
        return {"error_code": refused.code, "error_message": refused.message, **_NO_NODE}
    broker = (await context.services.brokers.coordinator(key)).seen_on(context.client.listener)
    if broker is None:
        return {
            "error_code": ErrorCode.coordinator_not_available,
            "error_message": f"the coordinator has no listener {context.client.listener}",
            **_NO_NODE,
        }
    return {"node_id": broker.node_id, "host": broker.host, "port": broker.port}


API = Api(name="find_coordinator", min_version=0, max_version=6, handle=handle)
