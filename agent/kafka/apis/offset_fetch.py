"""OffsetFetch: where groups are.

Versions 1 to 10. Version 2 can ask for everything by null, 5 brought leader epochs, 7 `require_stable` (all
offsets are: there are no transactions), 8 many groups at once (KIP-709), 9 member epochs (KIP-848), 10 topic
identifiers. A partition without a committed offset has -1 and no error, and so has one that does not exist.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from agent.kafka.api import Api
from agent.kafka.apis.group_requests import group_code_of, missing_topic_code, topic_of
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from catalog.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from agent.kafka.api import Context
    from catalog.offsets import CommittedOffset

_MANY_GROUPS, _BY_ID = 8, 10
_NOWHERE = -1


async def handle(request: Struct, context: Context) -> Struct:
    """Look up one group, or each of many."""
    if context.version >= _MANY_GROUPS:
        return Struct(groups=[await _one_of_many(group, context) for group in request.groups])
    return Struct(topics=await _topics(request.group_id, request.topics, context))


def refuse(request: Struct, context: Context, error: Exception) -> Struct:
    """The error at the top, or for each partition where there is no place for it there (version 1)."""
    code = group_code_of(error)
    if context.version >= _MANY_GROUPS:
        return Struct(groups=[Struct(group_id=group.group_id, error_code=code) for group in request.groups])
    partitions = request.topics if context.version < 2 and request.topics else ()
    return Struct(
        error_code=code,
        topics=[
            Struct(
                name=wanted.name,
                partitions=[_partition(index, None, code) for index in wanted.partition_indexes],
            )
            for wanted in partitions
        ],
    )


async def _one_of_many(group: Struct, context: Context) -> Struct:
    try:
        await context.services.groups.check_fetch(group.group_id, group.member_id, group.member_epoch)
        topics = await _topics(group.group_id, group.topics, context)
    except Exception as error:  # noqa: BLE001  # each group has an error of its own
        return Struct(group_id=group.group_id, error_code=group_code_of(error))
    return Struct(group_id=group.group_id, topics=topics)


async def _topics(group_id: str, wanted: Sequence[Struct] | None, context: Context) -> list[Struct]:
    if wanted is None:
        return await _everything(group_id, context)
    by_id = context.version >= _BY_ID
    topics = [await topic_of(each, context, by_id=by_id) for each in wanted]
    found = await context.services.groups.fetch(
        group_id,
        [
            PartitionId(topic.topic_id, index)
            for topic, each in zip(topics, wanted, strict=True)
            if topic is not None
            for index in each.partition_indexes
        ],
    )
    known = {(each.topic_id, each.partition): each for each in found}
    answers = []
    for topic, each in zip(topics, wanted, strict=True):
        # By name, an unknown topic is one without offsets; an unknown identifier is an error.
        code = missing_topic_code(by_id=True) if topic is None and by_id else ErrorCode.none
        topic_id: UUID | None = None if topic is None else topic.topic_id
        answers.append(
            Struct(
                **({"topic_id": each.topic_id} if by_id else {"name": each.name}),
                partitions=[
                    _partition(index, None if topic_id is None else known.get((topic_id, index)), code)
                    for index in each.partition_indexes
                ],
            )
        )
    return answers


async def _everything(group_id: str, context: Context) -> list[Struct]:
    found = await context.services.groups.fetch_all(group_id)
    return [
        Struct(
            **({"topic_id": topic_id} if context.version >= _BY_ID else {"name": name}),
            partitions=[_partition(offset.partition, offset, ErrorCode.none) for _, offset in offsets],
        )
        for (name, topic_id), offsets in groupby(found, key=lambda row: (row[0], row[1].topic_id))
    ]


def _partition(index: int, offset: CommittedOffset | None, code: ErrorCode) -> Struct:
    return Struct(
        partition_index=index,
        committed_offset=_NOWHERE if offset is None else offset.offset,
        committed_leader_epoch=_NOWHERE if offset is None else offset.leader_epoch,
        metadata="" if offset is None else offset.metadata,
        error_code=code,
    )


API = Api(name="offset_fetch", lowest=1, highest=10, handle=handle, refuse=refuse)
