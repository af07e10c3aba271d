"""Produce: appends record batches.

Versions 3 to 13. Version 7 added zstd, version 9 is the first flexible one, version 13 names topics by id.
Versions 0 to 2 carried older record formats. They are advertised but not served, as in Kafka 4: librdkafka
stops compressing otherwise (KAFKA-18659).

Acknowledgements:

- `acks=1` and `acks=all` are the same: the response follows the catalog's commit.
- `acks=0` has no response. As in Kafka, a request that is rejected closes the connection. A rejection by the
  commit does not, because it comes after later requests were accepted (docs/reference/kafka.md).
- As in Kafka, `timeout` applies to `acks=all` only.

Errors: a full write buffer or kernel pool is NOT_ENOUGH_REPLICAS. A file that could not be committed is
NOT_ENOUGH_REPLICAS_AFTER_APPEND. Behind a batch with an error that clients retry, the gap before the next
batches of its producer is NOT_ENOUGH_REPLICAS for a time (`agent.write.failed_producers`).

A transactional batch must belong to a partition that was added to its producer's transaction. From version 12
on, it adds the partition itself (KIP-890). Its producer must be that of the request's transactional id, which
the commit verifies. As in Kafka, a request with transactional batches is refused as a whole if it names no
transactional id, or if these batches have several producers.

Batches are validated in the kernel pool, or on the event loop if they are small, and enqueued in the order of
the connection's requests. The next request does not wait for the commit.

The fast path serves requests of the usual form. It gives the same responses.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog

from agent.kafka.api_definition import Api, DeferredResponse
from agent.kafka.authorization import current_acls, is_allowed, refusal, refused_names
from agent.kafka.codec import MalformedMessageError
from agent.kafka.errors import ErrorCode, KafkaError, code_of
from agent.kafka.fast_path.produce import FastProduce
from agent.kafka.produce_response import TOPIC_IDS_SINCE, ZSTD_SINCE, PartitionOutcome, build_produce_response
from agent.kafka.topic_lookup import check_partition, find_permitted_topics
from agent.security.rights import WRITE_TOPIC, WRITE_TRANSACTION
from agent.write.validation import validate
from core.errors import SiltstoneError
from object_format.buffers import readable
from object_format.codecs.codec import Codec
from object_format.errors import InvalidRecordError, RejectionReason
from object_format.record_batch.headers import (
    is_marked_compressed,
    peek_attributes,
    peek_producer,
    scan_until_malformed,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.kafka.api_definition import RequestContext
    from agent.kafka.codec import Struct
    from agent.write.pending_append import PendingAppend
    from catalog.model import Topic

_log = structlog.get_logger(__name__)
_ADDS_PARTITIONS_SINCE = 12
# Uncompressed batches of this size take 50 µs to validate, or 300 µs if all records are tiny. The pool costs
# two thread switches, which take longer than that on a busy machine.
_MAX_INLINE_VALIDATION_BYTES = 256 * 1024


@dataclass(slots=True, kw_only=True)
class _Item(PartitionOutcome):
    """One partition of a request and the state of its append."""

    records: memoryview | None
    topic: Topic | None = None
    pending: PendingAppend | None = None


async def handle(request: Struct, context: RequestContext) -> DeferredResponse | None:
    """Validate and enqueue the batches; the response follows the commit."""
    items = [
        _Item(name=topic.name, topic_id=topic.topic_id, index=part.index, records=part.records)
        for topic in request.topic_data
        for part in topic.partition_data
    ]
    acls = current_acls(context)
    refused = _refusal(request, context)
    if refused is not None:
        for item in items:
            item.error = refused
    else:
        await _find_topics(items, context)
        now_ms = context.services.clock.now_ms()
        if _is_validated_inline(items):
            _validate(items, request, context.version, now_ms)
        else:
            await _validate_in_pool(items, request, context, now_ms)
        if current_acls(context) is not acls:
            await _authorize_again(items, request, context)
        _enqueue(items, context)
        await _admit_rejected_producers(items, context)
        _note_failure(items, context)
    for item in items:
        item.records = None  # the write path keeps a reference to the bytes that it needs
    if request.acks == 0:
        _require_none_rejected(items)
        return None
    seconds = max(request.timeout, 0) / 1000 if request.acks == -1 else None
    return DeferredResponse(partial(_respond, items, seconds))


def _refusal(request: Struct, context: RequestContext) -> KafkaError | None:
    if request.acks not in {-1, 0, 1}:
        return KafkaError(ErrorCode.invalid_required_acks, f"acks cannot be {request.acks}")
    name = request.transactional_id
    if name is not None and not is_allowed(context, WRITE_TRANSACTION, name):
        return refusal(WRITE_TRANSACTION)
    return None


async def _find_topics(items: Sequence[_Item], context: RequestContext) -> None:
    by_id = context.version >= TOPIC_IDS_SINCE
    keys = ((item.name, item.topic_id) for item in items)
    found = await find_permitted_topics(context, keys, WRITE_TOPIC, by_id=by_id)
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


async def _authorize_again(items: Sequence[_Item], request: Struct, context: RequestContext) -> None:
    """Reject the batches of topics whose right was revoked while the request waited for its validation."""
    refused = _refusal(request, context)
    names = {item.topic.name for item in items if item.topic is not None}
    refused_topics = await refused_names(context, WRITE_TOPIC, names)
    for item in items:
        if refused is not None:
            item.error = refused
        elif item.topic is not None and item.topic.name in refused_topics:
            item.error = refusal(WRITE_TOPIC)


def _is_validated_inline(items: Sequence[_Item]) -> bool:
    """Return True if validation takes less time than a thread switch.

    Compressed batches go to the pool: their size says nothing about the size of their records.
    """
    size = 0
    for item in items:
        if item.records is not None and item.error is None:
            size += len(item.records)
            if size > _MAX_INLINE_VALIDATION_BYTES or is_marked_compressed(item.records):
                return False
    return True


async def _validate_in_pool(
    items: Sequence[_Item], request: Struct, context: RequestContext, now_ms: int
) -> None:
    """Validate in the kernel pool. If it is full, reject every batch with an error that clients retry."""
    try:
        await context.services.pools.kernels.run(partial(_validate, items, request, context.version, now_ms))
    except SiltstoneError as error:
        for item in items:
            item.error = item.error or error


def _validate(items: Sequence[_Item], request: Struct, version: int, now_ms: int) -> None:
    """Validate the batches of all partitions that have no error yet."""
    for item in items:
        if item.error is None and item.topic is not None:
            try:
                records = _one_batch(item.records, version)
                item.validated = validate(
                    item.topic,
                    item.index,
                    records,
                    now_ms=now_ms,
                    transactional_id=request.transactional_id,
                    adds_partitions=version >= _ADDS_PARTITIONS_SINCE,
                )
            except Exception as error:  # noqa: BLE001  # becomes this partition's error code
                item.error = error
    _check_transactions(items, request.transactional_id)
    _copy_out_of_large_frames(items)


def _copy_out_of_large_frames(items: Sequence[_Item]) -> None:
    """Copy valid batches that are less than half of their frame.

    A reference to them would keep the whole frame in memory.
    """
    valid = [each for each in items if each.validated is not None and each.error is None]
    valid_bytes = sum([len(each.validated.data) for each in valid if each.validated])
    for item in valid:
        validated = item.validated
        if validated is not None and 2 * valid_bytes < _size_of_owner(validated.data):
            item.validated = validated._replace(data=memoryview(bytearray(validated.data)))


def _size_of_owner(view: memoryview) -> int:
    return memoryview(view.obj).nbytes


def _one_batch(records: memoryview | None, version: int) -> memoryview:
    """Return the records if this version of the request may carry a batch with their header."""
    if not records:
        raise KafkaError(ErrorCode.invalid_record, "a produce request must have one batch for each partition")
    attributes = peek_attributes(records)
    if attributes is None:
        return records  # validation reports the error
    if attributes.size < len(records):
        _require_single_batch(records)
    if version < ZSTD_SINCE and attributes.codec == Codec.ZSTD:
        raise KafkaError(
            ErrorCode.unsupported_compression_type, f"zstd needs produce requests of version {ZSTD_SINCE}"
        )
    return records


def _check_transactions(items: Sequence[_Item], transactional_id: str | None) -> None:
    """Refuse transactional batches without authorization, or of several producers."""
    transactional = [each for each in items if each.validated is not None and each.validated.is_transactional]
    if not transactional:
        return
    refused = _refusal_of_transactions(transactional, transactional_id)
    if refused is not None:
        for item in items:
            item.error = item.error or refused


def _refusal_of_transactions(items: Sequence[_Item], transactional_id: str | None) -> KafkaError | None:
    """Return why a whole request with these transactional batches is refused, or None."""
    if transactional_id is None:
        return KafkaError(
            ErrorCode.transactional_id_authorization_failed,
            "a request with transactional batches must name its transactional id",
        )
    stamps = [batch.producer for item in items if item.validated for batch in item.validated.batches]
    if len({(each.producer_id, each.producer_epoch) for each in stamps if each is not None}) > 1:
        return KafkaError(
            ErrorCode.invalid_producer_id_mapping,
            "the transactional batches of a request must have one producer",
        )
    return None


def _require_single_batch(records: memoryview) -> None:
    """Reject a second batch before any batch is decompressed.

    The cost of decompression is not bounded by the size of a batch.
    """
    rows, _, _ = scan_until_malformed(readable(records))
    if len(rows) > 1:
        raise KafkaError(
            ErrorCode.invalid_record,
            f"a produce request must have one batch for each partition, not {len(rows)}",
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


async def _admit_rejected_producers(items: Sequence[_Item], context: RequestContext) -> None:
    """Let producers whose first batch was rejected continue with any sequence number.

    aiokafka counts a batch that the broker rejects, so its next batch has a later sequence number. This must
    happen before the connection's next request is processed. The producer id of a corrupt batch is ignored.
    """
    rejected = [
        (item.topic.topic_id, item.index, producer_id)
        for item in items
        if isinstance(item.error, InvalidRecordError)
        and item.error.reason is not RejectionReason.CORRUPT_MESSAGE
        if item.topic is not None and item.records is not None
        if (producer_id := peek_producer(item.records)[0]) >= 0
    ]
    if not rejected:
        return
    services = context.services
    try:
        await services.pools.catalog.run(partial(services.catalog.producers.accept_any_sequence, rejected))
    except SiltstoneError as error:
        _log.warning("producers of rejected batches may be unable to continue", reason=str(error))


def _note_failure(items: Sequence[_Item], context: RequestContext) -> None:
    """Note that the request's producer sends a batch again, if a batch failed with an error that it retries.

    This must happen before the connection's next request is processed. A request has only one producer.
    """
    for item in items:
        if item.error is not None and item.records is not None and code_of(item.error).retriable:
            producer_id, epoch = peek_producer(item.records)
            if producer_id >= 0:
                context.services.failed_producers.note([(producer_id, epoch)])
                return


def _require_none_rejected(items: Sequence[_Item]) -> None:
    for item in items:
        if item.error is not None:
            raise MalformedMessageError(f"records sent with acks=0 are rejected: {item.error}")


async def _respond(items: Sequence[_Item], seconds: float | None) -> Struct:
    """Return the response when all batches are committed or `seconds` have passed."""
    try:
        async with asyncio.timeout(seconds):
            for item in items:
                if item.pending is not None:
                    await item.pending.wait()
    except TimeoutError:
        pass  # partitions without a result respond REQUEST_TIMED_OUT
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
