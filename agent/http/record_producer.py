"""From single records, as the HTTP API gets them, to batches, and from batches' results back to records.

Records are placed by Kafka's default partitioner: murmur2 of the key; those without a key all go to one
partition, drawn anew for each request. What cannot be appended is refused record by record, and the others
are appended. Batches are compressed with the topic's `compression.type`; where that is "producer", the
producer is this module, and its choice is zstd.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from agent.cluster.client_messages import is_client_safe, plain_cause
from agent.cluster.topic_directory import require_partition
from agent.write.validation import ValidatedBatches, append_rules_of, validate
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
_BATCH_TARGET = 1024 * 1024
# The most that lengths, deltas and counts of a record without headers take, and those of one header.
_RECORD_OVERHEAD = 40
_HEADER_OVERHEAD = 10

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(slots=True, kw_only=True)
class NewRecords:
    """Records to append, in columns of equal length; `timestamps` and `partitions` are None where not given.

    `headers` is None when no record has any. `refusals` holds what was found wrong already: index → why.
    """

    keys: list[bytes | None]
    values: list[bytes | None]
    timestamps: list[int | None]
    partitions: list[int | None]
    headers: list[Headers] | None = None
    refusals: dict[int, RecordRefusal] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True, slots=True)
class RecordRefusal:
    """Why one record is not in the log. With `error` the whole append may be sent again."""

    code: str
    message: str
    error: SiltstoneError | None = None


@dataclass(slots=True, kw_only=True)
class ProducedRecords:
    """What became of each record: partition, offset and timestamp, or an entry in `refusals`."""

    partitions: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    timestamps: npt.NDArray[np.int64]
    refusals: dict[int, RecordRefusal]

    @property
    def accepted(self) -> int:
        """How many are in the log."""
        return len(self.offsets) - len(self.refusals)


@dataclass(slots=True)
class _Prepared:
    """Batches to append, and the indexes of the records in each batch of each append."""

    result: ProducedRecords
    appends: list[ValidatedBatches] = field(default_factory=list)
    members: list[list[npt.NDArray[np.int64]]] = field(default_factory=list)


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
        """Append `records`, all to `partition` where it is given and a record does not name its own.

        Raises what the write path raises when nothing was appended because of it, so that all may be sent
        again; otherwise everything that happened to single records is in the result.
        """
        if partition is not None:
            require_partition(topic, partition)
        sticky = int(self._ids.random() * topic.partition_count) if partition is None else partition
        prepare = partial(
            _prepare, topic, records, partition=partition, sticky=sticky, now_ms=self._clock.now_ms()
        )
        prepared = await self._pools.kernels.run(prepare)
        results = await self._appends.append(prepared.appends)
        _collect(prepared, results)
        return _raise_if_all_failed(prepared.result)


def _prepare(
    topic: Topic, records: NewRecords, *, partition: int | None, sticky: int, now_ms: int
) -> _Prepared:
    """Place, batch, encode and validate; for the kernel pool."""
    rules = append_rules_of(topic.config)
    limits = rules.limits_at(now_ms)
    result = ProducedRecords(
        partitions=_place(topic, records, partition, sticky),
        offsets=np.full(len(records), -1, np.int64),
        timestamps=np.array([now_ms if given is None else given for given in records.timestamps], np.int64),
        refusals=dict(records.refusals),
    )
    _refuse_what_does_not_fit(topic, records, result, limits, now_ms)
    if rules.append_time:
        result.timestamps[:] = now_ms
    prepared = _Prepared(result)
    taken = np.array([index for index in range(len(records)) if index not in result.refusals], np.int64)
    order = taken[np.argsort(result.partitions[taken], kind="stable")]
    for number in np.unique(result.partitions[taken]).tolist():
        members = order[result.partitions[order] == number]
        _prepare_partition(prepared, topic, records, number, members, limits, now_ms)
    return prepared


def _place(topic: Topic, records: NewRecords, partition: int | None, sticky: int) -> npt.NDArray[np.int32]:
    """The partition of each record."""
    if partition is not None:
        placed = np.full(len(records), partition, np.int32)
    else:
        lengths = np.array([-1 if key is None else len(key) for key in records.keys], np.int32)
        starts = np.concatenate(([0], np.maximum(lengths, 0).cumsum(dtype=np.int64)))[:-1]
        keys = b"".join(key for key in records.keys if key)
        placed = partition_for_keys(keys, starts, lengths, topic.partition_count)
        placed[lengths < 0] = sticky
    for index, given in enumerate(records.partitions):
        if given is not None:
            placed[index] = given if 0 <= given < topic.partition_count else -1
    return placed


def _refuse_what_does_not_fit(
    topic: Topic, records: NewRecords, result: ProducedRecords, limits: AppendLimits, now_ms: int
) -> None:
    refuse = result.refusals.setdefault
    for index in np.flatnonzero(result.partitions < 0).tolist():
        refuse(
            index,
            RecordRefusal(
                "unknown_partition",
                f"topic {topic.name!r} has partitions 0 to {topic.partition_count - 1}, "
                f"not {records.partitions[index]}",
            ),
        )
    if limits.require_keys:
        keyless = RecordRefusal(
            "keyless_record", f"topic {topic.name!r} is compacted: it takes no record without a key"
        )
        for index, key in enumerate(records.keys):
            if key is None:
                refuse(index, keyless)
    for index, timestamp in enumerate(records.timestamps):
        if timestamp is not None and not limits.accepts_timestamps(timestamp, timestamp):
            refuse(
                index,
                RecordRefusal(
                    "invalid_timestamp",
                    f"timestamp {timestamp} is too far from now ({now_ms}) for topic {topic.name!r}",
                ),
            )


def _prepare_partition(
    prepared: _Prepared,
    topic: Topic,
    records: NewRecords,
    number: int,
    members: npt.NDArray[np.int64],
    limits: AppendLimits,
    now_ms: int,
) -> None:
    """Add the append of one partition, unless each of its records turns out to be too large."""
    encoded: list[bytes] = []
    batches: list[npt.NDArray[np.int64]] = []
    for chosen in _cut(records, members, min(limits.max_message_bytes, _BATCH_TARGET)):
        batch = _encode(topic, records, prepared.result, chosen)
        if len(batch) > limits.max_message_bytes:
            for index in chosen.tolist():
                prepared.result.refusals[index] = RecordRefusal(
                    "record_too_large",
                    f"the record takes {len(batch)} bytes as a batch, and max.message.bytes of topic "
                    f"{topic.name!r} is {limits.max_message_bytes}",
                )
            continue
        encoded.append(batch)
        batches.append(chosen)
    if encoded:
        data = bytearray().join(encoded)
        prepared.appends.append(validate(topic, number, data, now_ms=now_ms))
        prepared.members.append(batches)


def _cut(records: NewRecords, members: npt.NDArray[np.int64], limit: int) -> Iterator[npt.NDArray[np.int64]]:
    """Runs of `members` that surely fit a batch of `limit` bytes, or that are one record long."""
    start = 0
    size = BATCH_OVERHEAD
    for position, index in enumerate(members.tolist()):
        record = _size(records, index)
        if position > start and size + record > limit:
            yield members[start:position]
            start, size = position, BATCH_OVERHEAD
        size += record
    if start < len(members):
        yield members[start:]


def _size(records: NewRecords, index: int) -> int:
    """At least what the record takes in a batch, uncompressed."""
    size = _RECORD_OVERHEAD + len(records.keys[index] or b"") + len(records.values[index] or b"")
    for name, value in records.headers[index] if records.headers is not None else ():
        size += _HEADER_OVERHEAD + 4 * len(name) + len(value or b"")
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


def _collect(prepared: _Prepared, results: Sequence[Sequence[AppendResult]]) -> None:
    """Write the batches' results to their records."""
    for batches, outcomes in zip(prepared.members, results, strict=True):
        for chosen, outcome in zip(batches, outcomes, strict=True):
            if outcome.appended:
                prepared.result.offsets[chosen] = outcome.base_offset + np.arange(len(chosen))
                continue
            refusal = _refusal(outcome)
            prepared.result.refusals.update(dict.fromkeys(chosen.tolist(), refusal))


def _refusal(outcome: AppendResult) -> RecordRefusal:
    if outcome.error is not None:
        words = outcome.error.message if is_client_safe(outcome.error) else plain_cause(outcome.error)
        return RecordRefusal("append_failed", words, outcome.error)
    assert outcome.refusal is not None
    return RecordRefusal(outcome.refusal.value, outcome.detail or outcome.refusal.value.replace("_", " "))


def _raise_if_all_failed(result: ProducedRecords) -> ProducedRecords:
    """When nothing is in the log and some of it might have been, let the caller send all of it again."""
    if result.accepted == 0:
        for refusal in result.refusals.values():
            if refusal.error is not None:
                raise refusal.error
    return result
