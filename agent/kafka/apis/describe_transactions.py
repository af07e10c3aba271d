"""DescribeTransactions (KIP-664): there are none, so no transactional id is found.

Version 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Say so of each of them."""
    del context
    return Struct(
        transaction_states=[
            Struct(
                transactional_id=each,
                error_code=ErrorCode.transactional_id_not_found,
                transaction_state="",
                topics=[],
            )
            for each in request.transactional_ids
        ]
    )


API = Api(name="describe_transactions", min_version=0, max_version=0, handle=handle)
