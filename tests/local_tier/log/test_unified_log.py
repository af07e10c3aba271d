"""Appends, reads, offsets, truncation and failures of a log."""

from __future__ import annotations

import itertools
import threading
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from core.errors import OffsetOutOfRangeError
from local_tier.config import LogConfig
from local_tier.errors import (
    InconsistentTopicError,
    InvalidProducerEpochError,
    LogClosedError,
    LogDirectoryOfflineError,
    OffsetsOutOfOrderError,
    OutOfOrderSequenceError,
)
from local_tier.files.file_system import RealFileSystem
from local_tier.log.unified_log import Isolation
from local_tier.producers.producer_state_entry import AppendOrigin
from object_format.errors import InvalidRecordError
from object_format.record_batch.headers import iter_headers
from object_format.record_batch.records import decode_batches
from tests.local_tier.batches import batch, marker, offsets_of
from tests.local_tier.logs import SMALL, LogHarness, crash
from tests.local_tier.steps import DiskError, NoFaults, SteppedFileSystem, Switch

if TYPE_CHECKING:
    from pathlib import Path

    from local_tier.log.unified_log import UnifiedLog


@pytest.fixture
def harness(tmp_path: Path) -> LogHarness:
    return LogHarness(tmp_path)


def bases(log: UnifiedLog) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def read_all(log: UnifiedLog, offset: int = 0, isolation: Isolation = Isolation.LOG_END) -> list[int]:
    """Return the offsets of all records from `offset` on, read in small steps."""
    found: list[int] = []
    while True:
        got = log.read(offset, 300, isolation)
        if got.next_offset == offset:
            return found
        found += offsets_of(got.data)
        offset = got.next_offset


def test_a_leader_assigns_offsets_and_epochs(harness: LogHarness) -> None:
    """The batches of an append have consecutive offsets, and each epoch's start is recorded."""
    log = harness.open()
    first = log.append_as_leader(batch(0, 3) + batch(0, 2), 5)
    second = log.append_as_leader(batch(0, 1), 7)
    assert (first.first_offset, first.last_offset) == (0, 4)
    assert (second.first_offset, second.last_offset, log.log_end_offset) == (5, 5, 6)
    headers = [header for _, header in iter_headers(log.read(0, 10_000, Isolation.LOG_END).data)]
    assert [(h.base_offset, h.partition_leader_epoch) for h in headers] == [(0, 5), (3, 5), (5, 7)]
    assert log.leader_epochs == ((5, 0), (7, 5))
    assert log.end_offset_for_epoch(5) == (5, 5)
    assert (log.epoch_for_offset(4), log.epoch_for_offset(5)) == (5, 7)
    log.close()


def test_a_writable_buffer_is_patched_in_place(harness: LogHarness) -> None:
    """It is not copied. A read-only buffer is not changed."""
    log = harness.open()
    log.append_as_leader(batch(0, 2), 0)
    frozen, loose = batch(0), bytearray(batch(0))
    log.append_as_leader(frozen, 1)
    log.append_as_leader(loose, 1)
    assert [h.base_offset for _, h in iter_headers(frozen)] == [0]
    assert [h.base_offset for _, h in iter_headers(loose)] == [3]
    log.close()


@pytest.mark.parametrize(
    ("config", "data", "code"),
    [
        (SMALL, batch(0)[:-1] + b"x", "CORRUPT_MESSAGE"),
        (SMALL, batch(0)[:-1], "CORRUPT_MESSAGE"),
        (LogConfig(compact=True), batch(0, keys=False), "INVALID_RECORD"),
        (LogConfig(max_message_bytes=50), batch(0), "MESSAGE_TOO_LARGE"),
        (LogConfig(message_timestamp_before_max_ms=10), batch(0, timestamp=5), "INVALID_TIMESTAMP"),
        (SMALL, batch(0, size=2000), "RECORD_LIST_TOO_LARGE"),
        (SMALL, marker(0, producer=(7, 0), abort=True), "INVALID_RECORD"),
    ],
)
def test_a_leader_rejects_records_that_its_topic_does_not_allow(
    harness: LogHarness, config: LogConfig, data: bytes, code: str
) -> None:
    """The error has Kafka's code, and nothing is appended."""
    log = harness.open(config)
    with pytest.raises(InvalidRecordError) as caught:
        log.append_as_leader(data, 0)
    assert caught.value.reason == code
    assert log.log_end_offset == log.size == 0
    log.close()


