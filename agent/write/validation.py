"""Whether a topic takes a producer's batches: Kafka's rules, and the topic's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from agent.cluster.errors import InvalidRecordError
from catalog.model import ProducerStamp
from object_format.errors import Fault
from object_format.record_batch.batch import stamp_append_time, stamp_max_timestamp
from object_format.record_batch.records import decode_batch
from object_format.record_batch.validation import (
    MAX_RECORDS_REPORTED,
    BatchProblem,
    BatchSummary,
    validate_batches,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from catalog.config.topic_config import TopicConfig
    from catalog.model import Topic
    from object_store.interface import Buffer

NO_TIMESTAMP = -1
_LAST = 2**63 - 1
_CODES = {
    Fault.MAGIC: "UNSUPPORTED_FOR_MESSAGE_FORMAT",
    Fault.DECOMPRESSED_TOO_LARGE: "MESSAGE_TOO_LARGE",
    Fault.OFFSETS_NOT_CONSECUTIVE: "INVALID_RECORD",
    Fault.CONTROL_BATCH: "INVALID_RECORD",
    Fault.SEQUENCE: "INVALID_RECORD",
    Fault.KEYLESS_RECORDS: "INVALID_RECORD",
    Fault.TIMESTAMP_TYPE: "INVALID_TIMESTAMP",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRules:
    """What a topic's configuration says about appends, as typed values."""

    require_keys: bool
    max_message_bytes: int
    append_time: bool
    before_max_ms: int
    after_max_ms: int
    is_local: bool = False

    @staticmethod
    @lru_cache(maxsize=4096)
    def of(config: TopicConfig) -> AppendRules:
        """The rules of a topic with that configuration."""
        return AppendRules(
            require_keys=config.compacts,
            max_message_bytes=config.max_message_bytes,
            append_time=config.message_timestamp_type == "LogAppendTime",
            is_local=config.storage_mode == "local",
            before_max_ms=config.message_timestamp_before_max_ms,
            after_max_ms=config.message_timestamp_after_max_ms,
        )

    def takes_timestamps(self, lowest: int, highest: int, now_ms: int) -> bool:
        """Whether a producer may give all timestamps from `lowest` to `highest` now; "none" always goes.

        Where some records have none, the others may be as old as can be: `untimely` tells.
        """
        if self.append_time or lowest == highest == NO_TIMESTAMP:
            return True
        oldest = 0 if lowest == NO_TIMESTAMP else lowest
        return now_ms - oldest <= self.before_max_ms and highest - now_ms <= self.after_max_ms

    def untimely(self, timestamps: npt.NDArray[np.int64], now_ms: int) -> npt.NDArray[np.int64]:
        """The places of those that a producer may not give now, each for itself (Kafka's LogValidator)."""
        latest = min(now_ms + self.after_max_ms, _LAST)
        is_far = (timestamps < now_ms - self.before_max_ms) | (timestamps > latest)
        return np.flatnonzero(is_far & (timestamps != NO_TIMESTAMP))


class BatchColumns(NamedTuple):
    """What the write path needs to know of one batch; `position` is in the buffer that was validated."""

    position: int
    size: int
    offset_count: int
    record_count: int
    min_timestamp: int
    max_timestamp: int
    producer: ProducerStamp | None


class ValidatedBatches(NamedTuple):
    """Batches that may be appended to a partition. `data` is writable, and belongs to the write path now."""

    topic: Topic
    partition: int
    data: memoryview
    batches: tuple[BatchColumns, ...]

    @property
    def record_count(self) -> int:
        """Records in all batches."""
        return sum(batch.record_count for batch in self.batches)

    @property
    def producer_id(self) -> int | None:
        """The idempotent producer of its first batch, if it has one; whoever sends a request is but one."""
        stamp = self.batches[0].producer if self.batches else None
        return None if stamp is None else stamp.producer_id


