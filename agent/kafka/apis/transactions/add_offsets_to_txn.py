"""AddOffsetsToTxn: adds a group to the transaction of a producer, which will commit offsets of the group.

Versions 0 to 4. Version 2 added PRODUCER_FENCED. Clients of KIP-890 do not send it: their TxnOffsetCommit
adds the group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.groups.ownership import require_group_id
from agent.kafka.api_definition import Api
from agent.kafka.apis.transactions.requests import producer_of, transaction_code_of
from agent.kafka.authorization import require
from agent.kafka.codec import Struct
from agent.security.rights import READ_GROUP
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from agent.kafka.api_definition import RequestContext

_FENCING_SINCE = 2


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Add the group."""
    try:
        producer = producer_of(request, context)
        require_group_id(request.group_id)
        require(context, READ_GROUP, request.group_id)
        await context.services.transactions.add_group(request.transactional_id, producer, request.group_id)
    except SiltstoneError as error:
        return Struct(error_code=transaction_code_of(error, knows_fencing=context.version >= _FENCING_SINCE))
    return Struct()


API = Api(name="add_offsets_to_txn", min_version=0, max_version=4, handle=handle)
