"""Checks of batches before an append, and the assignment of their offsets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from local_tier.errors import OffsetsOutOfOrderError
from local_tier.producers.batches import ProducerBatch, producer_batches
from local_tier.producers.producer_state_entry import (
    NUM_BATCHES_TO_RETAIN,
    AppendOrigin,
    BatchMetadata,
    CompletedTxn,
    ProducerAppendInfo,
)
from local_tier.segment.mapped_index import MAX_RELATIVE_OFFSET
from object_format.buffers import Bytes, readable, writable
from object_format.errors import InvalidRecordError, MalformedBatchError, RejectionReason
from object_format.kernels.batches.append import assign_row_offsets, classify_producers, offset_bounds
from object_format.kernels.batches.headers import first_out_of_order
from object_format.record_batch.append_rules import validate_append
from object_format.record_batch.headers import BatchRows, scan_batches
from object_format.record_batch.records import verify_rows
from object_format.record_batch.validation import fast_validate_batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from typing_extensions import Buffer

    from local_tier.config import LogConfig
    from local_tier.producers.producer_state_manager import ProducerStateManager
    from object_format.record_batch.append_rules import AppendRules

_MIN_OFFSET: Final = 0


@dataclass(slots=True)
class CheckedBatches:
    """Whole batches that may be appended, with a row for each."""

    data: memoryview
    rows: BatchRows
    _cached_bounds: tuple[int, int, int] | None = field(default=None, init=False, repr=False)

    @property
    def array(self) -> Bytes:
        """The bytes as an array for kernels."""
        return readable(self.data)

    @property
    def first_offset(self) -> int:
        """The offset of the first record."""
        return self._offset_bounds()[0]

    @property
    def last_offset(self) -> int:
        """The offset of the last record."""
        return self._offset_bounds()[1]

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of all batches, or -1 if no record has one."""
        return self._offset_bounds()[2]

    def _offset_bounds(self) -> tuple[int, int, int]:
        if self._cached_bounds is None:
            self._cached_bounds = offset_bounds(self.rows)
        return self._cached_bounds

    def assign(self, first_offset: int, leader_epoch: int) -> None:
        """Assign consecutive offsets from `first_offset` on and the leader epoch, in place."""
        assign_row_offsets(writable(self.data), self.rows, first_offset, leader_epoch)
        self._cached_bounds = None

    def split(self, max_bytes: int) -> Iterator[CheckedBatches]:
        """Yield the batches in parts of at most `max_bytes`, or of one larger batch.

        The offsets of a part fit in the indexes of one segment.
        """
        ends = np.cumsum(self.rows["size"])
        last_offsets = self.rows["base_offset"] + self.rows["last_offset_delta"]
        first, start = 0, 0
        while first < self.rows.size:
            max_offset = int(self.rows["base_offset"][first]) + MAX_RELATIVE_OFFSET
            after = min(
                int(np.searchsorted(ends, start + max_bytes, side="right")),
                int(np.searchsorted(last_offsets, max_offset, side="right")),
            )
            after = max(after, first + 1)
            end = int(ends[after - 1])
            rows = self.rows[first:after]
            if start:
                rows = rows.copy()
                for column in ("position", "records_start", "records_end", "fault_position"):
                    rows[column] -= start
            yield CheckedBatches(self.data[start:end], rows)
            first, start = after, end


def check_as_leader(
    log_name: str,
    data: Buffer,
    config: LogConfig,
    *,
    origin: AppendOrigin,
    now_ms: int,
    validated_by: AppendRules | None = None,
) -> CheckedBatches:
    """Validate the batches of a producer or of the coordinator, and correct their timestamps in place.

    Offsets are assigned later. `validated_by` are the rules by which the caller has already validated these
    bytes. The validation is skipped if they equal the log's rules, or if they set the append time, after
    which the timestamps cannot be validated again. A read-only buffer is copied. Raises InvalidRecordError.
    """
    buffer = memoryview(data).cast("B")
    if buffer.readonly:
        buffer = memoryview(bytearray(buffer))
    is_validated = validated_by is not None and (
        validated_by == config.append_rules or validated_by.append_time
    )
    if origin is AppendOrigin.CLIENT and not is_validated:
        rows = _validate(log_name, buffer, config.append_rules, now_ms)
    else:
        rows = _scan(log_name, buffer, verify=origin is not AppendOrigin.CLIENT)
    if buffer.nbytes > config.segment_bytes:
        raise InvalidRecordError(
            f"{buffer.nbytes} bytes of records for {log_name} exceed segment.bytes ({config.segment_bytes})",
            reason=RejectionReason.RECORD_LIST_TOO_LARGE,
            remedy="send smaller requests, or raise the topic's segment.bytes",
        )
    return CheckedBatches(buffer, rows)


