"""OffsetFetch: where groups are.

Versions 1 to 10. Version 2 can ask for everything by null, 5 brought leader epochs, 7 `require_stable` (all
offsets are: there are no transactions), 8 many groups at once (KIP-709), 9 member epochs (KIP-848), 10 topic
identifiers. A partition without a committed offset has -1 and no error, and so has one that does not exist.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.apis.group_requests import group_code_of, missing_topic_code, topics_of
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from agent.runtime.cooperative_yield import Turns
from catalog.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agent.kafka.api_definition import RequestContext
    from catalog.groups.offsets import CommittedOffset
    from catalog.model import Topic

_MANY_GROUPS, _BY_ID = 8, 10
_NOWHERE = -1


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Look up one group, or all of many together."""
    if context.version >= _MANY_GROUPS:
        return Struct(groups=await _groups(request.groups, context))
    await context.services.groups.check_fetch(request.group_id)
    (topics,) = await _topics([request], context)
    return Struct(topics=topics)


def error_response(request: Struct, context: RequestContext, error: Exception) -> Struct:
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


async def _groups(groups: Sequence[Struct], context: RequestContext) -> list[Struct]:
    """What is said of each group; what is wrong with one does not matter to the others."""
    turns = Turns()
    codes = []
    for group in groups:
        codes.append(await _check(group, context))
        await turns.did()
    asked = [group for group, code in zip(groups, codes, strict=True) if code is ErrorCode.none]
    found: Iterator[list[Struct]] = iter(())
    try:
        found = iter(await _topics(asked, context))
    except Exception as error:  # noqa: BLE001  # those who were told why already are not told this
        away = group_code_of(error)
        codes = [away if code is ErrorCode.none else code for code in codes]
    return [
        Struct(group_id=group.group_id, topics=next(found))
        if code is ErrorCode.none
        else Struct(group_id=group.group_id, error_code=code)
        for group, code in zip(groups, codes, strict=True)
    ]


async def _check(group: Struct, context: RequestContext) -> ErrorCode:
    try:
        await context.services.groups.check_fetch(group.group_id, group.member_id, group.member_epoch)
    except Exception as error:  # noqa: BLE001  # each group has an error of its own
        return group_code_of(error)
    return ErrorCode.none


async def _topics(groups: Sequence[Struct], context: RequestContext) -> list[list[Struct]]:
    """The topics of each group: those that are asked for, or all that it has offsets in."""
    turns = Turns()
    named = [each for group in groups for each in group.topics or ()]
    by_id = context.version >= _BY_ID
    topics = iter(await topics_of(named, context, by_id=by_id))
    asked = [[(each, next(topics)) for each in group.topics or ()] for group in groups]
    wanted = []
    for group, pairs in zip(groups, asked, strict=True):
        for each, topic in pairs:
            if topic is not None:
                wanted += [
                    (group.group_id, PartitionId(topic.topic_id, index)) for index in each.partition_indexes
                ]
                await turns.did(len(each.partition_indexes))
    known = await context.services.groups.fetch(wanted) if wanted else {}
    all_of = [group.group_id for group in groups if group.topics is None]
    everything = await context.services.groups.fetch_all(all_of) if all_of else {}
    answers = []
    for group, pairs in zip(groups, asked, strict=True):
        if group.topics is None:
            answers.append(await _everything(everything[group.group_id], context, turns))
            continue
        told = []
        for each, topic in pairs:
            told.append(_topic(each, topic, known, group.group_id, by_id=by_id))
            await turns.did(len(each.partition_indexes))
        answers.append(told)
    return answers


def _topic(
    wanted: Struct,
    topic: Topic | None,
    known: Mapping[tuple[str, PartitionId], CommittedOffset],
    group_id: str,
    *,
    by_id: bool,
) -> Struct:
    # By name, an unknown topic is one without offsets; an unknown identifier is an error.
    code = missing_topic_code(by_id=True) if topic is None and by_id else ErrorCode.none
    return Struct(
        **({"topic_id": wanted.topic_id} if by_id else {"name": wanted.name}),
        partitions=[
            _partition(
                index,
                None if topic is None else known.get((group_id, PartitionId(topic.topic_id, index))),
                code,
            )
            for index in wanted.partition_indexes
        ],
    )


async def _everything(
    found: Sequence[tuple[str, CommittedOffset]], context: RequestContext, turns: Turns
) -> list[Struct]:
    answers = []
    for (name, topic_id), offsets in groupby(found, key=lambda row: (row[0], row[1].topic_id)):
        partitions = [_partition(offset.partition, offset, ErrorCode.none) for _, offset in offsets]
        key = {"topic_id": topic_id} if context.version >= _BY_ID else {"name": name}
        answers.append(Struct(**key, partitions=partitions))
        await turns.did(len(partitions))
    return answers


def _partition(index: int, offset: CommittedOffset | None, code: ErrorCode) -> Struct:
    return Struct(
        partition_index=index,
        committed_offset=_NOWHERE if offset is None else offset.offset,
        committed_leader_epoch=_NOWHERE if offset is None else offset.leader_epoch,
        metadata="" if offset is None else offset.metadata,
        error_code=code,
    )


API = Api(name="offset_fetch", min_version=1, max_version=10, handle=handle, error_response=error_response)
