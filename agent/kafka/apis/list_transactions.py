"""ListTransactions (KIP-664): there are none.

Versions 0 to 2; 1 brought the filter by duration, 2 the one by pattern.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.codec import Struct

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext

_STATES = {
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "PrepareEpochFence",
    "Dead",
}


async def handle(request: Struct, context: RequestContext) -> Struct:
    """List nothing, and the states that nobody knows."""
    del context
    unknown = [state for state in request.state_filters if state not in _STATES]
    return Struct(unknown_state_filters=unknown, transaction_states=[])


API = Api(name="list_transactions", min_version=0, max_version=2, handle=handle)
