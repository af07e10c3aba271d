"""OffsetFetch: returns the committed offsets of groups.

Versions 1 to 10:

- 2 added null for all topics of the group, and an error code at the top.
- 5 added leader epochs.
- 7 added `require_stable`: an offset that an ongoing transaction may change is UNSTABLE_OFFSET_COMMIT.
- 8 added many groups in one request (KIP-709).
- 9 added member epochs (KIP-848).
- 10 names topics by id.

A partition that does not exist, or has no committed offset, has offset -1 and no error.

An unavailable catalog is COORDINATOR_LOAD_IN_PROGRESS here, and not COORDINATOR_NOT_AVAILABLE. librdkafka
(2.16) repeats the request after the first only. After the second its consumer never reads, although it stays
in its group.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.apis.groups.group_requests import group_code_of
from agent.kafka.authorization import listed_names, refusal, require
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from agent.kafka.offset_requests import missing_topic_code, topics_of
from agent.runtime.cooperative_yield import CooperativeYield
from agent.security.rights import DESCRIBE_GROUP, DESCRIBE_TOPIC
from catalog.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agent.kafka.api_definition import RequestContext
    from catalog.groups.offsets import CommittedOffset
    from catalog.model import Topic

_MANY_GROUPS_SINCE, _TOPIC_IDS_SINCE = 8, 10
_NO_OFFSET = -1


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Return the offsets of one group, or of many groups with one lookup."""
    if context.version >= _MANY_GROUPS_SINCE:
        return Struct(groups=await _groups(request, context))
    require(context, DESCRIBE_GROUP, request.group_id)
    await context.services.groups.offsets.check_fetch(request.group_id)
    (topics,) = await _topics([request], context, require_stable=request.require_stable)
    return Struct(topics=topics)


def error_response(request: Struct, context: RequestContext, error: Exception) -> Struct:
    """Return the error code at the top, or in version 1, which has no such field, for each partition."""
    code = _code_of(error)
    if context.version >= _MANY_GROUPS_SINCE:
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


def _code_of(error: BaseException) -> ErrorCode:
    code = group_code_of(error)
    if code is ErrorCode.coordinator_not_available:
        return ErrorCode.coordinator_load_in_progress
    return code


async def _groups(request: Struct, context: RequestContext) -> list[Struct]:
    """Return the response of each group. An error of one group does not affect the others."""
    groups = request.groups
    yielding = CooperativeYield()
    codes = []
    for group in groups:
        codes.append(await _check(group, context))
        await yielding.step()
    valid = [group for group, code in zip(groups, codes, strict=True) if code is ErrorCode.none]
    found: Iterator[list[Struct]] = iter(())
    try:
        found = iter(await _topics(valid, context, require_stable=request.require_stable))
    except Exception as error:  # noqa: BLE001  # the error of the groups that passed their checks
        failure = _code_of(error)
        codes = [failure if code is ErrorCode.none else code for code in codes]
    return [
        Struct(group_id=group.group_id, topics=next(found))
        if code is ErrorCode.none
        else Struct(group_id=group.group_id, error_code=code)
        for group, code in zip(groups, codes, strict=True)
    ]


async def _check(group: Struct, context: RequestContext) -> ErrorCode:
    try:
        require(context, DESCRIBE_GROUP, group.group_id)
        await context.services.groups.offsets.check_fetch(group.group_id, group.member_id, group.member_epoch)
    except Exception as error:  # noqa: BLE001  # each group has its own error code
        return _code_of(error)
    return ErrorCode.none


async def _topics(
    groups: Sequence[Struct], context: RequestContext, *, require_stable: bool
) -> list[list[Struct]]:
    """Return the topics of each group: the requested ones, or all topics in which it has offsets."""
    yielding = CooperativeYield()
    named = [each for group in groups for each in group.topics or ()]
    by_id = context.version >= _TOPIC_IDS_SINCE
    topics = iter(await topics_of(named, context, DESCRIBE_TOPIC, by_id=by_id))
    requested = [[(each, *next(topics)) for each in group.topics or ()] for group in groups]
    wanted = []
    for group, pairs in zip(groups, requested, strict=True):
        for each, topic, _ in pairs:
            if topic is not None:
                wanted += [
                    (group.group_id, PartitionId(topic.topic_id, index)) for index in each.partition_indexes
                ]
                await yielding.step(len(each.partition_indexes))
    known = await context.services.groups.offsets.fetch(wanted) if wanted else {}
    all_of = [group.group_id for group in groups if group.topics is None]
    everything = await context.services.groups.offsets.fetch_all(all_of) if all_of else {}
    responses = []
    for group, pairs in zip(groups, requested, strict=True):
        if group.topics is None:
            responses.append(
                await _everything(
                    everything[group.group_id], context, yielding, require_stable=require_stable
                )
            )
            continue
        group_topics = []
        for each, topic, is_refused in pairs:
            group_topics.append(
                _refused_topic(each, by_id=by_id)
                if is_refused
                else _topic(each, topic, known, group.group_id, by_id=by_id, require_stable=require_stable)
            )
            await yielding.step(len(each.partition_indexes))
        responses.append(group_topics)
    return responses


def _topic(
    wanted: Struct,
    topic: Topic | None,
    known: Mapping[tuple[str, PartitionId], CommittedOffset],
    group_id: str,
    *,
    by_id: bool,
    require_stable: bool,
) -> Struct:
    # An unknown topic id is an error. An unknown name is a topic without offsets.
    code = missing_topic_code(by_id=True) if topic is None and by_id else ErrorCode.none
    return Struct(
        **({"topic_id": wanted.topic_id} if by_id else {"name": wanted.name}),
        partitions=[
            _partition(
                index,
                None if topic is None else known.get((group_id, PartitionId(topic.topic_id, index))),
                code,
                require_stable=require_stable,
            )
            for index in wanted.partition_indexes
        ],
    )


def _refused_topic(wanted: Struct, *, by_id: bool) -> Struct:
    code = refusal(DESCRIBE_TOPIC).code
    return Struct(
        **({"topic_id": wanted.topic_id} if by_id else {"name": wanted.name}),
        partitions=[_partition(index, None, code) for index in wanted.partition_indexes],
    )


async def _everything(
    found: Sequence[tuple[str, CommittedOffset]],
    context: RequestContext,
    yielding: CooperativeYield,
    *,
    require_stable: bool,
) -> list[Struct]:
    visible = await listed_names(context, DESCRIBE_TOPIC, {name for name, _ in found})
    responses = []
    for (name, topic_id), offsets in groupby(found, key=lambda row: (row[0], row[1].topic_id)):
        if visible is not None and name not in visible:
            continue
        partitions = [
            _partition(offset.partition, offset, ErrorCode.none, require_stable=require_stable)
            for _, offset in offsets
        ]
        key = {"topic_id": topic_id} if context.version >= _TOPIC_IDS_SINCE else {"name": name}
        responses.append(Struct(**key, partitions=partitions))
        await yielding.step(len(partitions))
    return responses


def _partition(
    index: int, offset: CommittedOffset | None, code: ErrorCode, *, require_stable: bool = False
) -> Struct:
    if offset is not None and offset.is_unstable and require_stable:
        offset, code = None, ErrorCode.unstable_offset_commit
    return Struct(
        partition_index=index,
        committed_offset=_NO_OFFSET if offset is None else offset.offset,
        committed_leader_epoch=_NO_OFFSET if offset is None else offset.leader_epoch,
        metadata="" if offset is None else offset.metadata,
        error_code=code,
    )


API = Api(name="offset_fetch", min_version=1, max_version=10, handle=handle, error_response=error_response)