def _validate(log_name: str, buffer: memoryview, rules: AppendRules, now_ms: int) -> BatchRows:
    """Validate all batches at once, or one by one with `validate_append` if one may be invalid."""
    limits = rules.limits_at(now_ms)
    validated = (
        None
        if rules.append_time
        else fast_validate_batches(readable(buffer), require_keys=rules.require_keys)
    )
    if (
        validated is not None
        and validated.max_timestamps_match
        and validated.max_batch_size <= limits.max_message_bytes
        and validated.min_timestamp >= 0
        and limits.accepts_timestamps(validated.min_timestamp, validated.max_timestamp)
    ):
        return validated.rows
    validate_append(log_name, buffer, rules, now_ms=now_ms)
    return _scan(log_name, buffer, verify=False)


def check_as_follower(log_name: str, data: Buffer) -> CheckedBatches:
    """Check batches that already have offsets. Raises InvalidRecordError or OffsetsOutOfOrderError."""
    buffer = memoryview(data).cast("B")
    rows = _scan(log_name, buffer, verify=True)
    if rows.size and first_out_of_order(rows, 0, _MIN_OFFSET) >= 0:
        raise OffsetsOutOfOrderError(f"the offsets of batches for {log_name} do not increase")
    return CheckedBatches(buffer, rows)


def _scan(log_name: str, buffer: memoryview, *, verify: bool) -> BatchRows:
    array = readable(buffer)
    try:
        rows = scan_batches(array)
        if verify:
            verify_rows(array, rows)
    except MalformedBatchError as error:
        raise InvalidRecordError(
            f"records for {log_name} are rejected: {error.message}", reason=RejectionReason.CORRUPT_MESSAGE
        ) from error
    return rows


@dataclass(slots=True)
class ProducerUpdates:
    """The changes of producer state that an append makes, to be applied after the append."""

    appends: list[ProducerAppendInfo]
    completed: list[CompletedTxn]
    duplicate: BatchMetadata | None = None


def check_producers(
    states: ProducerStateManager, checked: CheckedBatches, origin: AppendOrigin
) -> ProducerUpdates:
    """Check the batches of idempotent producers against the known producer state.

    Requires the log's lock. If a batch is a duplicate, the caller must append nothing. Raises the errors of
    `ProducerAppendInfo.append`.
    """
    rows = checked.rows
    is_idempotent, is_one_run, in_sequence = classify_producers(rows)
    if not is_idempotent:
        return ProducerUpdates([], [])
    if is_one_run and (in_sequence or origin is not AppendOrigin.CLIENT):
        # the check of the first batch covers those that follow it; the state keeps only the last batches
        later = producer_batches(checked.array, rows[max(1, rows.size - NUM_BATCHES_TO_RETAIN) :])
        return _check_each(states, producer_batches(checked.array, rows[:1]), origin, later)
    return _check_each(states, producer_batches(checked.array, rows), origin)


def _check_each(
    states: ProducerStateManager,
    batches: Sequence[ProducerBatch],
    origin: AppendOrigin,
    later: Sequence[ProducerBatch] = (),
) -> ProducerUpdates:
    """Check `batches` one by one. `later` are batches of the last one's producer that need no check."""
    appends: dict[int, ProducerAppendInfo] = {}
    completed: list[CompletedTxn] = []
    for batch in batches:
        duplicate = _duplicate(states, batch) if origin is AppendOrigin.CLIENT else None
        if duplicate is not None:
            return ProducerUpdates([], [], duplicate)
        pending = appends.get(batch.producer_id)
        if pending is None:
            pending = appends[batch.producer_id] = states.prepare_update(batch.producer_id, origin)
        done = pending.append(batch)
        if done is not None:
            completed.append(done)
    for batch in later:
        appends[batch.producer_id].add_batch(batch)
    return ProducerUpdates(list(appends.values()), completed)


def _duplicate(states: ProducerStateManager, batch: ProducerBatch) -> BatchMetadata | None:
    known = states.producers.get(batch.producer_id)
    return None if known is None else known.find_duplicate(batch)
