"""The state of idempotent producers and of their transactions."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import crc32c
import pytest

from local_tier.errors import (
    CorruptSnapshotError,
    InvalidProducerEpochError,
    InvalidTransactionError,
    OutOfOrderSequenceError,
)
from local_tier.files.file_system import RealFileSystem
from local_tier.producers.batches import ProducerBatch, producer_batches
from local_tier.producers.producer_state_entry import AppendOrigin, BatchMetadata, ProducerStateEntry
from local_tier.producers.producer_state_manager import ProducerStateManager
from local_tier.producers.snapshots import decode_snapshot, encode_snapshot
from object_format.buffers import readable
from tests.local_tier.batches import batch, marker, rows_of

if TYPE_CHECKING:
    from pathlib import Path

TOP = 2**31 - 1


def opened(directory: Path, expiry_ms: int = 1_000_000) -> ProducerStateManager:
    return ProducerStateManager(RealFileSystem(), directory, log_name="orders-0", expiry_ms=expiry_ms)


def parsed(data: bytes) -> ProducerBatch:
    [found] = producer_batches(readable(data), rows_of(data))
    return found


def append(states: ProducerStateManager, data: bytes, origin: AppendOrigin = AppendOrigin.CLIENT) -> None:
    """Append one batch as a log does."""
    found = parsed(data)
    appended = states.prepare_update(found.producer_id, origin)
    completed = appended.append(found)
    states.update(appended)
    if completed is not None:
        states.complete_txn(completed)
    states.map_end_offset = found.last_offset + 1


def test_sequence_numbers_are_consecutive_and_wrap_around(tmp_path: Path) -> None:
    """0 follows 2^31 - 1, between batches and within one."""
    states = opened(tmp_path)
    append(states, batch(0, 3, producer=(7, 0, TOP - 2)))
    append(states, batch(3, 1, producer=(7, 0, 0)))
    append(states, batch(4, 2, producer=(8, 0, TOP)))
    append(states, batch(6, 1, producer=(8, 0, 1)))
    assert states.producers[8].batches[0].first_sequence == TOP
    with pytest.raises(OutOfOrderSequenceError, match="expected 2") as ahead:
        append(states, batch(7, 1, producer=(8, 0, 3)))
    with pytest.raises(OutOfOrderSequenceError, match="expected 2") as behind:
        append(states, batch(7, 1, producer=(8, 0, TOP - 1)))
    assert (ahead.value.is_behind, behind.value.is_behind) == (False, True)


def test_a_new_epoch_starts_at_sequence_0_and_fences_the_old_one(tmp_path: Path) -> None:
    """Older epochs are rejected, except in replicated batches."""
    states = opened(tmp_path)
    append(states, batch(0, 1, producer=(7, 1, 5)))
    with pytest.raises(OutOfOrderSequenceError, match="expected 0"):
        append(states, batch(1, 1, producer=(7, 2, 6)))
    append(states, batch(1, 1, producer=(7, 2, 0)))
    with pytest.raises(InvalidProducerEpochError, match="latest epoch is 2"):
        append(states, batch(2, 1, producer=(7, 1, 6)))
    append(states, batch(2, 1, producer=(7, 1, 9)), AppendOrigin.REPLICATION)
    assert states.producers[7].last_sequence == 9


def test_a_marker_with_a_newer_epoch_fences_the_old_one(tmp_path: Path) -> None:
    """The coordinator raises the epoch when it aborts the transaction of a producer that does not respond."""
    states = opened(tmp_path)
    append(states, batch(0, 1, producer=(7, 1, 0), transactional=True))
    append(states, marker(1, producer=(7, 2), abort=True), AppendOrigin.COORDINATOR)
    with pytest.raises(InvalidProducerEpochError, match="latest epoch is 2"):
        append(states, batch(2, 1, producer=(7, 1, 1), transactional=True))
    append(states, batch(2, 1, producer=(7, 2, 0), transactional=True))


def test_duplicates_of_the_last_five_batches_are_detected(tmp_path: Path) -> None:
    """A duplicate has exactly the same sequence numbers. Its first offsets are returned."""
    states = opened(tmp_path)
    for i in range(7):
        append(states, batch(10 * i, 2, producer=(7, 0, 2 * i)))
    state = states.producers[7]
    assert [known.first_sequence for known in state.batches] == [4, 6, 8, 10, 12]
    duplicate = state.find_duplicate(parsed(batch(0, 2, producer=(7, 0, 6))))
    assert duplicate is not None
    assert (duplicate.first_offset, duplicate.last_offset) == (30, 31)
    for other in ((7, 0, 2), (7, 1, 6)):
        assert state.find_duplicate(parsed(batch(0, 2, producer=other))) is None
    assert state.find_duplicate(parsed(batch(0, 1, producer=(7, 0, 6)))) is None


def test_open_and_unreplicated_transactions_bound_the_last_stable_offset(tmp_path: Path) -> None:
    """The first unstable offset is that of the oldest such transaction."""
    states = opened(tmp_path)
    append(states, batch(0, 1, producer=(7, 0, 0), transactional=True))
    append(states, batch(1, 1, producer=(8, 0, 0), transactional=True))
    append(states, batch(2, 1, producer=(7, 0, 1), transactional=True))
    seen = [states.first_unstable_offset]
    found = states.prepare_update(7, AppendOrigin.COORDINATOR)
    completed = found.append(parsed(marker(3, producer=(7, 0), abort=True)))
    assert completed == (7, 0, 3, True)
    states.update(found)
    assert states.last_stable_offset(completed) == 1
    states.complete_txn(completed)
    assert states.first_unstable_offset == 0
    states.on_high_watermark_updated(4)
    seen.append(states.first_unstable_offset)
    append(states, marker(4, producer=(8, 0), abort=False), AppendOrigin.COORDINATOR)
    states.on_high_watermark_updated(5)
    seen.append(states.first_unstable_offset)
    assert seen == [0, 1, None]
    append(states, marker(5, producer=(8, 0), abort=True), AppendOrigin.COORDINATOR)
    assert states.producers[8].coordinator_epoch == 0


def test_batches_and_markers_that_contradict_a_transaction_are_rejected(tmp_path: Path) -> None:
    """These are a non-transactional batch in a transaction, and a marker of a replaced coordinator."""
    states = opened(tmp_path)
    append(states, batch(0, 1, producer=(7, 0, 0), transactional=True))
    with pytest.raises(InvalidTransactionError, match="non-transactional"):
        append(states, batch(1, 1, producer=(7, 0, 1)))
    append(states, marker(1, producer=(7, 0), abort=True, coordinator_epoch=5), AppendOrigin.COORDINATOR)
    with pytest.raises(InvalidTransactionError, match="latest epoch is 5"):
        append(states, marker(2, producer=(7, 0), abort=True, coordinator_epoch=4), AppendOrigin.COORDINATOR)


def test_a_snapshot_has_kafkas_format(tmp_path: Path) -> None:
    """It has version 1, a CRC-32C, a count, and 46 bytes per producer."""
    states = opened(tmp_path)
    append(states, batch(5, 3, producer=(7, 2, 40), timestamp=100, transactional=True))
    assert states.take_snapshot() == 8
    body = struct.pack(">iqhiqiqiq", 1, 7, 2, 42, 7, 2, 102, -1, 5)
    expected = struct.pack(">hI", 1, crc32c.crc32c(body)) + body
    assert (tmp_path / "00000000000000000008.snapshot").read_bytes() == expected
    assert len(expected) == 6 + 4 + 46
    assert states.take_snapshot() is None


def test_state_is_loaded_from_the_newest_valid_snapshot(tmp_path: Path) -> None:
    """Corrupt snapshots are deleted, and so are those above the end and at or below the start."""
    states = opened(tmp_path)
    for offset in range(5):
        append(states, batch(offset, 1, producer=(7, 0, offset), transactional=offset == 1))
        if offset == 1:
            append(states, marker(2, producer=(7, 0), abort=False), AppendOrigin.COORDINATOR)
        states.map_end_offset = offset + 1
        states.take_snapshot()
    damaged = tmp_path / "00000000000000000004.snapshot"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    again = opened(tmp_path)
    again.truncate_and_reload(1, 4, now_ms=2_000)
    assert again.map_end_offset == 3
    assert again.producers[7].last_sequence == 2
    assert [path.name[19:] for path in sorted(tmp_path.iterdir())] == ["2.snapshot", "3.snapshot"]
    with pytest.raises(CorruptSnapshotError):
        decode_snapshot(b"\0\1", tmp_path)


def test_producers_expire_unless_they_have_an_open_transaction(tmp_path: Path) -> None:
    """This also holds for state that is loaded from a snapshot."""
    states = opened(tmp_path, expiry_ms=100)
    append(states, batch(0, 1, producer=(7, 0, 0), timestamp=1_000))
    append(states, batch(1, 1, producer=(8, 0, 0), timestamp=1_000, transactional=True))
    states.take_snapshot()
    again = opened(tmp_path, expiry_ms=100)
    again.truncate_and_reload(0, 2, now_ms=1_100)
    states.remove_expired(1_099)
    assert set(states.producers) == {7, 8}
    states.remove_expired(1_100)
    assert set(states.producers) == set(again.producers) == {8}
    assert again.first_unstable_offset == 1
    append(states, batch(2, 1, producer=(7, 0, 55)))


def test_stray_snapshots_are_deleted_except_the_newest(tmp_path: Path) -> None:
    """The newest was written at the close and saves a scan."""
    states = opened(tmp_path)
    for offset in (3, 5, 7, 9, 11):
        states.map_end_offset = offset
        states.take_snapshot()
    states.snapshots.delete_stray_snapshots([0, 5, 9])
    assert states.snapshots.offsets == [5, 9, 11]
    states.snapshots.delete_stray_snapshots([0, 5, 12])
    assert states.snapshots.offsets == [5]
    assert states.snapshots.mark_deleted(5) == tmp_path / "00000000000000000005.snapshot.deleted"
    assert states.snapshots.mark_deleted(5) is None


def test_a_snapshot_is_read_back(tmp_path: Path) -> None:
    """It has one batch per producer. A producer that only ended transactions has none."""
    plain = ProducerStateEntry(1, 2, 3, 4, None)
    busy = ProducerStateEntry(5, 6, 7, 8, 9)
    busy.batches.append(BatchMetadata(TOP, 20, 3, 8))
    assert decode_snapshot(encode_snapshot([plain, busy]), tmp_path) == [plain, busy]