def test_the_log_sets_timestamps_with_log_append_time(harness: LogHarness) -> None:
    """All records of a batch get the time of the append."""
    log = harness.open(LogConfig(log_append_time=True))
    appended = log.append_as_leader(batch(0, 2, timestamp=5), 0)
    assert appended.log_append_time == 1_000_000
    [columns] = decode_batches(log.read(0, 1000, Isolation.LOG_END).data, verify=True)
    assert columns.timestamps.tolist() == [1_000_000] * 2
    log.close()


def test_a_duplicate_batch_returns_its_first_offsets(harness: LogHarness) -> None:
    """Duplicates of the last five batches are detected, after a restart those of the last one."""
    log = harness.open()
    for i in range(6):
        log.append_as_leader(batch(0, 2, producer=(7, 0, 2 * i)), 0)
    again = log.append_as_leader(batch(0, 2, producer=(7, 0, 4)), 0)
    assert (again.first_offset, again.last_offset, again.is_duplicate) == (4, 5, True)
    with pytest.raises(OutOfOrderSequenceError) as behind:
        log.append_as_leader(batch(0, 2, producer=(7, 0, 0)), 0)
    assert behind.value.is_behind
    with pytest.raises(OutOfOrderSequenceError) as ahead:
        log.append_as_leader(batch(0, 1, producer=(7, 0, 13)), 0)
    assert not ahead.value.is_behind
    log.append_as_leader(batch(0, 1, producer=(7, 1, 0)), 0)
    with pytest.raises(InvalidProducerEpochError):
        log.append_as_leader(batch(0, 1, producer=(7, 0, 12)), 0)
    assert log.log_end_offset == 13
    assert log.last_records_of_producers() == {7: (12, 1)}
    log.close()
    log = harness.open(clean=True)
    assert log.append_as_leader(batch(0, 1, producer=(7, 1, 0)), 0).first_offset == 12
    assert log.append_as_leader(batch(0, 1, producer=(7, 1, 1)), 0).first_offset == 13
    log.close()


def test_a_follower_keeps_the_offsets_of_batches(harness: LogHarness) -> None:
    """Gaps are allowed. Decreasing offsets, offsets below the log end and corrupt batches are rejected."""
    log = harness.open()
    log.truncate_fully_and_start_at(100)
    data = batch(100, 2, epoch=3) + batch(110, 1, epoch=4)
    appended = log.append_as_follower(memoryview(data))
    assert (appended.first_offset, appended.last_offset) == (100, 110)
    assert bytes(log.read(100, 10_000, Isolation.LOG_END).data) == data
    assert log.leader_epochs == ((3, 100), (4, 110))
    for bad in (batch(110), batch(120) + batch(115)):
        with pytest.raises(OffsetsOutOfOrderError):
            log.append_as_follower(bad)
    with pytest.raises(InvalidRecordError):
        log.append_as_follower(batch(111)[:-1] + b"x")
    assert log.log_end_offset == 111
    assert read_all(log, 105) == [110]
    log.close()


@pytest.mark.parametrize("filled", [0, 7])
def test_a_crash_while_a_log_starts_elsewhere_leaves_no_gap(tmp_path: Path, filled: int) -> None:
    """Otherwise a reader would skip the offsets between the old end and the new start."""
    for steps in itertools.count():
        switch = Switch(NoFaults())
        harness = LogHarness(tmp_path / str(steps), SteppedFileSystem(RealFileSystem(), switch))
        harness.root.mkdir()
        log = harness.open()
        for _ in range(filled):
            log.append_as_leader(batch(0, size=400), 0)
        faults = switch.faults = DiskError("", steps + 1)
        with suppress(OSError, LogDirectoryOfflineError):
            log.truncate_fully_and_start_at(100)
        switch.faults = NoFaults()
        crash(log)
        log = harness.open()
        assert read_all(log, log.log_start_offset) == list(range(log.log_start_offset, log.log_end_offset))
        crash(log)
        if not faults.failed:
            break
    assert steps > 5


