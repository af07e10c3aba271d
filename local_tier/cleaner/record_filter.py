"""Pass 2 of the cleaner: select and write the records of some batches that are retained.

Retained are

- below the end of the cleaned range: the newest record of each key, and tombstones until their delete
  horizon;
- above it: everything;
- markers until their delete horizon, which is set when no data of their transaction is left;
- the last batch of each known producer, without its records, for its sequence number;
- the last batch of the cleaned range, without its records, for its offset.

Unlike in Kafka, a delete horizon is only set in batches of the cleaned range.

Source: Cleaner.cleanInto of org.apache.kafka.storage.internals.log, and MemoryRecords.filterTo.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from local_tier.cleaner.dirty_section import batch_bytes, find_clean_survivors
from object_format.dedupe import delete_horizon, filter_batches
from object_format.kernels.batches.layout import CONTROL, DELETE_HORIZON, LEADER_EPOCH, TRANSACTIONAL
from object_format.record_batch.control_batch import control_type
from object_format.record_batch.headers import (
    TimestampType,
    read_header,
    set_append_time,
    set_max_timestamp,
)
from object_format.record_batch.records import decode_batch, encode_batch, verify_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

    from local_tier.cleaner.cleaned_transactions import CleanedTransactions
    from local_tier.cleaner.dirty_section import DirtyKeys
    from local_tier.producers.producer_state_entry import LastRecord
    from local_tier.segment.transaction_index import AbortedTxn
    from object_format.buffers import Bytes
    from object_format.dedupe import Survivors
    from object_format.record_batch.headers import BatchRows


class BatchAction(IntEnum):
    """The treatment of a batch by the cleaner.

    CLEAN and DIRTY batches are filtered by the survivors of their part of the log.
    """

    DROP = 0
    COPY = 1
    EMPTY = 2
    CLEAN = 3
    DIRTY = 4
    MARKER = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanParameters:
    """The parameters of one cleaning. Times are in milliseconds since the Unix epoch."""

    keys: DirtyKeys
    first_dirty_offset: int
    upper_bound_offset: int
    now_ms: int
    delete_retention_ms: int
    last_records: Mapping[int, LastRecord]

    @property
    def delete_horizon_ms(self) -> int | None:
        """The time from which tombstones that this cleaning sees first may be deleted; None for never."""
        return delete_horizon(self.now_ms, self.delete_retention_ms)


class RecordFilter:
    """Filters the batches of a log in offset order, for one cleaning."""

    def __init__(self, parameters: CleanParameters, transactions: CleanedTransactions) -> None:
        self._parameters = parameters
        self.transactions = transactions
        self.aborted: list[AbortedTxn] = []
        """Aborted transactions whose markers were retained. The caller empties the list."""
        self.records_invalid = 0

    def filter(self, data: Bytes, rows: BatchRows) -> bytes:
        """Return the retained bytes of some batches. Raises MalformedBatchError for a wrong checksum."""
        verify_rows(data, rows)
        actions = self._actions(data, rows)
        epochs = _leader_epochs(data, rows)
        clean_survivors = None
        if (actions == BatchAction.CLEAN).any():
            clean_survivors = find_clean_survivors(
                self._parameters.keys.finder, data, rows, actions == BatchAction.CLEAN
            )
            self.records_invalid += clean_survivors.records_invalid
        self._retain_last_batches(rows, actions, clean_survivors)
        parts: list[bytes | memoryview] = []
        for start, end in _runs_of_equal_action(actions, epochs):
            parts += self._write(BatchAction(actions[start]), data, rows[start:end], clean_survivors)
        return b"".join(parts)

    def _actions(self, data: Bytes, rows: BatchRows) -> npt.NDArray[np.uint8]:
        parameters = self._parameters
        ends = rows["base_offset"] + rows["last_offset_delta"]
        actions = np.full(rows.size, BatchAction.DIRTY, np.uint8)
        actions[ends < parameters.first_dirty_offset] = BatchAction.CLEAN
        actions[rows["base_offset"] >= parameters.keys.end_offset] = BatchAction.COPY
        for index in np.flatnonzero((rows["attributes"] & (TRANSACTIONAL | CONTROL)) != 0).tolist():
            actions[index] = self._transactional_action(data, rows, index, BatchAction(actions[index]))
        return actions

    def _transactional_action(
        self, data: Bytes, rows: BatchRows, index: int, action: BatchAction
    ) -> BatchAction:
        row = rows[index]
        producer, last = int(row["producer_id"]), int(row["base_offset"]) + int(row["last_offset_delta"])
        attributes = int(row["attributes"])
        if attributes & CONTROL == 0:
            return BatchAction.DROP if self.transactions.on_batch(producer, last) else action
        kind = control_type(batch_bytes(data, rows, index, index + 1)) if row["record_count"] else None
        is_discardable, aborted = self.transactions.on_marker(producer, last, kind)
        if aborted is not None:
            self.aborted.append(aborted)
        if not is_discardable:
            return BatchAction.COPY
        if attributes & DELETE_HORIZON == 0 and kind is not None:
            return BatchAction.MARKER
        return (
            BatchAction.COPY
            if int(row["base_timestamp"]) > self._parameters.now_ms and kind is not None
            else BatchAction.DROP
        )

    def _retain_last_batches(
        self, rows: BatchRows, actions: npt.NDArray[np.uint8], clean_survivors: Survivors | None
    ) -> None:
        """Empty batches that must be retained, instead of dropping them."""
        ends = rows["base_offset"] + rows["last_offset_delta"]
        needed = ends + 1 == self._parameters.upper_bound_offset
        if self._parameters.last_records:
            for index in np.flatnonzero(rows["producer_id"] >= 0).tolist():
                needed[index] |= self._is_last_of_producer(rows[index])
        for index in np.flatnonzero(needed).tolist():
            if self._loses_all_records(rows[index], BatchAction(actions[index]), clean_survivors):
                actions[index] = BatchAction.EMPTY

    def _loses_all_records(
        self, row: np.void, action: BatchAction, clean_survivors: Survivors | None
    ) -> bool:
        if action is BatchAction.DROP:
            return True
        survivors = clean_survivors if action is BatchAction.CLEAN else self._parameters.keys.survivors
        if action not in {BatchAction.CLEAN, BatchAction.DIRTY} or survivors is None:
            return False
        first = int(row["base_offset"])
        return not survivors.offset_window.between(first, first + int(row["last_offset_delta"])).size

    def _is_last_of_producer(self, row: np.void) -> bool:
        last = self._parameters.last_records.get(int(row["producer_id"]))
        if last is None:
            return False
        if last.last_data_offset is not None:
            return int(row["base_offset"]) + int(row["last_offset_delta"]) == last.last_data_offset
        return bool(int(row["attributes"]) & CONTROL) and int(row["producer_epoch"]) == last.producer_epoch

    def _write(
        self, action: BatchAction, data: Bytes, rows: BatchRows, clean_survivors: Survivors | None
    ) -> list[bytes | memoryview]:
        match action:
            case BatchAction.DROP:
                return []
            case BatchAction.COPY:
                return [batch_bytes(data, rows, 0, rows.size)]
            case BatchAction.EMPTY:
                return [_empty_batch(data, rows[i : i + 1]) for i in range(rows.size)]
            case BatchAction.MARKER:
                horizon = self._parameters.delete_horizon_ms
                return [_marker_with_horizon(data, rows[i : i + 1], horizon) for i in range(rows.size)]
            case BatchAction.CLEAN | BatchAction.DIRTY:
                survivors = (
                    self._parameters.keys.survivors
                    if clean_survivors is None or action is BatchAction.DIRTY
                    else clean_survivors
                )
                return self._filter_records(data, rows, survivors)

    def _filter_records(self, data: Bytes, rows: BatchRows, survivors: Survivors) -> list[bytes | memoryview]:
        written = filter_batches(
            batch_bytes(data, rows, 0, rows.size),
            survivors,
            offset_shift=0,
            leader_epoch=int(_leader_epochs(data, rows[:1])[0]),
            delete_horizon_ms=self._parameters.delete_horizon_ms,
            merge=False,
        )
        return list(written.buffers)


def _leader_epochs(data: Bytes, rows: BatchRows) -> npt.NDArray[np.int32]:
    positions = rows["position"][:, None] + np.arange(LEADER_EPOCH, LEADER_EPOCH + 4)
    epochs: npt.NDArray[np.int32] = data[positions].view(">i4")[:, 0].astype(np.int32)
    return epochs


def _runs_of_equal_action(
    actions: npt.NDArray[np.uint8], epochs: npt.NDArray[np.int32]
) -> Iterator[tuple[int, int]]:
    """Yield the runs of batches with the same action and leader epoch."""
    changes = np.flatnonzero((np.diff(actions) != 0) | (np.diff(epochs) != 0)) + 1
    edges = [0, *changes.tolist(), actions.size]
    yield from pairwise(edges)


def _empty_batch(data: Bytes, rows: BatchRows) -> bytes:
    """Return the batch without its records (DefaultRecordBatch.writeEmptyHeader)."""
    header = read_header(batch_bytes(data, rows, 0, 1))
    batch = bytearray(
        encode_batch(
            [],
            [],
            [],
            base_offset=header.base_offset,
            last_offset_delta=header.last_offset_delta,
            leader_epoch=header.partition_leader_epoch,
            producer=(header.producer_id, header.producer_epoch, header.base_sequence),
            is_transactional=header.is_transactional,
            is_control=header.is_control,
        )
    )
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        set_append_time(batch, header.max_timestamp)
    else:
        set_max_timestamp(batch, header.max_timestamp)
    return bytes(batch)


def _marker_with_horizon(data: Bytes, rows: BatchRows, delete_horizon_ms: int | None) -> bytes:
    """Return a control batch with its delete horizon set (KIP-534)."""
    batch = batch_bytes(data, rows, 0, 1)
    header = read_header(batch)
    records = decode_batch(batch, verify=False).records()
    return encode_batch(
        [record.timestamp for record in records],
        [record.key for record in records],
        [record.value for record in records],
        [record.headers for record in records],
        base_offset=header.base_offset,
        offset_deltas=[record.offset - header.base_offset for record in records],
        last_offset_delta=header.last_offset_delta,
        leader_epoch=header.partition_leader_epoch,
        producer=(header.producer_id, header.producer_epoch, header.base_sequence),
        timestamp_type=header.timestamp_type,
        is_transactional=header.is_transactional,
        is_control=True,
        delete_horizon_ms=delete_horizon_ms,
    )
