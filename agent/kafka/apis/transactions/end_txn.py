"""EndTxn: commits or aborts the transaction of a producer.

Versions 0 to 5. Version 2 added PRODUCER_FENCED. From version 5 on (KIP-890), the producer continues with the
id and epoch of the response.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.apis.transactions.requests import producer_of, transaction_code_of
from agent.kafka.codec import Struct
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext

_FENCING_SINCE = 2
_EPOCH_BUMPS_SINCE = 5


async def handle(request: Struct, context: RequestContext) -> Struct:
    """End the transaction."""
    try:
        producer = await context.services.transactions.end(
            request.transactional_id,
            producer_of(request, context),
            commits=request.committed,
            arrived_at=context.arrived_at,
            bumps_epoch=context.version >= _EPOCH_BUMPS_SINCE,
        )
    except SiltstoneError as error:
        return Struct(error_code=transaction_code_of(error, knows_fencing=context.version >= _FENCING_SINCE))
    return Struct(producer_id=producer.producer_id, producer_epoch=producer.producer_epoch)


API = Api(name="end_txn", min_version=0, max_version=5, handle=handle)
