"""Opening a log after a clean shutdown, after a crash, and after a crash during a segment replacement."""

from __future__ import annotations

import shutil
import struct
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest
from structlog.testing import capture_logs

from local_tier.config import LogConfig
from local_tier.errors import LegacyFormatError
from local_tier.files.file_names import CLEANED, DELETED, SWAP
from local_tier.log.segment_replacement import new_cleaned_segment
from local_tier.log.unified_log import Isolation
from local_tier.producers.producer_state_entry import AppendOrigin
from tests.local_tier.batches import batch, marker, offsets_of, rows_of
from tests.local_tier.crash.power_loss import PowerLossFileSystem
from tests.local_tier.logs import SMALL, LogHarness, crash
from tests.object_format import model

if TYPE_CHECKING:
    from pathlib import Path

    from local_tier.log.unified_log import UnifiedLog
    from local_tier.segment.log_segment import LogSegment

COMPACTED: Final = replace(SMALL, compact=True)


@pytest.fixture
def harness(tmp_path: Path) -> LogHarness:
    return LogHarness(tmp_path)


def filled(harness: LogHarness, count: int = 8) -> UnifiedLog:
    """Return a log with segments of two batches, a producer in each, and an aborted transaction."""
    log = harness.open()
    for i in range(count):
        log.append_as_leader(batch(0, 2, size=200, producer=(7, 0, 2 * i), timestamp=1_000 + i), i // 4)
    log.append_as_leader(batch(0, 1, producer=(8, 0, 0), transactional=True), 2)
    log.append_as_leader(marker(0, producer=(8, 0), abort=True), 2, origin=AppendOrigin.COORDINATOR)
    return log


def contents(log: UnifiedLog) -> tuple[object, ...]:
    """Return everything that a log knows."""
    found = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        got = log.read(offset, 10**6, Isolation.LOG_END)
        found += offsets_of(got.data)
        offset = got.next_offset
    return (
        found,
        log.log_end_offset,
        log.leader_epochs,
        log.last_records_of_producers(),
        log.collect_aborted(0, 10**6),
        log.offset_of_max_timestamp(),
        [
            (
                segment.base_offset,
                segment.size,
                segment.offset_index.entries,
                segment.max_timestamp_and_offset,
            )
            for segment in log.segments
        ],
    )


def test_a_closed_log_opens_without_reading_its_batches(harness: LogHarness) -> None:
    """Nothing is recovered, and all state is as before."""
    log = filled(harness)
    log.flush()
    expected = contents(log)
    recovery_point = log.recovery_point
    log.close()
    again = harness.open(clean=True, recovery_point=recovery_point)
    assert contents(again) == expected
    assert harness.remaining == []
    assert again.recovery_point == again.log_end_offset
    again.close()


@pytest.mark.parametrize("recovery_point", [0, 5, 18])
def test_a_crashed_log_is_recovered_from_its_recovery_point(harness: LogHarness, recovery_point: int) -> None:
    """Indexes, producers, epochs and transactions are as before. The recovery point stays."""
    log = filled(harness)
    expected = contents(log)
    crash(log)
    again = harness.open(recovery_point=recovery_point)
    assert contents(again) == expected
    assert again.recovery_point == recovery_point
    assert harness.remaining[0] == {0: 5, 5: 4, 18: 1}[recovery_point]
    assert harness.remaining[-1] == 0
    assert again.append_as_leader(batch(0, 1, producer=(7, 0, 16)), 3).first_offset == 18
    again.close()


def test_a_segment_is_recovered_in_windows_of_any_size(
    harness: LogHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window ends at any of several batches of different sizes."""
    log = harness.open()
    for count in (4, 1, 1, 3, 1, 2):
        log.append_as_leader(batch(0, count), 0)
    expected = contents(log)
    for size in range(100, 500, 50):
        crash(log)
        monkeypatch.setattr("local_tier.log.recovery.WINDOW_BYTES", size)
        log = harness.open()
        assert contents(log) == expected
    log.close()


@pytest.mark.parametrize(("base", "clean"), [(0, False), (4, False), (12, True)])
def test_a_segment_below_the_recovery_point_is_not_read(
    harness: LogHarness, base: int, *, clean: bool
) -> None:
    """Its last batch is corrupt, and recovery would cut it."""
    log = filled(harness)
    log.flush()
    log.close()
    path = harness.directory / f"{base:020}.log"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    again = harness.open(clean=clean, recovery_point=18)
    assert path.read_bytes() == data
    assert again.log_end_offset == 18
    again.close()


@pytest.mark.parametrize("clean", [False, True])
def test_snapshots_are_written_at_the_last_two_segments_and_at_the_end(
    harness: LogHarness, *, clean: bool
) -> None:
    """A log without any snapshot was written by a version that had none."""
    log = filled(harness)
    log.flush()
    bases = [segment.base_offset for segment in log.segments]
    log.close()
    for path in harness.directory.glob("*.snapshot"):
        path.unlink()
    again = harness.open(clean=clean, recovery_point=18)
    found = {int(path.stem) for path in harness.directory.glob("*.snapshot")}
    assert found == {*bases[-2:], 18}
    again.close()


@pytest.mark.parametrize("crashes", [1, 2])
def test_the_last_batches_of_a_producer_are_known_after_a_crash(harness: LogHarness, crashes: int) -> None:
    """A snapshot has one batch per producer, but recovery reads all batches and keeps the last five."""
    log = harness.open()
    for sequence in range(5):
        log.append_as_leader(batch(0, 1, producer=(7, 0, sequence)), 0)
    for _ in range(crashes):
        crash(log)
        log = harness.open()
    repeated = [log.append_as_leader(batch(0, 1, producer=(7, 0, sequence)), 1) for sequence in range(5)]
    assert [(each.first_offset, each.is_duplicate) for each in repeated] == [(n, True) for n in range(5)]
    assert log.append_as_leader(batch(0, 1, producer=(7, 0, 5)), 1).first_offset == 5
    log.close()


def test_missing_indexes_snapshots_and_checkpoints_are_rebuilt(harness: LogHarness) -> None:
    """Without these files, opening only takes longer."""
    log = filled(harness)
    expected = contents(log)
    log.close()
    for path in harness.directory.iterdir():
        if path.suffix != ".log":
            path.unlink()
    again = harness.open()
    assert contents(again) == expected
    again.close()


@pytest.mark.parametrize(("recovery_point", "clean"), [(12, False), (18, False), (18, True)])
def test_a_corrupt_index_below_the_recovery_point_is_rebuilt(
    harness: LogHarness, recovery_point: int, *, clean: bool
) -> None:
    """Indexes below the recovery point are checked, also those of the segment that ends there."""
    log = filled(harness)
    log.flush()
    expected = contents(log)
    log.close()
    (harness.directory / f"{0:020}.index").write_bytes(b"abc")
    (harness.directory / f"{4:020}.timeindex").unlink()
    (harness.directory / f"{8:020}.index").write_bytes(struct.pack(">iiii", 9, 1, 0, 0))
    again = harness.open(clean=clean, recovery_point=recovery_point)
    assert contents(again) == expected
    again.close()


@pytest.mark.parametrize("kind", ["torn", "nonsense"])
def test_an_invalid_tail_is_truncated_and_later_segments_are_deleted(harness: LogHarness, kind: str) -> None:
    """The segment ends before the corrupt batch. Later segments are deleted with their snapshots."""
    log = filled(harness)
    crash(log)
    path = harness.directory / f"{8:020}.log"
    data = path.read_bytes()
    size = len(data) // 2
    path.write_bytes(data[: size + 30] if kind == "torn" else data[: size + 30] + bytes(len(data)))
    again = harness.open()
    assert again.log_end_offset == 10
    assert again.last_records_of_producers() == {7: (9, 0)}
    assert again.leader_epochs == ((0, 0), (1, 8))
    assert again.append_as_leader(batch(0, 1, producer=(7, 0, 10)), 1).first_offset == 10
    harness.scheduler.advance(60_000)
    assert [name for name in harness.names() if name.startswith(("12", "16"))] == []
    again.close()


@pytest.mark.parametrize("stale", [0, 7])
def test_intact_batches_of_lower_offsets_are_truncated(harness: LogHarness, stale: int) -> None:
    """Blocks of a file that was deleted may follow the valid ones."""
    log = filled(harness)
    crash(log)
    path = harness.directory / f"{8:020}.log"
    data = path.read_bytes()
    end = len(data) // 2
    with capture_logs() as logged:
        path.write_bytes(data[:end] + batch(stale, 1, producer=(9, 0, 0)) + data[end:])
        again = harness.open()
    assert again.log_end_offset == 10
    assert path.read_bytes() == data[:end]
    assert [each["at"] for each in logged if each["event"] == "segment_truncated"] == [end]
    again.close()


def test_a_segment_of_lower_offsets_is_emptied(harness: LogHarness) -> None:
    log = filled(harness)
    crash(log)
    path = harness.directory / f"{8:020}.log"
    path.write_bytes(batch(0, 2) + batch(8, 2))
    again = harness.open()
    assert (again.log_end_offset, path.read_bytes()) == (8, b"")
    again.close()


def test_a_log_that_ends_below_its_start_is_emptied(harness: LogHarness) -> None:
    """Offsets never go back below the log start."""
    crash(filled(harness))
    log = harness.open(log_start_offset=100, recovery_point=100)
    assert (log.log_start_offset, log.log_end_offset) == (100, 100)
    assert log.leader_epochs == ()
    assert log.append_as_leader(batch(0), 5).first_offset == 100
    log.close()


def test_a_log_that_ends_at_its_start_keeps_its_epochs(harness: LogHarness) -> None:
    """All of its records were deleted, and its last segment is still there."""
    crash(filled(harness))
    log = harness.open(log_start_offset=18, recovery_point=18)
    assert (log.log_start_offset, log.log_end_offset) == (18, 18)
    assert [epoch for epoch, _ in log.leader_epochs] == [2]
    assert log.segments[-1].base_offset == 16
    log.close()


def test_a_marker_that_cannot_be_read_is_cut_off(harness: LogHarness) -> None:
    """Its checksum is right, and its record is not one."""
    log = filled(harness)
    expected = contents(log)
    path = log.active_segment.path
    size = path.stat().st_size
    crash(log)
    with path.open("ab") as file:
        header = model.Batch(base_offset=18, attributes=0x30, producer_id=8, producer_epoch=0)
        file.write(model.encode_with_records(header, b"\x7f" * 9, count=1))
    again = harness.open()
    assert contents(again) == expected
    assert path.stat().st_size == size
    again.close()


def test_the_log_start_is_the_higher_of_checkpoint_and_first_segment(harness: LogHarness) -> None:
    """Leader epochs begin there."""
    filled(harness).close()
    log = harness.open(clean=True, log_start_offset=5)
    assert (log.log_start_offset, log.leader_epochs[0]) == (5, (0, 5))
    log.close()
    for path in harness.directory.glob(f"{0:020}.*"):
        path.unlink()
    log = harness.open(clean=True)
    assert log.log_start_offset == 4
    log.close()


def test_an_orphaned_index_is_deleted(harness: LogHarness) -> None:
    """An index without a file of batches is not a segment."""
    harness.open().close()
    (harness.directory / f"{99:020}.index").write_bytes(bytes(8))
    harness.open(clean=True).close()
    assert f"{99:020}.index" not in [path.name for path in harness.directory.iterdir()]


def merged(log: UnifiedLog) -> tuple[LogSegment, list[LogSegment]]:
    """Return a cleaned segment with every second batch of the first two segments, and those segments."""
    old = list(log.segments[:2])
    new = new_cleaned_segment(log._context, 0)
    for segment in old:
        data = segment.log.read(0, segment.size)
        rows = rows_of(bytes(data))
        size = int(rows["size"][0])
        last = int(rows["base_offset"][0]) + int(rows["last_offset_delta"][0])
        new.append(last, data[:size].data, rows[:1])
    new.become_inactive()
    new.sync()
    return new, old


def without_its_last_batch(harness: LogHarness, count: int = 8) -> None:
    """Write a log, and let a power loss remove whole batches of its first segment."""
    log = filled(harness, count)
    segment = log.segments[0]
    crash(log)
    data = segment.path.read_bytes()
    segment.path.write_bytes(data[: int(rows_of(data)["size"][0])])


@pytest.mark.parametrize("following", [1, 4])
def test_segments_after_a_loss_of_whole_batches_are_deleted(harness: LogHarness, following: int) -> None:
    """The log has no gap in the middle. A warning says which offsets are missing before the next segment."""
    without_its_last_batch(harness, 2 * following)
    assert len(list(harness.directory.glob("*.log"))) == 1 + following
    with capture_logs() as logs:
        again = harness.open()
    (line,) = [each for each in logs if each["event"] == "batches_missing_between_segments"]
    assert (line["end"], line["next"]) == (2, 4)
    assert contents(again)[:2] == ([0, 1], 2)
    again.append_as_leader(batch(0, 1), 3)
    assert contents(again)[0] == [0, 1, 2]
    again.close()


def exchange(path: Path) -> None:
    """Give a segment's file to another file with the same bytes, as a cleaning by any engine does."""
    copy = path.with_suffix(".copy")
    copy.write_bytes(path.read_bytes())
    copy.rename(path)


@pytest.mark.parametrize("replaced", [0, 4, 12])
def test_missing_offsets_before_or_after_cleaned_segments_are_not_a_loss(
    harness: LogHarness, replaced: int
) -> None:
    """Nor if the file system has lost the attribute that says where a segment began."""
    without_its_last_batch(harness)
    exchange(harness.directory / f"{replaced:020}.log")
    for recovery_point in (0, 4):
        again = harness.open(recovery_point=recovery_point)
        assert contents(again)[0] == [0, 1, *range(4, 18)]
        assert again.recovery_point == recovery_point
        crash(again)


def test_a_gap_in_replicated_offsets_is_not_a_loss(harness: LogHarness) -> None:
    """A segment starts where the one before it ends, even if its first batch has a higher offset."""
    log = harness.open()
    for offset in (0, 10, 20, 30, 2**40):
        log.append_as_follower(batch(offset, 2, size=300))
    assert [segment.base_offset for segment in log.segments] == [0, 2, 12, 22, 2**40]
    crash(log)
    again = harness.open()
    assert contents(again)[0] == [0, 1, 10, 11, 20, 21, 30, 31, 2**40, 2**40 + 1]
    again.close()


def test_cleaned_segments_replace_old_ones(harness: LogHarness) -> None:
    """Readers see the new segments at once. Old files are deleted later. A restart sees the same."""
    log = filled(harness)
    log.replace_segments([merged(log)[0]], log.segments[:2])
    expected = contents(log)
    assert expected[0] == [0, 1, 4, 5, *range(8, 18)]
    assert "4.snapshot" not in harness.names()
    assert [name for name in harness.names() if name.endswith(DELETED)]
    harness.scheduler.advance(60_000)
    assert not [name for name in harness.names() if name.endswith((DELETED, SWAP, CLEANED))]
    crash(log)
    again = harness.open(COMPACTED)
    assert contents(again) == expected
    again.close()


class StoppedError(Exception):
    """The process ends here."""


@pytest.mark.parametrize("stop_at", range(12))
def test_an_interrupted_replacement_is_completed_or_undone(harness: LogHarness, stop_at: int) -> None:
    """After each rename, the log has either all old segments or the new one, and no suffixes."""
    log = filled(harness)
    old = contents(log)
    new, segments_to_delete = merged(log)
    log.replace_segments([new], segments_to_delete)
    replaced = contents(log)
    harness.scheduler.advance(60_000)
    log.delete()

    log = filled(harness)
    new, segments_to_delete = merged(log)
    renames = 0
    rename = harness.fs.rename

    def stopping(source: Path, target: Path) -> None:
        nonlocal renames
        if renames == stop_at:
            raise StoppedError
        renames += 1
        rename(source, target)

    harness.fs.rename = stopping  # type: ignore[method-assign]
    with pytest.raises(StoppedError):
        log.replace_segments([new], segments_to_delete)
    harness.fs.rename = rename  # type: ignore[method-assign]
    crash(log)
    new.close_handles()
    again = harness.open(COMPACTED)
    assert contents(again)[0] == (old if stop_at < 3 else replaced)[0]
    assert contents(again)[3:6] == old[3:6]
    assert not [name for name in harness.names() if name.endswith((DELETED, SWAP, CLEANED))]
    again.close()


def test_a_segment_with_too_wide_offsets_is_split_at_opening(harness: LogHarness) -> None:
    """Older versions could write such a segment (KAFKA-6264)."""
    log = harness.open(LogConfig(segment_index_bytes=1200))
    log.append_as_follower(batch(0, 1, epoch=1) + batch(5, 1, epoch=1))
    log.close()
    with (harness.directory / f"{0:020}.log").open("ab") as file:
        file.write(batch(2**31 + 3, 1, epoch=1) + batch(2**31 + 9, 1, epoch=1) + batch(2**33, 1, epoch=1))
    again = harness.open(LogConfig(segment_index_bytes=1200))
    assert [segment.base_offset for segment in again.segments] == [0, 2**31 + 3, 2**33]
    assert contents(again)[0] == [0, 5, 2**31 + 3, 2**31 + 9, 2**33]
    assert not [name for name in harness.names() if name.endswith((SWAP, CLEANED))]
    again.close()


def test_a_segment_is_split_while_its_log_is_open(harness: LogHarness) -> None:
    """The cleaner splits a segment whose output does not fit."""
    log = harness.open()
    log.append_as_follower(batch(0))
    wide = log.segments[0]
    data = batch(2**31 + 3)
    wide.log.append(data)
    log._local_log.log_end_offset = 2**31 + 4
    parts = log.split_overflowed_segment(wide)
    assert [part.base_offset for part in parts] == [0, 2**31 + 3]
    assert contents(log)[0] == [0, 2**31 + 3]
    log.close()


def test_a_copied_partition_directory_opens_as_the_same_log(harness: LogHarness, tmp_path: Path) -> None:
    """The log consists of its files only."""
    log = filled(harness)
    expected = contents(log)
    log.close()
    other = LogHarness(tmp_path / "elsewhere")
    shutil.copytree(harness.directory, other.directory)
    again = other.open(SMALL, clean=True)
    assert contents(again) == expected
    again.close()


@pytest.mark.parametrize("damage", [b"", b"0\n2\n0 0\n", b"\x00" * 9])
@pytest.mark.parametrize("clean", [True, False])
def test_lost_leader_epochs_are_rebuilt_from_the_batches(
    harness: LogHarness, damage: bytes, *, clean: bool
) -> None:
    log = filled(harness)
    expected = contents(log)
    log.flush()
    log.close()
    path = harness.directory / "leader-epoch-checkpoint"
    path.write_bytes(damage)
    again = harness.open(clean=clean, recovery_point=6)
    if damage:
        assert contents(again) == expected
        assert path.read_text() == "0\n3\n0 0\n1 8\n2 16\n"
    else:  # Kafka creates the file empty, so an empty one is no damage
        assert contents(again)[0] == expected[0]
    again.close()


def legacy(key: bytes, value: bytes) -> bytes:
    """Return a message set with one message of format v1, as Kafka wrote it before 0.11."""
    body = struct.pack(">bbqi", 1, 0, 1_000, len(key)) + key + struct.pack(">i", len(value)) + value
    message = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", 0, len(message)) + message


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("position", ["at the start", "after v2"])
def test_messages_of_an_older_format_are_refused_and_not_cut_off(
    harness: LogHarness, position: str, *, clean: bool
) -> None:
    log = filled(harness)
    log.flush()
    log.close()
    path = harness.directory / f"{16:020}.log"
    data = legacy(b"k", b"v") if position == "at the start" else path.read_bytes() + legacy(b"k", b"v")
    path.write_bytes(data)
    if clean and position == "after v2":
        clean = False  # a downgrade of the format does not happen with a clean shutdown
    with pytest.raises(LegacyFormatError, match="format v1"):
        harness.open(clean=clean)
    assert path.read_bytes() == data


def test_a_torn_message_of_an_older_format_is_garbage(harness: LogHarness) -> None:
    log = filled(harness)
    path = log.active_segment.path
    expected = contents(log)[0]
    crash(log)
    with path.open("ab") as file:
        file.write(legacy(b"k", b"v" * 50)[:-1])
    again = harness.open()
    assert contents(again)[0] == expected
    again.close()


@pytest.mark.parametrize("seed", range(12))
def test_a_second_power_loss_brings_no_dropped_batch_back(tmp_path: Path, seed: int) -> None:
    """The cut and the removal of later segments are durable before anything is appended."""
    root = tmp_path / "disk"
    root.mkdir()
    harness = LogHarness(root)
    log = filled(harness)
    log.flush()
    crash(log)
    for path in harness.directory.glob("*.log"):
        exchange(path)  # the segments have no marks, like those of Kafka
    torn = harness.directory / f"{4:020}.log"
    data = torn.read_bytes()
    torn.write_bytes(data[:-1] + b"x")
    disk = PowerLossFileSystem(root)
    harness.fs = disk
    log = harness.open()
    kept = log.log_end_offset
    assert kept == 6
    log.append_as_leader(batch(0, 7, size=30), 9)
    disk.lose_power(tmp_path / "later", seed)
    crash(log)
    survivor = LogHarness(tmp_path / "later")
    again = survivor.open()
    offsets = contents(again)[0]
    assert offsets in ([*range(kept)], [*range(kept + 7)])
    assert [segment.base_offset for segment in again.segments] == [0, 4]
    crash(again)
