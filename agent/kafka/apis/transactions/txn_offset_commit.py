"""TxnOffsetCommit: stores offsets of a group that become its committed offsets when a transaction commits.

Versions 0 to 5:

- 2 added leader epochs.
- 3 added the member and its generation (KIP-447), which fence a consumer that has lost its partitions.
- 5: the request itself adds the group to the transaction (KIP-890).

A producer that was replaced gets INVALID_PRODUCER_EPOCH in all versions, as from Kafka's group coordinator.

Before version 5, the next transaction of a producer has the same epoch. Offsets that arrived before it began
are COORDINATOR_LOAD_IN_PROGRESS: the agent was frozen, and the client may have repeated the request at
another agent. All clients retry this error. CONCURRENT_TRANSACTIONS is fatal to Java's producers before 4.0.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from agent.groups.classic.messages import MemberIdentity
from agent.groups.ownership import require_group_id
from agent.kafka.api_definition import Api
from agent.kafka.apis.transactions.requests import producer_of, transaction_code_of
from agent.kafka.authorization import refusal, require
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from agent.kafka.offset_requests import check_offset, offset_of, topics_of
from agent.security.rights import READ_GROUP, READ_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.kafka.api_definition import RequestContext

_ADDS_GROUP_SINCE = 5


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Store the offsets, and return an error code for each partition."""
    producer = producer_of(request, context)
    require_group_id(request.group_id)
    require(context, READ_GROUP, request.group_id)
    topics = await topics_of(request.topics, context, READ_TOPIC, by_id=False)
    checked = [
        [refusal(READ_TOPIC).code] * len(wanted.partitions)
        if is_refused
        else [check_offset(partition, topic, context) for partition in wanted.partitions]
        for wanted, (topic, is_refused) in zip(request.topics, topics, strict=True)
    ]
    offsets = [
        offset_of(partition, topic)
        for wanted, (topic, _), codes in zip(request.topics, topics, checked, strict=True)
        for partition, code in zip(wanted.partitions, codes, strict=True)
        if topic is not None and code is ErrorCode.none
    ]
    identity = MemberIdentity(
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation=request.generation_id,
    )
    found: list[ErrorCode] = []
    if offsets:
        found = await context.services.groups.offsets.commit(
            request.group_id,
            identity,
            offsets,
            in_transaction=partial(
                context.services.catalog.transactions.add_offsets,
                request.transactional_id,
                producer,
                adds_group=context.version >= _ADDS_GROUP_SINCE,
                arrived_at=context.arrived_at,
            ),
        )
    committed = iter(found)
    return _response(
        request, (next(committed) if code is ErrorCode.none else code for each in checked for code in each)
    )


def error_response(request: Struct, context: RequestContext, error: Exception) -> Struct:
    """Return the same error code for every partition."""
    del context
    code = transaction_code_of(error, knows_fencing=False)
    if code is ErrorCode.concurrent_transactions:
        code = ErrorCode.coordinator_load_in_progress
    return _response(request, (code for topic in request.topics for _ in topic.partitions))


def _response(request: Struct, codes: Iterator[ErrorCode]) -> Struct:
    return Struct(
        topics=[
            Struct(
                name=topic.name,
                partitions=[
                    Struct(partition_index=partition.partition_index, error_code=next(codes))
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


API = Api(
    name="txn_offset_commit", min_version=0, max_version=5, handle=handle, error_response=error_response
)
