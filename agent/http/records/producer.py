"""Append single records, as the HTTP API receives them, as record batches.

Kafka's default partitioner selects the partition of a record: murmur2 of its key. All records without a key
go to one partition, selected at random for each request. A record that cannot be appended is rejected; the
others are appended. Batches are compressed by the topic's `compression.type`. For "producer" the codec is
zstd, because this module is the producer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from agent.cluster.client_messages import is_client_safe, public_cause
from agent.cluster.topic_directory import require_partition
from agent.write.validation import ValidatedAppend, append_rules_of, validate
from object_format.codecs.codec import Codec
from object_format.record_batch.headers import BATCH_OVERHEAD
from object_format.record_batch.partitioner import partition_for_keys
from object_format.record_batch.records import encode_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from agent.local_topics.append_router import AppendRouter
    from agent.runtime.pools import Pools
    from agent.write.pending_append import AppendResult
    from catalog.model import Topic
    from core.clock import Clock
    from core.errors import SiltstoneError
    from core.ids import Ids
    from object_format.record_batch.append_rules import AppendLimits

_CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
    "producer": Codec.ZSTD,
}
_TARGET_BATCH_BYTES = 1024 * 1024
# Upper bounds of the bytes for lengths, deltas and counts, of a record without headers and of one header.
_MAX_RECORD_OVERHEAD = 40
_MAX_HEADER_OVERHEAD = 10

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(slots=True, kw_only=True)
class NewRecords:
    """Records to append, in columns of equal length.

    A timestamp or a partition is None if the client did not set it. `headers` is None if no record has any.
    `rejections` are the errors that are known already, by record index.
    """

    keys: list[bytes | None]
    values: list[bytes | None]
    timestamps: list[int | None]
    partitions: list[int | None]
    headers: list[Headers] | None = None
    rejections: dict[int, Rejection] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why one record was not appended. If `error` is set, the client may retry the whole append."""

    code: str
    message: str
    error: SiltstoneError | None = None


@dataclass(slots=True, kw_only=True)
class ProducedRecords:
    """The result of each record: partition, offset and timestamp, or an entry of `rejections`."""

    partitions: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    timestamps: npt.NDArray[np.int64]
    rejections: dict[int, Rejection]

    @property
    def accepted(self) -> int:
        """Number of records that were appended."""
        return len(self.offsets) - len(self.rejections)


@dataclass(slots=True)
class _Prepared:
    """Batches to append, and the record indexes of each batch of each append."""

    result: ProducedRecords
    appends: list[ValidatedAppend] = field(default_factory=list)
    record_indexes: list[list[npt.NDArray[np.int64]]] = field(default_factory=list)


class RecordProducer:
    """Appends single records through the write path. Belongs to the event loop."""

    def __init__(self, appends: AppendRouter, pools: Pools, *, clock: Clock, ids: Ids) -> None:
        self._appends = appends
        self._pools = pools
        self._clock = clock
        self._ids = ids

    async def produce(
        self, topic: Topic, records: NewRecords, partition: int | None = None
    ) -> ProducedRecords:
        """Append the records, and return the result of each.

        `partition` overrides the partitioner, and the partition of a record overrides both. If the write path
        fails and no record was appended, its error is raised, so that the client can retry the request.
        """
        if partition is not None:
            require_partition(topic, partition)
        sticky = int(self._ids.random() * topic.partition_count) if partition is None else partition
        prepare = partial(
            _prepare, topic, records, partition=partition, sticky=sticky, now_ms=self._clock.now_ms()
        )
        prepared = await self._pools.kernels.run(prepare)
        results = await self._appends.append(prepared.appends)
        _apply_results(prepared, results)
        return _raise_if_all_failed(prepared.result)


def _prepare(
    topic: Topic, records: NewRecords, *, partition: int | None, sticky: int, now_ms: int
) -> _Prepared:
    """Partition, batch, encode and validate the records. Runs in the kernel pool."""
    rules = append_rules_of(topic.config)
    limits = rules.limits_at(now_ms)
    result = ProducedRecords(
        partitions=_partition(topic, records, partition, sticky),
        offsets=np.full(len(records), -1, np.int64),
        timestamps=np.array([now_ms if given is None else given for given in records.timestamps], np.int64),
        rejections=dict(records.rejections),
    )
    _reject_invalid(topic, records, result, limits, now_ms)
    if rules.append_time:
        result.timestamps[:] = now_ms
    prepared = _Prepared(result)
    valid = np.array([index for index in range(len(records)) if index not in result.rejections], np.int64)
    order = valid[np.argsort(result.partitions[valid], kind="stable")]
    for partition_index in np.unique(result.partitions[valid]).tolist():
        members = order[result.partitions[order] == partition_index]
        _prepare_partition(prepared, topic, records, partition_index, members, limits, now_ms)
    return prepared


