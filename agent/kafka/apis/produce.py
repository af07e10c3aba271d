"""Produce: batches into the log.

Versions 3 to 13; 0 to 2, which carried older record formats, are advertised as Kafka 4 does (librdkafka stops
compressing otherwise, KAFKA-18659) and not served. Version 13 names topics by identifier. acks 1 and all mean
the same: the answer comes after the catalog's commit. With acks 0 there is no answer, and a refusal closes
the connection, as in Kafka, but for one by the commit, which comes later (docs/reference/kafka.md).
`timeout` holds for acks all alone, as in Kafka.

Requests of a usual kind go by a shorter way (`fast_path.produce`), to the same end.

Batches are validated in the kernel pool, or on the spot where that takes less than the way there and back,
and enqueued in the order of the connection's requests; what waits for the commit does not keep the next
request waiting. A full write buffer or pool is NOT_ENOUGH_REPLICAS, a file that
could not be committed NOT_ENOUGH_REPLICAS_AFTER_APPEND. Transactions are refused.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog

from agent.kafka.api_definition import Api, DeferredResponse
from agent.kafka.codec import MalformedMessageError
from agent.kafka.errors import ErrorCode, KafkaError
from agent.kafka.fast_path.produce import FastProduce
from agent.kafka.produce_response import IDENTIFIERS_SINCE, PartitionOutcome, build_produce_response
from agent.kafka.topics.lookup import check_partition, find_each
from agent.write.validation import validate
from core.errors import SiltstoneError
from object_format.buffers import readable
from object_format.codecs.codec import Codec
from object_format.errors import InvalidRecordError, RejectionReason
from object_format.record_batch.headers import (
    is_marked_compressed,
    peek_attributes,
    peek_producer_id,
    scan_until_malformed,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.kafka.api_definition import RequestContext
    from agent.kafka.codec import Struct
    from agent.write.pending_append import PendingAppend
    from catalog.model import Topic

_log = structlog.get_logger(__name__)
_ZSTD_SINCE = 7
# Uncompressed batches of that many bytes are judged in 50 µs, or in 300 µs where all records are tiny; a pool
# takes two changes of threads, which on a busy machine cost more than that.
_JUDGED_ON_THE_SPOT_BYTES = 256 * 1024


@dataclass(slots=True, kw_only=True)
class _Item(PartitionOutcome):
    """One partition of a request, and how far it has come."""

    records: memoryview | None
    topic: Topic | None = None
    pending: PendingAppend | None = None


async def handle(request: Struct, context: RequestContext) -> DeferredResponse | None:
    """Validate and enqueue; the answer comes with the commit."""
    items = [
        _Item(name=topic.name, topic_id=topic.topic_id, index=part.index, records=part.records)
        for topic in request.topic_data
        for part in topic.partition_data
    ]
    refusal = _refusal(request)
    if refusal is not None:
        for item in items:
            item.error = refusal
    else:
        await _find_topics(items, context)
        now_ms = context.services.clock.now_ms()
        if _is_quickly_judged(items):
            _validate(items, context.version, now_ms)
        else:
            await _validate_elsewhere(items, context, now_ms)
        _enqueue(items, context)
        await _admit_refused(items, context)
    for item in items:
        item.records = None  # what the write path needs of it, it holds
    if request.acks == 0:
        _require_none_refused(items)
        return None
    seconds = max(request.timeout, 0) / 1000 if request.acks == -1 else None
    return DeferredResponse(partial(_answer, items, seconds))


def _refusal(request: Struct) -> KafkaError | None:
    if request.acks not in {-1, 0, 1}:
        return KafkaError(ErrorCode.invalid_required_acks, f"acks cannot be {request.acks}")
    if request.transactional_id is not None:
        return KafkaError(
            ErrorCode.transactional_id_authorization_failed, "transactions are not supported yet"
        )
    return None


async def _find_topics(items: Sequence[_Item], context: RequestContext) -> None:
    by_id = context.version >= IDENTIFIERS_SINCE
    keys = ((item.name, item.topic_id) for item in items)
    found = await find_each(context.services.directory, keys, by_id=by_id)
    for item in items:
        topic = found[item.name, item.topic_id]
        if isinstance(topic, SiltstoneError):
            item.error = topic
            continue
        item.topic = topic
        try:
            check_partition(topic, item.index)
        except SiltstoneError as error:
            item.error = error


def _is_quickly_judged(items: Sequence[_Item]) -> bool:
    """Whether it is not worth a change of threads; what is compressed can be of any size."""
    size = 0
    for item in items:
        if item.records is not None and item.error is None:
            size += len(item.records)
            if size > _JUDGED_ON_THE_SPOT_BYTES or is_marked_compressed(item.records):
                return False
    return True


async def _validate_elsewhere(items: Sequence[_Item], context: RequestContext, now_ms: int) -> None:
    """As `_validate`, by the kernel pool; when that is full, nothing is judged: clients send it again."""
    try:
        await context.services.pools.kernels.run(partial(_validate, items, context.version, now_ms))
    except SiltstoneError as error:
        for item in items:
            item.error = item.error or error


def _validate(items: Sequence[_Item], version: int, now_ms: int) -> None:
    """Judge what may be judged."""
    for item in items:
        if item.error is None and item.topic is not None:
            try:
                records = _one_batch(item.records, version)
                item.validated = validate(item.topic, item.index, records, now_ms=now_ms)
            except Exception as error:  # noqa: BLE001  # it is this partition's answer
                item.error = error
    _leave_large_frames(items)


def _leave_large_frames(items: Sequence[_Item]) -> None:
    """Copy what is valid where it is the smaller part of its frame: it would keep all of that in memory."""
    valid = [each for each in items if each.validated is not None and each.error is None]
    kept = sum([len(each.validated.data) for each in valid if each.validated])
    for item in valid:
        validated = item.validated
        if validated is not None and 2 * kept < _size_of_owner(validated.data):
            item.validated = validated._replace(data=memoryview(bytearray(validated.data)))


def _size_of_owner(view: memoryview) -> int:
    return memoryview(view.obj).nbytes


def _one_batch(records: memoryview | None, version: int) -> memoryview:
    """The records, if their header is one that this version of the request may carry."""
    if not records:
        raise KafkaError(ErrorCode.invalid_record, "a produce request must hold one batch for a partition")
    attributes = peek_attributes(records)
    if attributes is None:
        return records  # validation says what is wrong
    if attributes.size < len(records):
        _require_one(records)
    if attributes.is_transactional:
        raise KafkaError(ErrorCode.invalid_txn_state, "transactions are not supported yet")
    if version < _ZSTD_SINCE and attributes.codec == Codec.ZSTD:
        raise KafkaError(
            ErrorCode.unsupported_compression_type, f"zstd needs produce requests of version {_ZSTD_SINCE}"
        )
    return records


def _require_one(records: memoryview) -> None:
    """Refuse a second batch before any is judged: what opening one costs is no matter of its size."""
    rows, _, _ = scan_until_malformed(readable(records))
    if len(rows) > 1:
        raise KafkaError(
            ErrorCode.invalid_record,
            f"a produce request must hold one batch for a partition, not {len(rows)}",
        )


def _enqueue(items: Sequence[_Item], context: RequestContext) -> None:
    valid = [item for item in items if item.error is None and item.validated is not None]
    try:
        pending = context.services.appends.enqueue([item.validated for item in valid if item.validated])
    except SiltstoneError as error:
        for item in valid:
            item.error = error
        return
    for item, appended in zip(valid, pending, strict=True):
        item.pending = appended


async def _admit_refused(items: Sequence[_Item], context: RequestContext) -> None:
    """Let go on, with any number, whose first batch is refused for good: aiokafka counts on from it.

    Before the connection's next request is taken. What a damaged batch says of its producer is not believed.
    """
    refused = [
        (item.topic.topic_id, item.index, producer_id)
        for item in items
        if isinstance(item.error, InvalidRecordError)
        and item.error.reason is not RejectionReason.CORRUPT_MESSAGE
        if item.topic is not None and item.records is not None
        if (producer_id := peek_producer_id(item.records)) >= 0
    ]
    if not refused:
        return
    services = context.services
    try:
        await services.pools.catalog.run(partial(services.catalog.producers.admit, refused))
    except SiltstoneError as error:
        _log.warning("producers whose batches were refused may be unable to go on", reason=str(error))


def _require_none_refused(items: Sequence[_Item]) -> None:
    for item in items:
        if item.error is not None:
            raise MalformedMessageError(f"records sent with acks 0 are refused: {item.error}")


async def _answer(items: Sequence[_Item], seconds: float | None) -> Struct:
    """The answer, once everything is committed or the time is up."""
    try:
        async with asyncio.timeout(seconds):
            for item in items:
                if item.pending is not None:
                    await item.pending.wait()
    except TimeoutError:
        pass  # those that are not settled say so
    for item in items:
        results = None if item.pending is None else item.pending.results()
        item.result = None if results is None else results[0]
    return build_produce_response(items)


API = Api(
    name="produce",
    min_version=3,
    max_version=13,
    handle=handle,
    fast_path=FastProduce,
    advertised_min_version=0,
    outlives_client=True,
    request_has_records=True,
)
