"""OffsetCommit: stores the offsets of a group, or of a consumer that is not a member.

Versions 2 to 10:

- 2 to 4 may give a retention time for the offsets. Version 5 removed it.
- 6 added leader epochs (KIP-320).
- 7 added static members (KIP-345).
- 9 added member epochs (KIP-848).
- 10 names topics by id.

The catalog stores offsets by topic id. A topic that is created again under an old name has no offsets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.groups.classic.messages import MemberIdentity
from agent.kafka.api_definition import Api
from agent.kafka.apis.groups.group_requests import group_code_of
from agent.kafka.authorization import refusal, require
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from agent.kafka.offset_requests import check_offset, offset_of, topics_of
from agent.runtime.cooperative_yield import CooperativeYield
from agent.security.rights import READ_GROUP, READ_TOPIC

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.kafka.api_definition import RequestContext
    from catalog.groups.offsets import CommittedOffset

_MEMBER_EPOCHS_SINCE, _TOPIC_IDS_SINCE = 9, 10
# Longer retention times are cut to this. The expiry time, commit time plus retention, stays a 64-bit integer.
_MAX_RETENTION_MS = 2**62


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Commit the offsets, and return an error code for each partition.

    The topic directory may be stale: a topic that the catalog does not know may exist again under its name.
    Such topics are looked up again, and their offsets are committed a second time.
    """
    require(context, READ_GROUP, request.group_id)
    topics = request.topics
    results, stale = await _try_commit(request, topics, context)
    if stale:
        retried, _ = await _try_commit(request, [topics[index] for index in stale], context)
        for index, codes in zip(stale, retried, strict=True):
            results[index] = codes
    yielding, responses = CooperativeYield(), []
    for wanted, codes in zip(topics, results, strict=True):
        responses.append(_topic_response(wanted, codes))
        await yielding.step(len(codes))
    return Struct(topics=responses)


async def _try_commit(
    request: Struct, wanted_topics: Sequence[Struct], context: RequestContext
) -> tuple[list[list[ErrorCode]], list[int]]:
    """Return the error codes by topic and partition, and the indexes of topics that no longer exist.

    The topic directory forgets topics that no longer exist.
    """
    checked: list[list[ErrorCode]] = []
    offsets: list[CommittedOffset] = []
    needs_coordinator = False
    yielding = CooperativeYield()
    by_id = context.version >= _TOPIC_IDS_SINCE
    found = await topics_of(wanted_topics, context, READ_TOPIC, by_id=by_id)
    for wanted, (topic, is_refused) in zip(wanted_topics, found, strict=True):
        if is_refused:
            checked.append([refusal(READ_TOPIC).code] * len(wanted.partitions))
            continue
        codes = [check_offset(partition, topic, context, by_id=by_id) for partition in wanted.partitions]
        checked.append(codes)
        if topic is not None:
            needs_coordinator |= any(code is not ErrorCode.unknown_topic_or_partition for code in codes)
            offsets += [
                offset_of(partition, topic)
                for partition, code in zip(wanted.partitions, codes, strict=True)
                if code is ErrorCode.none
            ]
        await yielding.step(len(codes))
    # As in Kafka, the coordinator is not asked about a request that names only unknown partitions.
    if not needs_coordinator:
        return checked, []
    committed = await _commit(request, offsets, context)
    missing = {
        offset.topic_id
        for offset, code in zip(offsets, committed, strict=True)
        if code is ErrorCode.unknown_topic_or_partition
    }
    if missing:
        context.services.directory.invalidate_all(missing)
    commit_codes = iter(committed)
    return (
        [[next(commit_codes) if code is ErrorCode.none else code for code in codes] for codes in checked],
        [index for index, (topic, _) in enumerate(found) if topic is not None and topic.topic_id in missing],
    )


async def _commit(
    request: Struct, offsets: list[CommittedOffset], context: RequestContext
) -> list[ErrorCode]:
    retention_ms = request.retention_time
    has_retention = retention_ms is not None and retention_ms >= 0
    return await context.services.groups.offsets.commit(
        request.group_id,
        MemberIdentity(
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id_or_member_epoch,
        ),
        offsets,
        retention_ms=min(retention_ms, _MAX_RETENTION_MS) if has_retention else None,
        supports_member_epochs=context.version >= _MEMBER_EPOCHS_SINCE,
    )


def error_response(request: Struct, context: RequestContext, error: Exception) -> Struct:
    """Return the same error code for every partition."""
    del context
    code = group_code_of(error)
    return Struct(topics=[_topic_response(each, [code] * len(each.partitions)) for each in request.topics])


def _topic_response(wanted: Struct, codes: list[ErrorCode]) -> Struct:
    return Struct(
        name=wanted.name,
        topic_id=wanted.topic_id,
        partitions=[
            Struct(partition_index=partition.partition_index, error_code=code)
            for partition, code in zip(wanted.partitions, codes, strict=True)
        ],
    )


API = Api(name="offset_commit", min_version=2, max_version=10, handle=handle, error_response=error_response)