def test_a_large_replicated_append_is_split_into_segments(harness: LogHarness) -> None:
    """Segments keep their size. A batch that is larger gets a segment for itself."""
    log = harness.open()
    log.append_as_follower(b"".join(batch(i, 1, size=300) for i in range(9)) + batch(9, 1, size=3000))
    assert all(segment.size <= 1000 for segment in log.segments[:-1])
    assert bases(log) == [0, 2, 4, 6, 8, 9]
    assert read_all(log) == list(range(10))
    log.close()


def test_a_replicated_append_may_span_more_offsets_than_a_segment(harness: LogHarness) -> None:
    """A cleaned topic may have distant offsets. They are split into segments whose indexes can hold them."""
    log = harness.open()
    far = [0, 2**31 - 1, 2**31, 2**33, 2**33 + 1]
    log.append_as_follower(b"".join(batch(offset) for offset in far))
    assert bases(log) == [0, 2**31, 2**33]
    assert read_all(log) == far
    log.close()


def test_reads_end_where_their_isolation_ends(harness: LogHarness) -> None:
    """That is the log end, the high watermark or the last stable offset. Only whole batches are returned."""
    log = harness.open()
    log.append_as_leader(batch(0, 2), 0)
    log.append_as_leader(batch(0, 2, producer=(7, 0, 0), transactional=True), 0)
    log.append_as_leader(batch(0, 3), 0)
    seen = {}
    for high_watermark in (0, 1, 2, 4, 7):
        log.update_high_watermark(high_watermark)
        assert log.log_start_offset <= log.last_stable_offset <= log.high_watermark <= log.log_end_offset
        seen[high_watermark] = [len(read_all(log, 0, isolation)) for isolation in Isolation]
    assert seen == {0: [7, 0, 0], 1: [7, 0, 0], 2: [7, 2, 2], 4: [7, 4, 2], 7: [7, 7, 2]}
    log.append_as_leader(marker(0, producer=(7, 0), abort=False), 0, origin=AppendOrigin.COORDINATOR)
    assert log.last_stable_offset == 2
    log.update_high_watermark(8)
    assert log.last_stable_offset == 8
    log.close()


def test_reads_of_committed_data_return_aborted_transactions(harness: LogHarness) -> None:
    """They return the transactions that overlap the read, over all segments."""
    log = harness.open()
    sequences = {7: 0, 8: 0}
    for producer in (7, 8, 7, 8, 7):
        data = batch(0, 1, size=400, producer=(producer, 0, sequences[producer]), transactional=True)
        log.append_as_leader(data, 0)
        sequences[producer] += 1
    log.append_as_leader(marker(0, producer=(8, 0), abort=True), 0, origin=AppendOrigin.COORDINATOR)
    log.append_as_leader(marker(0, producer=(7, 0), abort=True), 0, origin=AppendOrigin.COORDINATOR)
    log.update_high_watermark(log.log_end_offset)
    assert len(log.segments) > 2
    first = log.read(0, 1, Isolation.TXN_COMMITTED)
    assert [(a.producer_id, a.first_offset, a.last_offset) for a in first.aborted] == [(7, 0, 6)]
    whole = log.read(1, 1, Isolation.TXN_COMMITTED)
    assert {a.producer_id for a in whole.aborted} == {7, 8}
    assert log.read(0, 1, Isolation.HIGH_WATERMARK).aborted == ()
    assert [a.last_stable_offset for a in log.collect_aborted(0, 7)] == [0, 7]
    log.close()


def test_offsets_out_of_range_are_rejected_with_the_range(harness: LogHarness) -> None:
    """Offsets below the log start and above the log end are rejected. A read at the end is empty."""
    log = harness.open()
    log.append_as_leader(batch(0, 5), 0)
    log.update_high_watermark(5)
    log.delete_records(2)
    assert read_all(log, 5) == []
    for offset in (1, 6):
        with pytest.raises(OffsetOutOfRangeError) as caught:
            log.read(offset, 100)
        assert caught.value.offset == offset
    assert log.read(2, 100).next_offset == 5
    with pytest.raises(OffsetOutOfRangeError):
        log.delete_records(6)
    assert log.delete_records(-1) == 5
    log.close()


def test_the_log_start_never_passes_the_high_watermark(harness: LogHarness) -> None:
    """Records above it are not committed, so they cannot be deleted."""
    log = harness.open()
    log.append_as_leader(batch(0, 5), 0)
    log.update_high_watermark(3)
    with pytest.raises(OffsetOutOfRangeError):
        log.delete_records(4)
    with pytest.raises(OffsetOutOfRangeError):
        log.maybe_increment_log_start_offset(5)
    assert log.log_start_offset == 0
    assert log.delete_records(-1) == 3
    log.close()


