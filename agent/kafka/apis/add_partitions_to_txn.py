"""AddPartitionsToTxn: refused, as InitProducerId refuses transactional ids.

Versions 0 to 5. From version 4 on it is for brokers among themselves, and the error stands at the top.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext

_BETWEEN_BROKERS = 4


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Refuse every partition."""
    code = ErrorCode.transactional_id_authorization_failed
    if context.version >= _BETWEEN_BROKERS:
        return Struct(error_code=code)
    return Struct(
        results_by_topic_v3_and_below=[
            Struct(
                name=topic.name,
                results_by_partition=[
                    Struct(partition_index=partition, partition_error_code=code)
                    for partition in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ]
    )


API = Api(name="add_partitions_to_txn", min_version=0, max_version=5, handle=handle)