def _partition(
    topic: Topic, records: NewRecords, partition: int | None, sticky: int
) -> npt.NDArray[np.int32]:
    """Return the partition of each record; -1 if the topic does not have the one that it names."""
    if partition is not None:
        partitions = np.full(len(records), partition, np.int32)
    else:
        lengths = np.array([-1 if key is None else len(key) for key in records.keys], np.int32)
        starts = np.concatenate(([0], np.maximum(lengths, 0).cumsum(dtype=np.int64)))[:-1]
        keys = b"".join(key for key in records.keys if key)
        partitions = partition_for_keys(keys, starts, lengths, topic.partition_count)
        partitions[lengths < 0] = sticky
    for index, given in enumerate(records.partitions):
        if given is not None:
            partitions[index] = given if 0 <= given < topic.partition_count else -1
    return partitions


def _reject_invalid(
    topic: Topic, records: NewRecords, result: ProducedRecords, limits: AppendLimits, now_ms: int
) -> None:
    reject = result.rejections.setdefault  # the first error of a record counts
    for index in np.flatnonzero(result.partitions < 0).tolist():
        reject(
            index,
            Rejection(
                "unknown_partition",
                f"topic {topic.name!r} has partitions 0 to {topic.partition_count - 1}, "
                f"not {records.partitions[index]}",
            ),
        )
    if limits.require_keys:
        missing_key = Rejection(
            "missing_key", f"topic {topic.name!r} is compacted: every record must have a key"
        )
        for index, key in enumerate(records.keys):
            if key is None:
                reject(index, missing_key)
    for index in limits.rejected_timestamps(result.timestamps).tolist():
        timestamp = result.timestamps[index]
        reject(
            index,
            Rejection(
                "invalid_timestamp",
                f"timestamp {timestamp} is too far from now ({now_ms}) for topic {topic.name!r}",
            ),
        )


def _prepare_partition(
    prepared: _Prepared,
    topic: Topic,
    records: NewRecords,
    partition: int,
    members: npt.NDArray[np.int64],
    limits: AppendLimits,
    now_ms: int,
) -> None:
    """Add the append of one partition, unless all of its records are too large."""
    encoded: list[bytes] = []
    batches: list[npt.NDArray[np.int64]] = []
    for chosen in _split(records, members, min(limits.max_message_bytes, _TARGET_BATCH_BYTES)):
        batch = _encode(topic, records, prepared.result, chosen)
        if len(batch) > limits.max_message_bytes:
            for index in chosen.tolist():
                prepared.result.rejections[index] = Rejection(
                    "record_too_large",
                    f"a batch of this record has {len(batch)} bytes, and max.message.bytes of topic "
                    f"{topic.name!r} is {limits.max_message_bytes}",
                )
            continue
        encoded.append(batch)
        batches.append(chosen)
    if encoded:
        data = bytearray().join(encoded)
        prepared.appends.append(validate(topic, partition, data, now_ms=now_ms))
        prepared.record_indexes.append(batches)


def _split(
    records: NewRecords, members: npt.NDArray[np.int64], limit: int
) -> Iterator[npt.NDArray[np.int64]]:
    """Split `members` into runs that fit a batch of `limit` bytes, or that have one record."""
    start = 0
    size = BATCH_OVERHEAD
    for position, index in enumerate(members.tolist()):
        record = _max_size(records, index)
        if position > start and size + record > limit:
            yield members[start:position]
            start, size = position, BATCH_OVERHEAD
        size += record
    if start < len(members):
        yield members[start:]


def _max_size(records: NewRecords, index: int) -> int:
    """Return an upper bound of the record's uncompressed size in a batch."""
    size = _MAX_RECORD_OVERHEAD + len(records.keys[index] or b"") + len(records.values[index] or b"")
    for name, value in records.headers[index] if records.headers is not None else ():
        size += _MAX_HEADER_OVERHEAD + 4 * len(name) + len(value or b"")
    return size


def _encode(
    topic: Topic, records: NewRecords, result: ProducedRecords, chosen: npt.NDArray[np.int64]
) -> bytes:
    indexes = chosen.tolist()
    headers = records.headers
    return encode_batch(
        result.timestamps[chosen],
        [records.keys[index] for index in indexes],
        [records.values[index] for index in indexes],
        None if headers is None else [headers[index] for index in indexes],
        codec=_CODECS[topic.config.compression_type],
    )


def _apply_results(prepared: _Prepared, results: Sequence[Sequence[AppendResult]]) -> None:
    """Copy the result of each batch to its records."""
    for batches, outcomes in zip(prepared.record_indexes, results, strict=True):
        for chosen, outcome in zip(batches, outcomes, strict=True):
            if outcome.appended:
                prepared.result.offsets[chosen] = outcome.base_offset + np.arange(len(chosen))
                continue
            rejections = dict.fromkeys(chosen.tolist(), _rejection(outcome))
            prepared.result.rejections.update(rejections)


def _rejection(outcome: AppendResult) -> Rejection:
    if outcome.error is not None:
        message = outcome.error.message if is_client_safe(outcome.error) else public_cause(outcome.error)
        return Rejection("append_failed", message, outcome.error)
    assert outcome.refusal is not None
    return Rejection(outcome.refusal.value, outcome.detail or outcome.refusal.value.replace("_", " "))


def _raise_if_all_failed(result: ProducedRecords) -> ProducedRecords:
    """Raise an error of the write path if no record was appended, so that the client retries all of them."""
    if result.accepted == 0:
        for rejection in result.rejections.values():
            if rejection.error is not None:
                raise rejection.error
    return result
