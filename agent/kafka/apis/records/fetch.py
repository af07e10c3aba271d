"""Fetch: reads record batches.

Versions 4 to 18:

- 7 added fetch sessions (KIP-227).
- 10 added zstd. As in Kafka, earlier versions receive such batches, too: most of their clients can read them.
- 11 added the rack of the client (KIP-392). A consumer that names its rack is sent to an agent of this rack,
  unless this agent is one. Every agent can serve every topic in the object store.
- 13 names topics by id.

A client in an earlier or later leader epoch gets FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH, and validates
its position (KIP-320). The epoch of the last fetched offset (version 12) is ignored: no consumer sends it.

With isolation level READ_COMMITTED, a partition ends at its last stable offset, and the response lists the
aborted transactions, whose batches the client drops.

A client that has used up its quota gets an empty response, and a client with a quota at most what its windows
allow (`agent.kafka.throttling`). Kafka withholds the response that exceeds the quota; the agent sends it, and
throttles the next one.

The fast path serves requests whose records are in memory. It gives the same responses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.kafka.api_definition import Api
from agent.kafka.codec import Struct
from agent.kafka.fast_path.fetch import FastFetch
from agent.kafka.fetch_response import READ_COMMITTED, TOPIC_IDS_SINCE, FetchLimits, build_fetch_response
from agent.kafka.fetch_sessions import SessionRequest
from agent.kafka.throttling import fetch_allowance
from agent.read.memory_reads import PartitionRead

if TYPE_CHECKING:
    from uuid import UUID

    from agent.kafka.api_definition import RequestContext
    from agent.kafka.fetch_sessions import PartitionKey
    from agent.security.identity import Principal

_NO_TOPIC_ID = bytes(16)


async def handle(request: Struct, context: RequestContext) -> Struct:
    """Read the available records, or wait for `min_bytes` of them."""
    by_id = context.version >= TOPIC_IDS_SINCE
    reads = context.services.fetch_sessions.find(
        session_request(request, context.client.principal, by_id=by_id)
    )
    reads.begin()
    max_bytes = max(request.max_bytes, 0)
    if (allowance := fetch_allowance(context)) is not None:
        if allowance.throttle_ms:
            return Struct(throttle_time=allowance.throttle_ms, session_id=reads.complete_throttled())
        max_bytes = min(max_bytes, allowance.max_bytes)
    limits = FetchLimits(
        request.max_wait,
        request.min_bytes,
        max_bytes,
        request.rack_id,
        committed_only=request.isolation_level == READ_COMMITTED,
    )
    return await build_fetch_response(reads, limits, context)


def session_request(request: Struct, owner: Principal, *, by_id: bool) -> SessionRequest:
    """Return the session and the partitions that a request of `owner` names."""
    wanted = {
        _key(topic.topic, topic.topic_id, part.partition, by_id=by_id): PartitionRead(
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
    return SessionRequest(owner, request.session_id, request.session_epoch, wanted, forgotten, by_id)


def _key(name: str, topic_id: UUID | None, partition: int, *, by_id: bool) -> PartitionKey:
    if not by_id:
        return name.encode(), partition
    return _NO_TOPIC_ID if topic_id is None else topic_id.bytes, partition


API = Api(
    name="fetch",
    min_version=4,
    max_version=18,
    handle=handle,
    fast_path=FastFetch,
    response_has_records=True,
    max_items=100_000,
)
