"""The fast path of Fetch: requests that memory can serve, from their bytes to those of the response.

It handles requests that may wait, with or without a session, for known topics and partitions whose tail is in
memory. It responds at once if there is enough, or else when enough was committed. All other requests take the
ordinary path (`fetch_response`), some of them after they waited here. Both paths give the same responses; a
differential test compares them.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from typing_extensions import override

from agent.kafka.api_definition import FastPath, RetainedBuffers
from agent.kafka.authorization import current_acls, name_check
from agent.kafka.errors import KafkaError
from agent.kafka.fast_path.fetch_encoder import encode_response, group_by_topic
from agent.kafka.fast_path.fetch_parser import MIN_VERSION, FetchParser
from agent.kafka.fast_path.fetch_targets import find_targets
from agent.kafka.fetch_response import READ_COMMITTED, TOPIC_IDS_SINCE, FetchLimits, build_fetch_response
from agent.kafka.fetch_sessions import PartitionStatus
from agent.kafka.throttling import fetch_allowance
from agent.read.memory_reads import MAX_PARTITIONS_PER_STEP, MemoryMiss
from agent.security.rights import READ_TOPIC

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.kafka.api_definition import RequestContext, RequestFrame
    from agent.kafka.codec import Struct
    from agent.kafka.fast_path.fetch_targets import FetchTargets
    from agent.kafka.fetch_sessions import FetchContext
    from agent.read.memory_reads import MemoryReads, MemoryResult
    from agent.security.acl_rules import AclIndex

_MAX_PARTITIONS = 4096
# The constructor of a named tuple is a Python function, and every partition needs a status.
_new_status = partial(tuple.__new__, PartitionStatus)


class _Request(NamedTuple):
    """A request that memory may be able to serve. `targets` are the partitions of the session's request.

    `acls` are those that let the client read them.
    """

    fetch_context: FetchContext
    targets: FetchTargets
    limits: FetchLimits
    acls: AclIndex | None

    @property
    def is_large(self) -> bool:
        """True if one step of the event loop is too short to read all partitions."""
        return sum([len(parts) for _, parts in self.targets.topics]) > MAX_PARTITIONS_PER_STEP

    def read(self, memory: MemoryReads) -> tuple[list[MemoryResult], int] | MemoryMiss:
        """Read what memory has now."""
        return memory.read(
            self.targets.topics,
            max_bytes=self.limits.max_bytes,
            min_bytes=self.limits.min_bytes,
            committed_only=self.limits.committed_only,
        )


class FastFetch(FastPath):
    """The fast path of one agent. Belongs to the event loop."""

    def __init__(self) -> None:
        self._parser = FetchParser(_MAX_PARTITIONS)
        # The frame and request that `try_handle` rejected last: usually `handle` gets the same frame next.
        self._rejected: tuple[memoryview, _Request | None] | None = None

    @override
    def try_handle(self, frame: RequestFrame, context: RequestContext) -> RetainedBuffers | None:
        """Respond if memory has enough for all partitions."""
        request = self._parse(frame, context)
        memory = context.services.memory_reads
        read = MemoryMiss.UNKNOWN if request is None or request.is_large else request.read(memory)
        if request is None or isinstance(read, MemoryMiss):
            self._rejected = frame.data, request
            return None
        try:
            _begin(request.fetch_context, read, memory)
        except KafkaError:
            return None  # a session error, which the ordinary path finds, too
        return _respond(request, *read, frame, context)

    @override
    async def handle(self, frame: RequestFrame, context: RequestContext) -> RetainedBuffers | Struct | None:
        """Wait until memory has enough; read on the ordinary path what memory cannot provide by then."""
        request = self._parse_once(frame, context)
        if request is None:
            return None
        memory, limits = context.services.memory_reads, request.limits
        read = MemoryMiss.INSUFFICIENT if request.is_large else request.read(memory)
        if read is MemoryMiss.UNKNOWN:
            return None
        _begin(request.fetch_context, read, memory)
        loop = asyncio.get_running_loop()
        max_wait_ms = min(limits.max_wait, context.services.settings.max_wait_ms)
        until = loop.time() + max_wait_ms / 1000
        epoch = context.services.epoch.current
        if read is MemoryMiss.INSUFFICIENT:
            read = await memory.read_when_available(
                request.targets.topics,
                max_bytes=limits.max_bytes,
                min_bytes=limits.min_bytes,
                until=until,
                was_read=not request.is_large,
                committed_only=limits.committed_only,
            )
        if not isinstance(read, MemoryMiss):
            if context.services.epoch.current == epoch and current_acls(context) is request.acls:
                return _respond(request, *read, frame, context)
            memory.release(read[1])  # the client was checked against the epoch or the ACLs that have ended
        rest_ms = max(round((until - loop.time()) * 1000), 0)
        return await build_fetch_response(request.fetch_context, limits._replace(max_wait=rest_ms), context)

    def _parse_once(self, frame: RequestFrame, context: RequestContext) -> _Request | None:
        """Return the request that `try_handle` parsed, if it is still current; parse it again otherwise."""
        rejected, self._rejected = self._rejected, None
        if rejected is not None and rejected[0] is frame.data:
            request = rejected[1]
            if request is None or request.fetch_context.is_current:
                return request
        return self._parse(frame, context)

    def _parse(self, frame: RequestFrame, context: RequestContext) -> _Request | None:
        """Return the request, or None if the fast path does not handle it."""
        if context.version < MIN_VERSION:
            return None
        parsed = self._parser.read(frame.data, frame.position, context.version)
        services = context.services
        if parsed is None or parsed.max_wait <= 0:
            return None
        if parsed.rack and parsed.rack != (services.brokers.own.rack or "").encode():
            return None  # the ordinary path may redirect it to another agent
        by_id = context.version >= TOPIC_IDS_SINCE
        try:
            found = find_targets(
                parsed,
                frame.data,
                services.fetch_sessions,
                services.directory,
                services.epoch.current,
                owner=context.client.principal,
                by_id=by_id,
                is_readable=name_check(context, READ_TOPIC),
            )
        except KafkaError:
            return None
        max_bytes = max(parsed.max_bytes, 0)
        allowance = None if services.quotas.active is None else fetch_allowance(context)
        if allowance is not None:
            max_bytes = min(max_bytes, allowance.max_bytes)
            if allowance.throttle_ms:
                found = None  # the ordinary path responds with nothing
        if found is None:
            return None
        limits = FetchLimits(
            parsed.max_wait,
            parsed.min_bytes,
            max_bytes,
            parsed.rack.decode(),
            committed_only=parsed.isolation_level == READ_COMMITTED,
        )
        return _Request(*found, limits, current_acls(context))


def _begin(
    fetch_context: FetchContext,
    read: tuple[Sequence[MemoryResult], int] | MemoryMiss,
    memory: MemoryReads,
) -> None:
    """Apply the request to its session; release what was read if the session rejects it."""
    try:
        fetch_context.begin()
    except BaseException:
        if not isinstance(read, MemoryMiss):
            memory.release(read[1])
        raise


def _status(read: MemoryResult) -> PartitionStatus:
    state, records = read
    return _new_status((state.high_watermark, state.log_start_offset, records is not None, False, False))


def _respond(
    request: _Request, found: Sequence[MemoryResult], size: int, frame: RequestFrame, context: RequestContext
) -> RetainedBuffers:
    """Return the encoded response, which retains `size` bytes of the memory for fetches."""
    release = partial(context.services.memory_reads.release, size)
    try:
        session_id, included = request.fetch_context.complete(map(_status, found))
        topics = group_by_topic(request.targets, found, included)
        buffers = encode_response(session_id, topics, frame.correlation_id, context.version)
    except BaseException:
        release()
        raise
    return RetainedBuffers(buffers, [release])
