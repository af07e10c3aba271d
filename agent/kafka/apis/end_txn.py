"""EndTxn: refused, as InitProducerId refuses transactional ids.

Versions 0 to 5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.api import Api
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from agent.kafka.api import Context


async def handle(request: Struct, context: Context) -> Struct:
    """Refuse."""
    del request, context
    return Struct(error_code=ErrorCode.transactional_id_authorization_failed)


API = Api(name="end_txn", lowest=0, highest=5, handle=handle)