def validate(topic: Topic, partition: int, data: Buffer, *, now_ms: int) -> ValidatedBatches:
    """Judge the batches in `data`, and put right in place what a broker puts right: timestamps.

    For the kernel pool. Raises `InvalidRecordError`, which names the batches and records at fault; nothing of
    `data` may be appended then, as in Kafka. A read-only `data` is copied.
    """
    where = f"{topic.name}-{partition}"
    buffer, batches = judge_batches(where, data, AppendRules.of(topic.config), now_ms=now_ms)
    return ValidatedBatches(topic, partition, buffer, batches)


def judge_batches(
    where: str, data: Buffer, rules: AppendRules, *, now_ms: int
) -> tuple[memoryview, tuple[BatchColumns, ...]]:
    """What `validate` does, by rules in hand; `where` is the partition's name for messages.

    The buffer that comes back is writable and has its timestamps put right.
    """
    buffer = memoryview(data).cast("B")
    if buffer.readonly:
        buffer = memoryview(bytearray(buffer))
    judged = validate_batches(buffer, require_keys=rules.require_keys)
    if judged.problems:
        raise _refusal(where, judged.problems)
    for number, batch in enumerate(judged.batches):
        _check_limits(where, number, batch, rules)
        if not rules.takes_timestamps(batch.min_timestamp, batch.max_timestamp, now_ms):
            _check_timestamps(where, number, buffer[batch.position :][: batch.size], rules, now_ms)
    return buffer, tuple([_columns(buffer, batch, rules, now_ms) for batch in judged.batches])


def _refusal(where: str, problems: Sequence[BatchProblem]) -> InvalidRecordError:
    first = problems[0]
    return InvalidRecordError(
        f"records for {where} are refused: {first.message}",
        code=_CODES.get(first.fault, "CORRUPT_MESSAGE"),
        record_errors=tuple(
            (problem.batch, index, problem.fault.explanation)
            for problem in problems
            for index in problem.record_indexes
        ),
    )


def _check_limits(where: str, number: int, batch: BatchSummary, rules: AppendRules) -> None:
    if batch.size > rules.max_message_bytes:
        raise InvalidRecordError(
            f"batch {number} for {where} has {batch.size} bytes, and max.message.bytes is "
            f"{rules.max_message_bytes}",
            code="MESSAGE_TOO_LARGE",
            remedy="send smaller batches, or raise the topic's max.message.bytes",
        )


def _check_timestamps(where: str, number: int, batch: memoryview, rules: AppendRules, now_ms: int) -> None:
    """Judge each record of a batch that may have some too far from now."""
    timestamps = decode_batch(batch, verify=False).timestamps
    untimely = rules.untimely(timestamps, now_ms)
    if not untimely.size:
        return
    earliest, latest = now_ms - rules.before_max_ms, now_ms + rules.after_max_ms
    reported = untimely[:MAX_RECORDS_REPORTED].tolist()
    raise InvalidRecordError(
        f"batch {number} for {where} has {untimely.size} records with timestamps too far from now ({now_ms})",
        code="INVALID_TIMESTAMP",
        record_errors=tuple(
            (number, index, f"its timestamp {timestamps[index]} is not from {earliest} to {latest}")
            for index in reported
        ),
        remedy="see message.timestamp.before.max.ms and message.timestamp.after.max.ms of the topic",
    )


def _columns(data: memoryview, batch: BatchSummary, rules: AppendRules, now_ms: int) -> BatchColumns:
    lowest, highest = batch.min_timestamp, batch.max_timestamp
    if rules.append_time:
        lowest = highest = now_ms
        stamp_append_time(data, now_ms, batch.position)
    elif highest != batch.header_max_timestamp:
        stamp_max_timestamp(data, highest, batch.position)
    return BatchColumns(
        batch.position,
        batch.size,
        batch.last_offset_delta + 1,
        batch.record_count,
        lowest,
        highest,
        None if batch.producer_id < 0 else _stamp(batch),
    )


def _stamp(batch: BatchSummary) -> ProducerStamp:
    return ProducerStamp(
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
    )
