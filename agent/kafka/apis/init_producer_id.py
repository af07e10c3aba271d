"""InitProducerId: identifiers for idempotent producers.

Versions 0 to 5. Each call without a transactional id gives a new producer id in epoch 0, as in Kafka,
whatever the producer had before (KIP-360). Transactions are refused as not authorized: clients take that as
final, and repeat most other codes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Give a new producer id."""
    if request.transactional_id == "":
        return Struct(error_code=ErrorCode.invalid_request, producer_epoch=-1)
    if request.transactional_id is not None:
        return Struct(error_code=ErrorCode.transactional_id_authorization_failed, producer_epoch=-1)
    services = context.services
    producer_id = await services.pools.catalog.run(services.catalog.producers.new_id)
    return Struct(producer_id=producer_id, producer_epoch=0)


API = Api(name="init_producer_id", min_version=0, max_version=5, handle=handle)
