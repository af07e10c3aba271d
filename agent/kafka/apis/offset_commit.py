"""OffsetCommit: where a group, or a consumer without members, is.

Versions 2 to 10. Versions 2 to 4 may say how long the offsets are kept, 6 brought leader epochs (KIP-320), 7
static members, 9 member epochs (KIP-848), 10 topic identifiers.
Offsets are kept by topic identifier: a topic that is made anew under an old name begins without offsets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.groups.messages import MemberStamp
from agent.kafka.api_definition import Api
from agent.kafka.apis.group_requests import group_code_of, missing_topic_code, topics_of
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from agent.runtime.cooperative_yield import Turns
from catalog.groups.offsets import CommittedOffset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.kafka.api_definition import RequestContext
    from catalog.model import Topic

_KNOWS_EPOCHS, _BY_ID = 9, 10
# For ever; with the time of a commit added it is a 64-bit integer still.
_LONGEST_KEEP_MS = 2**62


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Commit what can be committed; each partition has a code of its own.

    A topic that is gone may be there again under its name: it is looked up anew, and committed to once more.
    """
    topics = request.topics
    checked, gone = await _try(request, topics, context)
    if gone:
        again, _ = await _try(request, [topics[number] for number in gone], context)
        for number, codes in zip(gone, again, strict=True):
            checked[number] = codes
    turns, answers = Turns(), []
    for wanted, codes in zip(topics, checked, strict=True):
        answers.append(_answer(wanted, codes))
        await turns.did(len(codes))
    return Struct(topics=answers)


async def _try(
    request: Struct, wanted_topics: Sequence[Struct], context: RequestContext
) -> tuple[list[list[ErrorCode]], list[int]]:
    """The codes of each topic's partitions, and which topics turned out to be gone; they are forgotten."""
    checked: list[list[ErrorCode]] = []
    offsets: list[CommittedOffset] = []
    is_for_coordinator = False
    turns = Turns()
    topics = await topics_of(wanted_topics, context, by_id=context.version >= _BY_ID)
    for wanted, topic in zip(wanted_topics, topics, strict=True):
        codes = [_check(partition, topic, context) for partition in wanted.partitions]
        checked.append(codes)
        if topic is not None:
            is_for_coordinator |= any(code is not ErrorCode.unknown_topic_or_partition for code in codes)
            offsets += [
                _offset_of(partition, topic)
                for partition, code in zip(wanted.partitions, codes, strict=True)
                if code is ErrorCode.none
            ]
        await turns.did(len(codes))
    # What names nothing but unknown partitions is answered without the coordinator, as Kafka does.
    if not is_for_coordinator:
        return checked, []
    committed = await _commit(request, offsets, context)
    lost = {
        offset.topic_id
        for offset, code in zip(offsets, committed, strict=True)
        if code is ErrorCode.unknown_topic_or_partition
    }
    if lost:
        context.services.directory.forget_all(lost)
    told = iter(committed)
    return (
        [[next(told) if code is ErrorCode.none else code for code in codes] for codes in checked],
        [number for number, topic in enumerate(topics) if topic is not None and topic.topic_id in lost],
    )


async def _commit(
    request: Struct, offsets: list[CommittedOffset], context: RequestContext
) -> list[ErrorCode]:
    keep_ms = request.retention_time
    return await context.services.groups.commit(
        request.group_id,
        MemberStamp(
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id_or_member_epoch,
        ),
        offsets,
        keep_ms=None if keep_ms is None or keep_ms < 0 else min(keep_ms, _LONGEST_KEEP_MS),
        knows_epochs=context.version >= _KNOWS_EPOCHS,
    )


def error_response(request: Struct, context: RequestContext, error: Exception) -> Struct:
    """The same code for every partition."""
    del context
    code = group_code_of(error)
    return Struct(topics=[_answer(wanted, [code] * len(wanted.partitions)) for wanted in request.topics])


def _check(partition: Struct, topic: Topic | None, context: RequestContext) -> ErrorCode:
    if topic is None:
        return missing_topic_code(by_id=context.version >= _BY_ID)
    if not 0 <= partition.partition_index < topic.partition_count:
        return ErrorCode.unknown_topic_or_partition
    most = context.services.groups.settings.offset_metadata_max_bytes
    if len(partition.committed_metadata or "") > most:
        return ErrorCode.offset_metadata_too_large
    return ErrorCode.none


def _offset_of(partition: Struct, topic: Topic) -> CommittedOffset:
    return CommittedOffset(
        topic_id=topic.topic_id,
        partition=partition.partition_index,
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata or "",
    )


def _answer(wanted: Struct, codes: list[ErrorCode]) -> Struct:
    return Struct(
        name=wanted.name,
        topic_id=wanted.topic_id,
        partitions=[
            Struct(partition_index=partition.partition_index, error_code=code)
            for partition, code in zip(wanted.partitions, codes, strict=True)
        ],
    )


API = Api(name="offset_commit", min_version=2, max_version=10, handle=handle, error_response=error_response)