def test_watermarks_never_go_back(harness: LogHarness) -> None:
    """The log start offset does not decrease, and the high watermark is limited to the log end."""
    log = harness.open()
    log.append_as_leader(batch(0, 5), 0)
    assert log.update_high_watermark(3) == 3
    assert not log.maybe_increment_log_start_offset(0)
    assert log.update_high_watermark(99) == 5
    assert log.delete_records(2) == 2
    assert log.update_high_watermark(1) == 2
    log.close()


def test_a_roll_flushes_the_old_segment(harness: LogHarness) -> None:
    """A log rolls by size and age. The recovery point advances after the sync of the old segment."""
    log = harness.open()
    log.append_as_leader(batch(0, 1, size=600, producer=(7, 0, 0), timestamp=10), 0)
    log.append_as_leader(batch(0, 1, size=600, timestamp=20), 0)
    assert bases(log) == [0, 1]
    assert "1.snapshot" in harness.names()
    assert log.recovery_point == 0
    harness.scheduler.run()
    assert log.recovery_point == 1
    harness.clock.advance(SMALL.segment_ms / 1000)
    log.append_as_leader(batch(0, 1, timestamp=20 + SMALL.segment_ms), 0)
    assert bases(log) == [0, 1]
    log.append_as_leader(batch(0, 1, timestamp=21 + SMALL.segment_ms), 0)
    assert bases(log) == [0, 1, 3]
    assert log.roll().base_offset == 4
    assert read_all(log) == [0, 1, 2, 3]
    log.close()


def test_a_log_works_with_indexes_too_small_for_one_entry(harness: LogHarness) -> None:
    """An empty segment then counts as full, and must not roll onto itself (KAFKA-6388)."""
    log = harness.open(LogConfig(segment_index_bytes=8, index_interval_bytes=0))
    for _ in range(3):
        log.append_as_leader(batch(0), 0)
    assert read_all(log) == [0, 1, 2]
    log.roll()
    assert log.roll().base_offset == 3
    log.close()


def test_flush_messages_makes_appends_durable(tmp_path: Path) -> None:
    """Appends that wait together share one sync."""
    counted = NoFaults()
    harness = LogHarness(tmp_path, fs=SteppedFileSystem(RealFileSystem(), counted))
    log = harness.open(LogConfig(flush_messages=1))
    before = counted.steps["fsync .log"]
    log.append_as_leader(batch(0, 5), 0)
    assert (log.recovery_point, log.unflushed_records) == (5, 0)
    assert counted.steps["fsync .log"] == before + 1
    threads = [threading.Thread(target=log.append_as_leader, args=(batch(0), 0)) for _ in range(8)]
    with log._flush_lock:
        for thread in threads:
            thread.start()
        while log.log_end_offset < 13:
            threading.Event().wait(0.001)
    for thread in threads:
        thread.join()
    assert (log.recovery_point, log.log_end_offset) == (13, 13)
    assert counted.steps["fsync .log"] == before + 2
    log.close()


