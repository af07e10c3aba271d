"""TxnOffsetCommit: refused, as InitProducerId refuses transactional ids.

Versions 0 to 5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Refuse every partition."""
    del context
    code = ErrorCode.transactional_id_authorization_failed
    return Struct(
        topics=[
            Struct(
                name=topic.name,
                partitions=[
                    Struct(partition_index=each.partition_index, error_code=code) for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


API = Api(name="txn_offset_commit", min_version=0, max_version=5, handle=handle)
