"""The fast path of Produce: common requests, from their bytes to those of the response.

It handles requests without a transaction that contain only valid batches, for known topics in the object
store. Small requests are validated on the event loop, larger ones in a thread of the kernel pool. All other
requests, and those with any error, take the ordinary path (`apis.records.produce`). Both paths give the same
responses; a differential test compares them. Both apply the same `AppendLimits`.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID
from weakref import WeakValueDictionary

import crc32c
import numpy as np
from typing_extensions import override

from agent.kafka.api_definition import FastPath
from agent.kafka.authorization import cached_decisions, is_allowed
from agent.kafka.codec import MalformedMessageError
from agent.kafka.codec.messages import Message
from agent.kafka.codec.writing import begin_response, finish_response
from agent.kafka.fast_path.produce_parser import ProduceParser
from agent.kafka.produce_response import (
    TOPIC_IDS_SINCE,
    ZSTD_SINCE,
    PartitionOutcome,
    build_produce_response,
    write_appended,
)
from agent.security.rights import WRITE_TOPIC
from agent.write.validation import ValidatedAppend, ValidatedBatch, append_rules_of
from catalog.model import ProducerStamp
from core.errors import SiltstoneError
from object_format.codecs.codec import Codec
from object_format.kernels.batches.layout import ATTRIBUTES
from object_format.record_batch.decompression import thread_scratch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from agent.cluster.topic_directory import TopicDirectory
    from agent.kafka.api_definition import RequestContext, RequestFrame
    from agent.kafka.codec.writing import Buffers
    from agent.kafka.fast_path.produce_parser import ProduceRequest
    from agent.write.pending_append import AppendResult, PendingAppend
    from catalog.config.values import TopicConfig
    from catalog.model import Topic
    from object_format.record_batch.append_rules import AppendLimits, AppendRules

MAX_BYTES = 256 * 1024
"""Largest request that is validated on the event loop; also the limit of its decompressed records.

