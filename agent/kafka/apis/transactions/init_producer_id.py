"""InitProducerId: assigns producer ids to idempotent producers.

Versions 0 to 5. Version 3 added the current id and epoch of the producer (KIP-360).

As in Kafka, each request without a transactional id receives a new producer id with epoch 0. An earlier id of
the producer does not matter. A transactional id is rejected with TRANSACTIONAL_ID_AUTHORIZATION_FAILED, which
clients treat as final; they retry after most other codes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.authorization import is_allowed, is_allowed_on_any, refusal
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from agent.security.rights import IDEMPOTENT_WRITE, WRITE_TOPIC

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Assign a new producer id."""
    if request.transactional_id == "":
        return Struct(error_code=ErrorCode.invalid_request, producer_epoch=-1)
    if request.transactional_id is not None:
        return Struct(error_code=ErrorCode.transactional_id_authorization_failed, producer_epoch=-1)
    if not is_allowed(context, IDEMPOTENT_WRITE, log_denied=False) and not is_allowed_on_any(
        context, WRITE_TOPIC
    ):
        return Struct(error_code=refusal(IDEMPOTENT_WRITE).code, producer_epoch=-1)
    services = context.services
    producer_id = await services.pools.catalog.run(services.catalog.producers.new_id)
    return Struct(producer_id=producer_id, producer_epoch=0)


API = Api(name="init_producer_id", min_version=0, max_version=5, handle=handle)
