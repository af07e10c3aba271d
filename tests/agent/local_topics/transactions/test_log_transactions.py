"""Markers in a local log: which transaction they end, and what a crash or a lost history may not do to it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from agent.local_topics.transactions.log_transactions import (
    UNKNOWN_SEQUENCE,
    abort,
    open_transaction,
    open_transactions,
    write_markers,
)
from agent.read.batch_slicing import render_control_batch
from catalog.model import ControlBatch, Extent, FileKind, OpenTransaction, PartitionId
from catalog.transactions.local_partitions import PendingMarker
from local_tier.log.unified_log import Isolation
from object_format.record_batch.headers import iter_headers
from object_format.record_batch.records import decode_batch, encode_batch
from tests.local_tier.logs import LogHarness, crash

if TYPE_CHECKING:
    from pathlib import Path

    from local_tier.log.unified_log import UnifiedLog

_KEY = PartitionId(UUID(int=5), 0)
_PRODUCER = 7


@pytest.fixture
def harness(tmp_path: Path) -> LogHarness:
    return LogHarness(tmp_path)


@pytest.fixture
def log(harness: LogHarness) -> UnifiedLog:
    return harness.open()


def _append(log: UnifiedLog, sequence: int, *, epoch: int = 0, count: int = 1) -> None:
    """Append a transactional batch as the leader, and show it to readers."""
    batch = encode_batch(
        [1] * count,
        [None] * count,
        [b"%d" % sequence] * count,
        producer=(_PRODUCER, epoch, sequence),
        is_transactional=True,
    )
    log.append_as_leader(batch, 0)
    log.update_high_watermark(log.log_end_offset)


def _marker(first_sequence: int, *, commits: bool = True, epoch: int = 0) -> PendingMarker:
    return PendingMarker(
        number=1,
        partition=_KEY,
        producer_id=_PRODUCER,
        producer_epoch=epoch,
        first_sequence=first_sequence,
        commits=commits,
        marker_epoch=epoch,
        coordinator_epoch=3,
        ended_ms=99,
    )


def _controls(log: UnifiedLog) -> list[tuple[int, bytes, bytes]]:
    """Return offset, key and value of each control batch."""
    data = log.read(log.log_start_offset, 1 << 20, Isolation.LOG_END).data
    found = []
    for position, header in iter_headers(data):
        if header.is_control:
            record = decode_batch(data, position).record(0)
            assert record.key is not None
            assert record.value is not None
            found.append((header.base_offset, record.key, record.value))
    return found


def test_a_marker_is_the_control_batch_of_kafkas_coordinator(log: UnifiedLog) -> None:
    _append(log, 0, count=2)
    assert log.last_stable_offset == 0
    assert write_markers(log, 4, [_marker(0)]) == 1
    assert _controls(log) == [(2, b"\0\0\0\1", b"\0\0\0\0\0\3")]
    assert (log.last_stable_offset, log.high_watermark, log.open_transactions()) == (3, 3, [])
    assert log.read(0, 1 << 20, Isolation.TXN_COMMITTED).aborted == ()


@pytest.mark.parametrize("commits", [True, False])
def test_object_topics_show_the_same_marker(log: UnifiedLog, *, commits: bool) -> None:
    """The catalog's row becomes the bytes that a local log has stored."""
    _append(log, 0, count=2)
    marker = _marker(0, commits=commits)
    write_markers(log, marker.coordinator_epoch, [marker])
    control = ControlBatch(
        producer_id=marker.producer_id, producer_epoch=marker.marker_epoch, commits=marker.commits
    )
    extent = Extent(
        topic_id=_KEY.topic_id,
        partition=0,
        base_offset=2,
        last_offset=2,
        record_count=0,
        min_timestamp=0,
        max_timestamp=0,
        position=0,
        length=0,
        index_position=0,
        index_length=0,
        offset_shift=0,
        leader_epoch=marker.coordinator_epoch,
        unique_keys=False,
        committed_ms=marker.ended_ms,
        file_id=UUID(int=0),
        object_name="",
        file_kind=FileKind.CONTROL,
        control=control,
    )

    data = log.read(0, 1 << 20, Isolation.LOG_END).data
    (stored,) = (data[position:] for position, header in iter_headers(data) if header.is_control)
    assert stored == render_control_batch(extent, control)


def test_readers_of_committed_records_learn_of_an_aborted_transaction(log: UnifiedLog) -> None:
    _append(log, 0)
    write_markers(log, 4, [_marker(0, commits=False)])
    assert _controls(log) == [(1, b"\0\0\0\0", b"\0\0\0\0\0\3")]
    (aborted,) = log.read(0, 1 << 20, Isolation.TXN_COMMITTED).aborted
    assert aborted[:3] == (_PRODUCER, 0, 1)


