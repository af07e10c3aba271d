"""TxnOffsetCommit: refused, as InitProducerId refuses transactional ids.

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


API = Api(name="txn_offset_commit", lowest=0, highest=5, handle=handle)
