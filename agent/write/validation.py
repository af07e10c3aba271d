"""Validation of a producer's batches by the configuration of their topic."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from catalog.model import ProducerStamp
from object_format.kernels.batches.layout import TRANSACTIONAL
from object_format.record_batch.append_rules import AppendRules, validate_append

if TYPE_CHECKING:
    from catalog.config.values import TopicConfig
    from catalog.model import Topic
    from object_format.record_batch.validation import BatchSummary
    from object_store.interface import Buffer


@lru_cache(maxsize=4096)
def append_rules_of(config: TopicConfig) -> AppendRules:
    """Return the append rules of a topic with that configuration."""
    return AppendRules(
        require_keys=config.compacts,
        max_message_bytes=config.max_message_bytes,
        append_time=config.message_timestamp_type == "LogAppendTime",
        before_max_ms=config.message_timestamp_before_max_ms,
        after_max_ms=config.message_timestamp_after_max_ms,
    )


class ValidatedBatch(NamedTuple):
    """Metadata of one validated batch; `position` is in the validated buffer."""

    position: int
    size: int
    offset_count: int
    record_count: int
    min_timestamp: int
    max_timestamp: int
    producer: ProducerStamp | None

    @staticmethod
    def of(
        batch: BatchSummary, *, transactional_id: str | None = None, adds_partition: bool = False
    ) -> ValidatedBatch:
        """Return the metadata of a batch that `validate_append` accepted."""
        return ValidatedBatch(
            batch.position,
            batch.size,
            batch.last_offset_delta + 1,
            batch.record_count,
            batch.min_timestamp,
            batch.max_timestamp,
            None
            if batch.producer_id < 0 and not batch.attributes & TRANSACTIONAL
            else _stamp(batch, transactional_id, adds_partition=adds_partition),
        )


class ValidatedAppend(NamedTuple):
    """Batches that may be appended to a partition. `data` is writable and belongs to the write path."""

    topic: Topic
    partition: int
    data: memoryview
    batches: tuple[ValidatedBatch, ...]

    @property
    def record_count(self) -> int:
        """The number of records in all batches."""
        return sum(batch.record_count for batch in self.batches)

    @property
    def stamp(self) -> ProducerStamp | None:
        """The stamp of the first batch, if it has one. A request has only one producer."""
        return self.batches[0].producer if self.batches else None

    @property
    def is_transactional(self) -> bool:
        """True if the request belongs to a transaction."""
        stamp = self.stamp
        return stamp is not None and stamp.is_transactional


def validate(
    topic: Topic,
    partition: int,
    data: Buffer,
    *,
    now_ms: int,
    transactional_id: str | None = None,
    adds_partitions: bool = False,
) -> ValidatedAppend:
    """Validate the batches in `data` by the rules of `topic`, and correct their timestamps in place.

    Runs in the kernel pool. Raises `InvalidRecordError`, which lists the rejected batches and records: as in
    Kafka, one of them rejects all of `data`. A read-only `data` is copied. Transactional batches get the
    request's `transactional_id`. With `adds_partitions`, they add the partition to the transaction.
    """
    rules = append_rules_of(topic.config)
    buffer, batches = validate_append(f"{topic.name}-{partition}", data, rules, now_ms=now_ms)
    validated = tuple(
        [
            ValidatedBatch.of(batch, transactional_id=transactional_id, adds_partition=adds_partitions)
            for batch in batches
        ]
    )
    return ValidatedAppend(topic, partition, buffer, validated)


def _stamp(batch: BatchSummary, transactional_id: str | None, *, adds_partition: bool) -> ProducerStamp:
    is_transactional = bool(batch.attributes & TRANSACTIONAL)
    return ProducerStamp(
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        is_transactional=is_transactional,
        adds_partition=is_transactional and adds_partition,
        transactional_id=transactional_id if is_transactional else None,
    )