def test_a_repeated_marker_is_not_appended_again(harness: LogHarness, log: UnifiedLog) -> None:
    _append(log, 0)
    write_markers(log, 4, [_marker(0)])
    log.flush()
    crash(log)  # before the marker was completed in the catalog
    again = harness.open()
    again.update_high_watermark(again.log_end_offset)
    assert write_markers(again, 5, [_marker(0)]) == 0
    assert len(_controls(again)) == 1
    assert again.last_stable_offset == 2


def test_a_transaction_that_a_crash_interrupts_ends_with_its_marker(
    harness: LogHarness, log: UnifiedLog
) -> None:
    _append(log, 4)
    _append(log, 5)
    crash(log)
    again = harness.open()
    again.update_high_watermark(again.log_end_offset)
    expected = OpenTransaction(_KEY, _PRODUCER, producer_epoch=0, first_sequence=4, first_offset=0)
    assert open_transactions(again, _KEY) == [expected]
    assert again.last_stable_offset == 0
    assert write_markers(again, 5, [_marker(4, commits=False)]) == 1
    assert again.last_stable_offset == 3


def test_a_completed_marker_that_a_failover_brings_back_does_not_end_the_next_transaction(
    log: UnifiedLog,
) -> None:
    _append(log, 0)
    write_markers(log, 4, [_marker(0)])
    _append(log, 1)  # of the next transaction, with the same epoch
    assert write_markers(log, 4, [_marker(0)]) == 0
    assert log.last_stable_offset == 2
    _append(log, 2, epoch=0)
    assert write_markers(log, 4, [_marker(1, epoch=1)]) == 0  # of another epoch
    assert write_markers(log, 4, [_marker(1, commits=False)]) == 1
    assert log.last_stable_offset == log.log_end_offset


def test_a_marker_of_a_transaction_without_batches_is_not_appended(log: UnifiedLog) -> None:
    assert write_markers(log, 4, [_marker(0)]) == 0
    assert log.log_end_offset == 0


def test_a_marker_ends_a_transaction_whose_first_batch_was_deleted(log: UnifiedLog) -> None:
    _append(log, 0)
    _append(log, 1)
    log.delete_records(1)
    found = open_transaction(log, _KEY, _PRODUCER)
    assert found is not None
    assert (found.first_sequence, found.first_offset) == (UNKNOWN_SEQUENCE, 0)
    assert write_markers(log, 4, [_marker(0, epoch=1)]) == 0
    assert write_markers(log, 4, [_marker(0)]) == 1
    assert log.last_stable_offset == 3


def test_a_marker_ends_a_transaction_whose_first_batch_was_deleted_before_a_recovery(
    harness: LogHarness, log: UnifiedLog
) -> None:
    """The recovered log knows the transaction from its first remaining batch on."""
    _append(log, 0)
    log.roll()
    _append(log, 1)
    _append(log, 2)
    log.delete_records(1)
    log.flush()
    crash(log)
    again = harness.open(log_start_offset=1)
    again.update_high_watermark(again.log_end_offset)
    found = open_transaction(again, _KEY, _PRODUCER)
    assert found is not None
    assert found.first_sequence == 1
    assert write_markers(again, 5, [_marker(2)]) == 0
    assert write_markers(again, 5, [_marker(0)]) == 1
    assert again.last_stable_offset == again.log_end_offset == 4


def test_only_the_transaction_that_was_checked_is_aborted(log: UnifiedLog) -> None:
    _append(log, 0)
    checked = open_transaction(log, _KEY, _PRODUCER)
    assert checked is not None
    write_markers(log, 4, [_marker(0)])
    assert not abort(log, 4, checked, now_ms=5)
    _append(log, 1)
    assert not abort(log, 4, checked, now_ms=5)
    current = open_transaction(log, _KEY, _PRODUCER)
    assert current is not None
    assert abort(log, 4, current, now_ms=5)
    assert [key for _, key, _ in _controls(log)] == [b"\0\0\0\1", b"\0\0\0\0"]
    assert log.last_stable_offset == 4


def test_a_transaction_whose_first_batch_was_deleted_after_the_check_is_not_aborted(log: UnifiedLog) -> None:
    """It may have been verified with a later batch meanwhile."""
    _append(log, 0)
    _append(log, 1)
    checked = open_transaction(log, _KEY, _PRODUCER)
    assert checked is not None
    log.delete_records(1)
    assert not abort(log, 4, checked, now_ms=5)
    current = open_transaction(log, _KEY, _PRODUCER)
    assert current is not None
    assert abort(log, 4, current, now_ms=5)
    assert log.last_stable_offset == log.log_end_offset == 3
