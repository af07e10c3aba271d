"""Fetch: batches out of the log.

Versions 4 to 18. Version 7 brought sessions (KIP-227), 11 the client's rack, 13 names topics by identifier.
A consumer that names its rack is sent to an agent there, if there is one and this is none (KIP-392): every
agent is as good as the leader. Without transactions both isolation levels see the same.
Batches that zstd compressed are not for clients below version 10.

Requests that memory can answer go by a shorter way (`fast_path.fetch`), to the same end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.fast_path.fetch import FastFetch
from agent.kafka.fetch_response import IDENTIFIERS_SINCE, FetchLimits, build_fetch_response
from agent.kafka.fetch_sessions import SessionRequest
from agent.read.memory_reads import Wanted

if TYPE_CHECKING:
    from uuid import UUID

    from agent.kafka.api_definition import RequestContext
    from agent.kafka.codec import Struct
    from agent.kafka.fetch_sessions import Key

_NO_IDENTIFIER = bytes(16)


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Read what there is, or wait for it."""
    by_id = context.version >= IDENTIFIERS_SINCE
    reads = context.services.fetch_sessions.find(session_request(request, by_id=by_id))
    reads.begin()
    limits = FetchLimits(request.max_wait, request.min_bytes, max(request.max_bytes, 0), request.rack_id)
    return await build_fetch_response(reads, limits, context)


def session_request(request: Struct, *, by_id: bool) -> SessionRequest:
    """What a request says of its session and of partitions."""
    wanted = {
        _key(topic.topic, topic.topic_id, part.partition, by_id=by_id): Wanted(
            part.partition, part.fetch_offset, max(part.partition_max_bytes, 0), part.current_leader_epoch
        )
        for topic in request.topics
        for part in topic.partitions
    }
    forgotten = [
        _key(topic.topic, topic.topic_id, partition, by_id=by_id)
        for topic in request.forgotten_topics_data
        for partition in topic.partitions
    ]
    return SessionRequest(request.session_id, request.session_epoch, wanted, forgotten, by_id)


def _key(name: str, topic_id: UUID | None, partition: int, *, by_id: bool) -> Key:
    if not by_id:
        return name.encode(), partition
    return _NO_IDENTIFIER if topic_id is None else topic_id.bytes, partition


API = Api(
    name="fetch",
    min_version=4,
    max_version=18,
    handle=handle,
    fast_path=FastFetch,
    response_has_records=True,
    max_items=100_000,
)
