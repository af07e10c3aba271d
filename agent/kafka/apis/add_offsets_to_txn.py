"""AddOffsetsToTxn: refused, as InitProducerId refuses transactional ids.

Versions 0 to 4.
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
    return Struct(error_code=ErrorCode.transactional_id_authorization_failed)


API = Api(name="add_offsets_to_txn", min_version=0, max_version=4, handle=handle)
