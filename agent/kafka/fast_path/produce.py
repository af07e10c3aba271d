"""Produce requests of the usual kind, from their bytes to those of the answer, all partitions at a time.

That is a request of no transaction, of batches without a fault, for topics that are known and live in the
object store: at once where it is small, or else by a thread of the kernel pool. All others, and those of
which anything is refused, go the way of `apis.produce`; both ways lead to the same answers, which a test
compares.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID
from weakref import WeakValueDictionary

import crc32c
import numpy as np
from typing_extensions import override

from agent.kafka.api_definition import FastPath
from agent.kafka.codec import MalformedMessageError
from agent.kafka.codec.messages import Message
from agent.kafka.codec.writing import Output
from agent.kafka.fast_path.produce_parser import ProduceParser
from agent.kafka.produce_response import (
    TOPIC_IDS_SINCE,
    PartitionOutcome,
    build_produce_response,
    write_appended,
)
from agent.write.validation import ValidatedBatch, ValidatedBatches, append_rules_of
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
    from catalog.model import Topic
    from object_format.record_batch.append_rules import AppendLimits

MAX_BYTES = 256 * 1024
"""Of a request that is judged on the loop, and of its records when they are decompressed: in 40 µs, or 300
where all records are tiny or compressed. A pool takes two changes of threads, which on a busy machine cost
more than that. What may take longer goes to the pool whatever its size is: gzip, snappy, and frames of many
blocks."""

_MAX_BATCHES = 4096  # the least batch has 69 bytes
_BATCH, _CRC, _CODEC = slice(2, 14), 9, 14  # columns of the survey
_ZSTD_SINCE = 7
_Rows = list[list[int]]
_new = tuple.__new__  # of a named tuple, in a third of the time that its class takes


class _Known(NamedTuple):
    """A topic of a request: how it was named, and what its batches have to keep to."""

    name: bytes
    topic: Topic
    partitions: int
    limits: AppendLimits


class _Topics:
    """The topics of one request, by the bytes that name them."""

    def __init__(self, directory: TopicDirectory, now_ms: int, *, by_id: bool) -> None:
        self._directory = directory
        self._by_id = by_id
        self._now_ms = now_ms

    def find(self, name: bytes) -> _Known | None:
        """The topic; None for one that is not for this way."""
        if self._by_id:
            topic = self._directory.cached_by_id(UUID(bytes=name))
        else:
            topic = self._directory.cached(str(name, "utf-8", "replace"))
        if topic is None or topic.is_local:
            return None
        rules = append_rules_of(topic.config)
        if rules.append_time:
            return None
        return _Known(name, topic, topic.partition_count, rules.limits_at(self._now_ms))


class FastProduce(FastPath):
    """Takes usual requests of one agent. Belongs to the event loop."""

    def __init__(self) -> None:
        self._survey = ProduceParser(_MAX_BATCHES)
        self._room = np.empty(MAX_BYTES, np.uint8)
        # Requests whose records are too much work for `try_handle`, by their `id`, until their turn comes.
        self._unopened: WeakValueDictionary[int, memoryview] = WeakValueDictionary()

    @override
    def try_handle(
        self, frame: RequestFrame, context: RequestContext
    ) -> Buffers | Callable[[], Awaitable[Buffers]] | None:
        """Judge and enqueue everything, or nothing."""
        data = frame.data
        if len(data) > MAX_BYTES:
            return None
        request = self._read(frame, context, judges=True)
        known = None if request is None else _known(request, frame, context)
        if request is None or known is None:
            return None
        rows: _Rows | None = request.rows
        if request.compressed:
            rows = self._survey.open_quickly(data, self._room)
            if rows is None:
                self._unopened[id(data)] = data
        if not rows or not _is_intact(rows, data):
            return None
        return _enqueue(request, rows, known, frame, context)

    @override
    async def handle(
        self, frame: RequestFrame, context: RequestContext
    ) -> Buffers | Callable[[], Awaitable[Buffers]] | None:
        """As `try_handle`, with all records judged by a thread."""
        request = self._read(frame, context, judges=False)
        if request is None or self._was_judged(frame.data):
            return None
        if _known(request, frame, context) is None:
            return None
        by_id = context.version >= TOPIC_IDS_SINCE
        judge = partial(_judge_all, frame, len(request.rows), by_id)
        try:
            rows = await context.services.pools.kernels.run(judge)
        except SiltstoneError:
            return None  # the longer way hears the same, and tells each partition
        known = _known(request, frame, context)  # time has passed
        if rows is None or known is None:
            return None
        return _enqueue(request, rows, known, frame, context)

    def _was_judged(self, data: memoryview) -> bool:
        """Whether `try_handle` has looked at the records, and found them at fault."""
        return len(data) <= MAX_BYTES and self._unopened.pop(id(data), None) is None

    def _read(self, frame: RequestFrame, context: RequestContext, *, judges: bool) -> ProduceRequest | None:
        """What the request brings, if it is of the usual kind."""
        if frame.data.readonly:
            return None
        request = self._survey.read(
            frame.data,
            frame.position,
            is_flexible=frame.is_flexible,
            by_id=context.version >= TOPIC_IDS_SINCE,
            judges=judges,
        )
        if request is None or not request.rows or request.acks not in {-1, 0, 1}:
            return None
        if context.version < _ZSTD_SINCE and any(row[_CODEC] == Codec.ZSTD for row in request.rows):
            return None
        # What is taken holds on to the whole frame: it must not be the smaller part of it.
        return request if 2 * request.size >= len(frame.data) else None


def _judge_all(frame: RequestFrame, batches: int, by_id: bool) -> _Rows | None:  # by `partial`
    """All batches of a request; None when anything is not as it should be. For the kernel pool."""
    survey = ProduceParser(batches)
    request = survey.read(frame.data, frame.position, is_flexible=frame.is_flexible, by_id=by_id)
    if request is None:
        return None
    rows = request.rows if not request.compressed else survey.open(frame.data, thread_scratch().array)
    return rows if rows is not None and _is_intact(rows, frame.data) else None


def _known(request: ProduceRequest, frame: RequestFrame, context: RequestContext) -> list[_Known] | None:
    """The topic of each row; None when any is not for this way, or what it is sent is too large."""
    services = context.services
    by_id = context.version >= TOPIC_IDS_SINCE
    topics = _Topics(services.directory, services.clock.now_ms(), by_id=by_id)
    found: list[_Known] = []
    named_at = -1
    known: _Known | None = None
    max_bytes = 0
    for row in request.rows:
        if row[0] != named_at:
            named_at = row[0]
            known = topics.find(bytes(frame.data[named_at : row[1]]))
            if known is None:
                return None
            max_bytes = known.limits.max_message_bytes
        if known is None or not 0 <= row[2] < known.partitions or row[4] - row[3] > max_bytes:
            return None
        found.append(known)
    return found


def _is_intact(rows: _Rows, data: memoryview) -> bool:
    """Whether the batches have their checksums."""
    crc32 = crc32c.crc32c
    for row in rows:  # noqa: SIM110  # a generator takes twice as long
        if crc32(data[row[3] + ATTRIBUTES : row[4]]) != row[_CRC]:
            return False
    return True


def _enqueue(
    request: ProduceRequest,
    rows: _Rows,
    known: Sequence[_Known],
    frame: RequestFrame,
    context: RequestContext,
) -> Buffers | Callable[[], Awaitable[Buffers]] | None:
    """Hand everything to the write path; what gives the answer, or nothing where nobody wants one."""
    data = frame.data
    appends: list[ValidatedBatches] = []
    for row, topic in zip(rows, known, strict=True):
        partition, start, end, count, lowest, highest, keyless, _, stamped, producer_id, epoch, sequence = (
            row[_BATCH]
        )
        size = end - start
        limits = topic.limits
        if keyless and limits.require_keys:
            return None
        if stamped != highest or not limits.accepts_timestamps(lowest, highest):
            return None
        producer = None if producer_id < 0 else _stamp(producer_id, epoch, sequence)
        batch = _new(ValidatedBatch, (0, size, count, count, lowest, highest, producer))
        appends.append(_new(ValidatedBatches, (topic.topic, partition, data[start:end], (batch,))))
    names = [topic.name for topic in known]
    try:
        pending = context.services.appends.enqueue_together(appends)
    except SiltstoneError as error:
        if request.acks == 0:
            raise MalformedMessageError(f"records sent with acks 0 are refused: {error}") from error
        return partial(_refused, appends, error, context.version, frame)
    if request.acks == 0:
        return []
    seconds = max(request.timeout, 0) / 1000 if request.acks == -1 else None
    return partial(_answer, names, appends, pending, seconds, context.version, frame)


def _stamp(producer_id: int, epoch: int, sequence: int) -> ProducerStamp:
    return ProducerStamp(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


async def _answer(
    names: Sequence[bytes],
    appends: Sequence[ValidatedBatches],
    pending: PendingAppend,
    seconds: float | None,
    version: int,
    frame: RequestFrame,
) -> Buffers:
    """The answer, once everything is committed or the time is up."""
    if not pending.is_complete:
        try:
            async with asyncio.timeout(seconds):
                await pending.wait()
        except TimeoutError:
            pass  # those that are not settled say so
    results = pending.partial_results()
    if all(result is not None and result.appended for result in results):
        out = _begun(frame)
        write_appended(out, names, appends, results, version)
        return _whole(out)
    return _told(appends, results, None, version, frame)


async def _refused(
    appends: Sequence[ValidatedBatches], error: SiltstoneError, version: int, frame: RequestFrame
) -> Buffers:
    """The answer when nothing was taken."""
    return _told(appends, [None] * len(appends), error, version, frame)


def _told(
    appends: Sequence[ValidatedBatches],
    results: Sequence[AppendResult | None],
    error: SiltstoneError | None,
    version: int,
    frame: RequestFrame,
) -> Buffers:
    """An answer that is not good news for every partition."""
    by_id = version >= TOPIC_IDS_SINCE
    fates = [
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
    out = _begun(frame)
    Message.of("produce", version).write_response(out, build_produce_response(fates))
    return _whole(out)


def _begun(frame: RequestFrame) -> Output:
    """An answer's header, with room for its length."""
    out = Output()
    out.tail += bytes(4) + frame.correlation_id.to_bytes(4, "big", signed=True)
    if frame.is_flexible:
        out.tail.append(0)
    return out


def _whole(out: Output) -> Buffers:
    out.tail[:4] = (len(out) - 4).to_bytes(4, "big")
    return out.buffers()