Validation takes 40 µs, or 300 µs if all records are tiny or compressed. A pool needs two thread switches,
which take longer on a busy machine. Some work may take longer even for a small request, and goes to the pool:
gzip, snappy, and frames of many blocks.
"""

_MAX_BATCHES = 4096  # the smallest batch has 69 bytes
_BATCH, _CRC, _CODEC = slice(2, 14), 9, 14  # columns of the parser
_Rows = list[list[int]]
_new = tuple.__new__  # constructs a named tuple in a third of the time that its class takes


class _Target(NamedTuple):
    """A topic of a request: the bytes that name it, and the limits of its batches."""

    name: bytes
    topic: Topic
    partitions: int
    limits: AppendLimits


class FastProduce(FastPath):
    """The fast path of one agent. Belongs to the event loop."""

    def __init__(self) -> None:
        self._parser = ProduceParser(_MAX_BATCHES)
        self._scratch = np.empty(MAX_BYTES, np.uint8)
        # Requests that `try_handle` left to `handle` because decompression is too much work, by their `id`.
        self._compressed: WeakValueDictionary[int, memoryview] = WeakValueDictionary()

    @override
    def try_handle(
        self, frame: RequestFrame, context: RequestContext
    ) -> Buffers | Callable[[], Awaitable[Buffers]] | None:
        """Validate and enqueue all batches of a small request, or none of them."""
        data = frame.data
        if len(data) > MAX_BYTES:
            return None
        request = self._parse(frame, context, check_records=True)
        targets = None if request is None else _find_targets(request, frame, context)
        if request is None or targets is None:
            return None
        rows: _Rows | None = request.rows
        if request.compressed:
            rows = self._parser.decompress_quickly(data, self._scratch)
            if rows is None:
                self._compressed[id(data)] = data
        if not rows or not _have_valid_checksums(rows, data):
            return None
        return _enqueue(request, rows, targets, frame, context)

    @override
    async def handle(
        self, frame: RequestFrame, context: RequestContext
    ) -> Buffers | Callable[[], Awaitable[Buffers]] | None:
        """Validate all records in a thread, and enqueue all batches or none of them."""
        request = self._parse(frame, context, check_records=False)
        if request is None or self._was_rejected(frame.data):
            return None
        if _find_targets(request, frame, context) is None:
            return None
        by_id = context.version >= TOPIC_IDS_SINCE
        validate = partial(_validate_all, frame, len(request.rows), by_id)
        try:
            rows = await context.services.pools.kernels.run(validate)
        except SiltstoneError:
            return None  # the ordinary path fails likewise, and reports the error for each partition
        targets = _find_targets(request, frame, context)  # again, because topics may have changed meanwhile
        if rows is None or targets is None:
            return None
        return _enqueue(request, rows, targets, frame, context)

    def _was_rejected(self, data: memoryview) -> bool:
        """Return True if `try_handle` has checked the records and found an error."""
        return len(data) <= MAX_BYTES and self._compressed.pop(id(data), None) is None

    def _parse(
        self, frame: RequestFrame, context: RequestContext, *, check_records: bool
    ) -> ProduceRequest | None:
        """Return the request, or None if the fast path does not handle it."""
        if frame.data.readonly:
            return None
        request = self._parser.read(
            frame.data,
            frame.position,
            is_flexible=frame.is_flexible,
            by_id=context.version >= TOPIC_IDS_SINCE,
            check_records=check_records,
        )
        if request is None or not request.rows or request.acks not in {-1, 0, 1}:
            return None
        if context.version < ZSTD_SINCE and any(row[_CODEC] == Codec.ZSTD for row in request.rows):
            return None
        # The write path retains the whole frame, so batches must be the larger part of it.
        return request if 2 * request.size >= len(frame.data) else None


def _validate_all(frame: RequestFrame, batches: int, by_id: bool) -> _Rows | None:  # called by `partial`
    """Validate all batches of a request; return None if one is invalid. For the kernel pool."""
    parser = ProduceParser(batches)
    request = parser.read(frame.data, frame.position, is_flexible=frame.is_flexible, by_id=by_id)
    if request is None:
        return None
    rows = (
        request.rows if not request.compressed else parser.decompress_all(frame.data, thread_scratch().array)
    )
    return rows if rows is not None and _have_valid_checksums(rows, frame.data) else None


def _find_targets(
    request: ProduceRequest, frame: RequestFrame, context: RequestContext
) -> list[_Target] | None:
    """Return the topic of each row; None if a topic needs the ordinary path, or a batch is too large.

    The ordinary path refuses topics that the client may not write.
    """
    services = context.services
    by_id = context.version >= TOPIC_IDS_SINCE
    now_ms = services.clock.now_ms()
    known = cached_decisions(context, WRITE_TOPIC)
    found: list[_Target] = []
    name_start = -1
    target: _Target | None = None
    max_bytes = 0
    for row in request.rows:
        if row[0] != name_start:
            name_start = row[0]
            name = bytes(frame.data[name_start : row[1]])
            target = _find_target(name, services.directory, now_ms, by_id=by_id)
            if target is None or not (known is None or known.get(target.topic.name)):
                target = _authorized(target, context)
            if target is None:
                return None
            max_bytes = target.limits.max_message_bytes
        if target is None or not 0 <= row[2] < target.partitions or row[4] - row[3] > max_bytes:
            return None
        found.append(target)
    return found


def _authorized(target: _Target | None, context: RequestContext) -> _Target | None:
    """Return the target if the client may write to it, which was not decided before."""
    if target is None or not is_allowed(context, WRITE_TOPIC, target.topic.name, log_denied=False):
        return None
    return target


def _find_target(name: bytes, directory: TopicDirectory, now_ms: int, *, by_id: bool) -> _Target | None:
    """Return the topic if the directory has it in memory and the fast path can append to it."""
    topic = (
        directory.cached_by_id(UUID(bytes=name)) if by_id else directory.cached(str(name, "utf-8", "replace"))
    )
    rules = None if topic is None else _rules_of(topic.config)
    if topic is None or rules is None:
        return None
    return _Target(name, topic, topic.partition_count, rules.limits_at(now_ms))


@lru_cache(maxsize=4096)
def _rules_of(config: TopicConfig) -> AppendRules | None:
    """Return the append rules of a topic with that configuration, or None if it needs the ordinary path."""
    rules = append_rules_of(config)
    return None if config.storage_mode == "local" or rules.append_time else rules


def _have_valid_checksums(rows: _Rows, data: memoryview) -> bool:
    crc32 = crc32c.crc32c
    for row in rows:  # noqa: SIM110  # a generator takes twice as long
        if crc32(data[row[3] + ATTRIBUTES : row[4]]) != row[_CRC]:
            return False
    return True


def _enqueue(
    request: ProduceRequest,
    rows: _Rows,
    targets: Sequence[_Target],
    frame: RequestFrame,
    context: RequestContext,
) -> Buffers | Callable[[], Awaitable[Buffers]] | None:
    """Pass all batches to the write path; return the deferred response, or no buffers with acks 0."""
    data = frame.data
    appends: list[ValidatedAppend] = []
    for row, target in zip(rows, targets, strict=True):
        (
            partition,
            start,
            end,
            count,
            lowest,
            highest,
            keyless,
            _,
            max_timestamp,
            producer_id,
            epoch,
            sequence,
        ) = row[_BATCH]
        size = end - start
        limits = target.limits
        if keyless and limits.require_keys:
            return None
        if max_timestamp != highest or not limits.accepts_timestamps(lowest, highest):
            return None
        producer = None if producer_id < 0 else _stamp(producer_id, epoch, sequence)
        batch = _new(ValidatedBatch, (0, size, count, count, lowest, highest, producer))
        appends.append(_new(ValidatedAppend, (target.topic, partition, data[start:end], (batch,))))
    names = [target.name for target in targets]
    try:
        pending = context.services.appends.enqueue_together(appends)
    except SiltstoneError as error:
        if request.acks == 0:
            raise MalformedMessageError(f"records sent with acks 0 are rejected: {error}") from error
        return partial(_reject, appends, error, context.version, frame)
    if request.acks == 0:
        return []
    seconds = max(request.timeout, 0) / 1000 if request.acks == -1 else None
    return partial(_wait_and_respond, names, appends, pending, seconds, context.version, frame)


def _stamp(producer_id: int, epoch: int, sequence: int) -> ProducerStamp:
    return ProducerStamp(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


async def _wait_and_respond(
    names: Sequence[bytes],
    appends: Sequence[ValidatedAppend],
    pending: PendingAppend,
    seconds: float | None,
    version: int,
    frame: RequestFrame,
) -> Buffers:
    """Return the response once all batches are committed, or after the timeout."""
    if not pending.is_complete:
        try:
            async with asyncio.timeout(seconds):
                await pending.wait()
        except TimeoutError:
            pass  # partitions without a result get REQUEST_TIMED_OUT
    results = pending.partial_results()
    if all(result is not None and result.appended for result in results):
        out = begin_response(frame.correlation_id, is_flexible=frame.is_flexible)
        write_appended(out, names, appends, results, version)
        return finish_response(out)
    return _encode(appends, results, None, version, frame)


async def _reject(
    appends: Sequence[ValidatedAppend], error: SiltstoneError, version: int, frame: RequestFrame
) -> Buffers:
    """Return the response if the write path accepted nothing."""
    return _encode(appends, [None] * len(appends), error, version, frame)


def _encode(
    appends: Sequence[ValidatedAppend],
    results: Sequence[AppendResult | None],
    error: SiltstoneError | None,
    version: int,
    frame: RequestFrame,
) -> Buffers:
    """Return a response in which some partition failed."""
    by_id = version >= TOPIC_IDS_SINCE
    outcomes = [
        PartitionOutcome(
            name="" if by_id else append.topic.name,
            topic_id=append.topic.topic_id if by_id else None,
            index=append.partition,
            validated=append,
            result=result,
            error=error,
        )
        for append, result in zip(appends, results, strict=True)
    ]
    out = begin_response(frame.correlation_id, is_flexible=frame.is_flexible)
    Message.of("produce", version).write_response(out, build_produce_response(outcomes))
    return finish_response(out)