def test_a_truncation_drops_batches_segments_epochs_and_producers(harness: LogHarness) -> None:
    """Appends continue at the new end."""
    log = harness.open()
    for i in range(6):
        log.append_as_leader(batch(0, 2, size=200, producer=(7, 0, 2 * i)), i // 2)
    log.update_high_watermark(12)
    log.flush()
    assert len(log.segments) > 2
    assert not log.truncate_to(12)
    assert log.truncate_to(5)
    assert (log.log_end_offset, log.high_watermark, log.recovery_point) == (5, 5, 5)
    assert read_all(log) == [0, 1, 2, 3]
    assert log.last_records_of_producers() == {7: (3, 0)}
    assert log.leader_epochs == ((0, 0), (1, 4))
    assert log.append_as_leader(batch(0, 1, producer=(7, 0, 4)), 3).first_offset == 5
    harness.scheduler.advance(60_000)
    assert not [name for name in harness.names() if name.endswith(".deleted")]
    assert log.truncate_to(0)
    assert (read_all(log), log.log_end_offset, log.last_records_of_producers()) == ([], 0, {})
    log.close()


def test_a_full_truncation_restarts_the_log_at_an_offset(harness: LogHarness) -> None:
    """Everything is dropped, as for a follower that is too far behind."""
    log = harness.open()
    for _ in range(4):
        log.append_as_leader(batch(0, 1, size=500), 2)
    log.truncate_fully_and_start_at(100, log_start_offset=90)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (90, 100, 100)
    assert (log.leader_epochs, bases(log)) == ((), [100])
    assert log.append_as_leader(batch(0), 3).first_offset == 100
    log.close()


@pytest.mark.parametrize(
    ("way", "snapshots"),
    [("delete all", []), ("delete some", ["5.snapshot"]), ("restart", []), ("expire", ["5.snapshot"])],
)
def test_no_snapshot_is_taken_at_the_log_start(harness: LogHarness, way: str, snapshots: list[str]) -> None:
    """The next start would delete it, as Kafka's does. A roll and a close take one at a later log end."""
    log = harness.open(LogConfig())
    log.append_as_leader(batch(0, 5, producer=(7, 0, 0)), 0)
    log.update_high_watermark(5)
    if way == "restart":
        log.truncate_fully_and_start_at(5)
    elif way == "expire":
        harness.clock.advance(10**7)
        assert log.delete_old_segments() == 1
    else:
        log.delete_records(-1 if way == "delete all" else 3)
    assert log.log_start_offset == (3 if way == "delete some" else 5)
    assert log.log_end_offset == 5
    log.close()
    assert [name for name in harness.names() if name.endswith(".snapshot")] == snapshots


def test_offsets_are_found_by_timestamp(harness: LogHarness) -> None:
    """The lookup returns the first record with at least the timestamp, in any segment."""
    log = harness.open()
    for timestamp in (100, 300, 200, 400, 400):
        log.append_as_leader(batch(0, 1, size=600, timestamp=timestamp), 0)
    found = [log.offset_for_timestamp(timestamp) for timestamp in (0, 150, 301, 401)]
    assert found == [(100, 0), (300, 1), (400, 3), None]
    assert log.offset_of_max_timestamp() == (400, 3)
    log.update_high_watermark(5)
    log.delete_records(2)
    assert log.offset_for_timestamp(0) == (200, 2)
    log.close()


def test_an_empty_log_can_be_read(harness: LogHarness) -> None:
    """Reads and lookups return nothing, and an empty append changes nothing."""
    log = harness.open()
    assert read_all(log) == []
    assert (log.offset_for_timestamp(0), log.offset_of_max_timestamp()) == (None, None)
    assert log.append_as_leader(b"", 0).last_offset == -1
    assert log.append_as_follower(b"").last_offset == -1
    assert log.delete_old_segments() == 0
    log.close()


def test_the_state_of_idle_producers_expires(harness: LogHarness) -> None:
    """Afterwards a sequence may start at any number."""
    log = harness.open()
    log.append_as_leader(batch(0, 1, producer=(7, 0, 0), timestamp=1_000_000), 0)
    log.remove_expired_producers()
    assert set(log.last_records_of_producers()) == {7}
    harness.scheduler.advance(24 * 3_600_000)
    log.remove_expired_producers()
    assert log.append_as_leader(batch(0, 1, producer=(7, 0, 55)), 0).first_offset == 1
    log.close()


def test_a_directory_belongs_to_one_topic(harness: LogHarness) -> None:
    """The id is written before the first record, and another id is rejected."""
    harness.open(topic_id=UUID(int=5)).close()
    log = harness.open(clean=True)
    assert log.topic_id == UUID(int=5)
    log.close()
    with pytest.raises(InconsistentTopicError):
        harness.open(topic_id=UUID(int=6))


def test_a_disk_failure_takes_the_log_offline_once(tmp_path: Path) -> None:
    """The failure is reported with the log directory. Later calls fail without a disk operation."""
    harness = LogHarness(tmp_path, fs=SteppedFileSystem(RealFileSystem(), DiskError("write .log", 2)))
    log = harness.open()
    log.append_as_leader(batch(0), 0)
    with pytest.raises(LogDirectoryOfflineError, match="append"):
        log.append_as_leader(batch(0), 0)
    for _ in range(2):
        with pytest.raises(LogDirectoryOfflineError, match="is offline"):
            log.append_as_leader(batch(0), 0)
    assert [path for path, _ in harness.failures] == [tmp_path]
    assert log.is_offline
    crash(log)


def test_a_disk_failure_on_the_scheduler_is_reported(tmp_path: Path) -> None:
    """A scheduled task takes the directory offline as an append does."""
    failing = DiskError("write leader-epoch-checkpoint.tmp", 3)
    harness = LogHarness(tmp_path, fs=SteppedFileSystem(RealFileSystem(), failing))
    log = harness.open()
    log.append_as_leader(batch(0), 0)
    log.append_as_leader(batch(0), 1)
    log.update_high_watermark(2)
    log.delete_records(1)
    with pytest.raises(LogDirectoryOfflineError):
        harness.scheduler.run()
    assert [path for path, _ in harness.failures] == [tmp_path]
    assert log.is_offline
    crash(log)


def test_a_log_works_after_its_directory_is_renamed(harness: LogHarness) -> None:
    """Indexes are opened and deleted files are unlinked at the new path."""
    log = harness.open()
    for _ in range(3):
        log.append_as_leader(batch(0, 1, size=600), 0)
    log.update_high_watermark(3)
    log.delete_records(1)
    assert log.delete_old_segments() == 1
    target = harness.root / "orders-0.0123456789abcdef0123456789abcdef-delete"
    log.rename_directory(target)
    log.append_as_leader(batch(0, 1, size=600), 1)
    assert read_all(log, 1) == [1, 2, 3]
    harness.scheduler.advance(60_000)
    assert not list(target.glob("*.deleted"))
    assert not harness.directory.exists()
    log.delete()
    assert not target.exists()
    with pytest.raises(LogClosedError):
        log.append_as_leader(batch(0), 0)
    with pytest.raises(LogClosedError):
        log.read(3, 100)


def test_reads_work_while_segments_are_replaced_and_deleted(harness: LogHarness) -> None:
    """Reads run during appends, rolls and immediate deletion, and see each record at its offset."""
    log = harness.open(LogConfig(segment_bytes=700, segment_index_bytes=1200, file_delete_delay_ms=0))
    wrong: list[object] = []
    done = threading.Event()

    def follow() -> None:
        offset = 0
        try:
            while not (done.is_set() and offset >= log.high_watermark):
                try:
                    got = log.read(offset, 500)
                except OffsetOutOfRangeError:
                    offset = log.log_start_offset
                    continue
                found = offsets_of(got.data)
                if found and found != list(range(found[0], got.next_offset)):
                    wrong.append((offset, found))
                offset = got.next_offset
        except BaseException as error:  # noqa: BLE001 -- the test shows it
            wrong.append(error)

    readers = [threading.Thread(target=follow) for _ in range(2)]
    for reader in readers:
        reader.start()
    for i in range(200):
        log.append_as_leader(batch(0, 2, size=100), 0)
        log.update_high_watermark(log.log_end_offset)
        if i % 20 == 19:
            log.delete_records(log.log_end_offset - 10)
            log.delete_old_segments()
            harness.scheduler.run()
    done.set()
    for reader in readers:
        reader.join()
    assert wrong == []
    log.close()


def test_the_largest_timestamp_may_be_below_the_log_start(harness: LogHarness) -> None:
    """As in Kafka, it is that of a record whose segment exists."""
    log = harness.open()
    for timestamp in (100, 900, 300):
        log.append_as_leader(batch(0, 1, timestamp=timestamp), 0)
    log.update_high_watermark(3)
    log.maybe_increment_log_start_offset(2)
    assert log.offset_of_max_timestamp() == (900, 1)
    log.close()


@pytest.mark.parametrize(("compact", "bases_after"), [(True, [0, 1]), (False, [0])])
def test_a_compacted_log_rolls_by_the_largest_compaction_lag(
    harness: LogHarness, bases_after: list[int], *, compact: bool
) -> None:
    """Only rolled segments are cleaned, so the active segment must not be older than the lag (KIP-354)."""
    log = harness.open(LogConfig(compact=compact, max_compaction_lag_ms=5_000))
    log.append_as_leader(batch(0, 1, timestamp=1_000), 0)
    log.append_as_leader(batch(0, 1, timestamp=6_001), 0)
    assert bases(log) == bases_after
    log.close()
