"""The rules that a producer's record batches must satisfy before they are appended to a log.

They are those of Kafka's LogValidator: structure and checksum (`object_format.record_batch.validation`), and
the topic's limits on batch size, keys and timestamps. `AppendRules` holds a topic's configuration,
`AppendLimits` the same rules at one point in time. The agent's fast path, the general produce path, the HTTP
API and the local tier all use these two classes, so each rule is written once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from object_format.errors import Fault, InvalidRecordError, RejectionReason
from object_format.record_batch.headers import set_append_time, set_max_timestamp
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
    from typing_extensions import Buffer

NO_TIMESTAMP: Final = -1
_MIN_TIMESTAMP: Final = -(2**63)
_MAX_TIMESTAMP: Final = 2**63 - 1
_REASONS: Final = {
    Fault.MAGIC: RejectionReason.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    Fault.DECOMPRESSED_TOO_LARGE: RejectionReason.MESSAGE_TOO_LARGE,
    Fault.OFFSETS_NOT_CONSECUTIVE: RejectionReason.INVALID_RECORD,
    Fault.CONTROL_BATCH: RejectionReason.INVALID_RECORD,
    Fault.BROKER_ATTRIBUTES: RejectionReason.INVALID_RECORD,
    Fault.SEQUENCE: RejectionReason.INVALID_RECORD,
    Fault.KEYLESS_RECORDS: RejectionReason.INVALID_RECORD,
    Fault.TIMESTAMP_TYPE: RejectionReason.INVALID_TIMESTAMP,
}


class AppendLimits(NamedTuple):
    """The rules of one topic at one point in time. Timestamps are milliseconds since the epoch."""

    require_keys: bool
    max_message_bytes: int
    earliest: int
    latest: int

    def accepts_timestamps(self, lowest: int, highest: int) -> bool:
        """Return True if every timestamp from `lowest` to `highest` is allowed; `NO_TIMESTAMP` always is.

        If only some records have a timestamp (`lowest` is `NO_TIMESTAMP`), the oldest of the others is
        unknown and assumed to be 0. Only `rejected_timestamps` is exact then.
        """
        oldest = lowest if lowest != NO_TIMESTAMP or highest == NO_TIMESTAMP else 0
        return (oldest >= self.earliest and highest <= self.latest) or lowest == highest == NO_TIMESTAMP

    def rejected_timestamps(self, timestamps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the indexes of the timestamps that are out of range."""
        out_of_range = (timestamps < self.earliest) | (timestamps > self.latest)
        return np.flatnonzero(out_of_range & (timestamps != NO_TIMESTAMP))


# The constructor of a named tuple is a Python function, and every topic of every produce request needs one.
_limits = partial(tuple.__new__, AppendLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRules:
    """A topic's configuration of appends.

    `append_time` is `message.timestamp.type=LogAppendTime`: the broker overwrites the timestamps, so any are
    allowed. `before_max_ms` and `after_max_ms` are `message.timestamp.before.max.ms` and `.after.max.ms`.
    """

    require_keys: bool
    max_message_bytes: int
    append_time: bool
    before_max_ms: int
    after_max_ms: int

    def limits_at(self, now_ms: int) -> AppendLimits:
        """Return the rules as they apply at `now_ms`."""
        if self.append_time:
            return _limits((self.require_keys, self.max_message_bytes, _MIN_TIMESTAMP, _MAX_TIMESTAMP))
        earliest = now_ms - self.before_max_ms
        latest = min(now_ms + self.after_max_ms, _MAX_TIMESTAMP)
        return _limits((self.require_keys, self.max_message_bytes, earliest, latest))


def validate_append(
    where: str, data: Buffer, rules: AppendRules, *, now_ms: int
) -> tuple[memoryview, Sequence[BatchSummary]]:
    """Validate a producer's batches, and correct their timestamps in place as a broker does.

    Returns a writable buffer (a copy if `data` is read-only) and a summary of each batch. `where` names the
    partition in messages. Raises `InvalidRecordError`, which lists the rejected batches and records: as in
    Kafka, one of them rejects all of `data`.
    """
    buffer = memoryview(data).cast("B")
    if buffer.readonly:
        buffer = memoryview(bytearray(buffer))
    validated = validate_batches(buffer, require_keys=rules.require_keys)
    if validated.problems:
        raise _rejection(where, validated.problems)
    limits = rules.limits_at(now_ms)
    for number, batch in enumerate(validated.batches):
        if batch.size > limits.max_message_bytes:
            raise _too_large(where, number, batch, limits)
        if not limits.accepts_timestamps(batch.min_timestamp, batch.max_timestamp):
            _check_each_timestamp(where, number, buffer[batch.position :][: batch.size], limits, now_ms)
    if rules.append_time:
        return buffer, [_with_append_time(buffer, batch, now_ms) for batch in validated.batches]
    for batch in validated.batches:
        if batch.max_timestamp != batch.header_max_timestamp:
            set_max_timestamp(buffer, batch.max_timestamp, batch.position)
    return buffer, validated.batches


def _with_append_time(buffer: memoryview, batch: BatchSummary, now_ms: int) -> BatchSummary:
    set_append_time(buffer, now_ms, batch.position)
    return batch._replace(min_timestamp=now_ms, max_timestamp=now_ms)


def _rejection(where: str, problems: Sequence[BatchProblem]) -> InvalidRecordError:
    first = problems[0]
    return InvalidRecordError(
        f"records for {where} are rejected: {first.message}",
        reason=_REASONS.get(first.fault, RejectionReason.CORRUPT_MESSAGE),
        record_errors=tuple(
            (problem.batch, index, problem.fault.explanation)
            for problem in problems
            for index in problem.record_indexes
        ),
    )


def _too_large(where: str, number: int, batch: BatchSummary, limits: AppendLimits) -> InvalidRecordError:
    return InvalidRecordError(
        f"batch {number} for {where} has {batch.size} bytes, and max.message.bytes is "
        f"{limits.max_message_bytes}",
        reason=RejectionReason.MESSAGE_TOO_LARGE,
        remedy="send smaller batches, or raise the topic's max.message.bytes",
    )


def _check_each_timestamp(
    where: str, number: int, batch: memoryview, limits: AppendLimits, now_ms: int
) -> None:
    """Check the timestamp of each record of a batch that may have some out of range."""
    timestamps = decode_batch(batch, verify=False).timestamps
    rejected = limits.rejected_timestamps(timestamps)
    if not rejected.size:
        return
    raise InvalidRecordError(
        f"batch {number} for {where} has {rejected.size} records with timestamps too far from now ({now_ms})",
        reason=RejectionReason.INVALID_TIMESTAMP,
        record_errors=tuple(
            (
                number,
                index,
                f"its timestamp {timestamps[index]} is not from {limits.earliest} to {limits.latest}",
            )
            for index in rejected[:MAX_RECORDS_REPORTED].tolist()
        ),
        remedy="see message.timestamp.before.max.ms and message.timestamp.after.max.ms of the topic",
    )
