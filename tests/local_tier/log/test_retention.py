"""Retention of a log's segments."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from local_tier.config import LogConfig
from tests.local_tier.batches import batch
from tests.local_tier.logs import SMALL, LogHarness

if TYPE_CHECKING:
    from pathlib import Path

    from local_tier.log.unified_log import UnifiedLog

MINUTE = 60_000


@pytest.fixture
def harness(tmp_path: Path) -> LogHarness:
    return LogHarness(tmp_path)


def filled(harness: LogHarness, config: LogConfig) -> UnifiedLog:
    """Return a log of five segments of one batch of 689 bytes, a minute apart, below the high watermark."""
    log = harness.open(config)
    for _ in range(5):
        log.append_as_leader(batch(0, 1, size=620, timestamp=harness.clock.now_ms()), 0)
        harness.clock.advance(60)
    log.update_high_watermark(5)
    return log


def bases(log: UnifiedLog) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def test_segments_older_than_retention_ms_are_deleted(harness: LogHarness) -> None:
    """The newest record of a segment counts. All segments may be deleted; an empty one replaces them."""
    log = filled(harness, replace(SMALL, retention_ms=4 * MINUTE))
    assert log.delete_old_segments() == 1
    assert (bases(log), log.log_start_offset) == ([1, 2, 3, 4], 1)
    harness.clock.advance(60 * 60)
    assert log.delete_old_segments() == 4
    assert (bases(log), log.log_start_offset, log.log_end_offset) == ([5], 5, 5)
    assert log.delete_old_segments() == 0
    assert log.append_as_leader(batch(0), 0).first_offset == 5
    log.close()


def test_segments_above_retention_bytes_are_deleted(harness: LogHarness) -> None:
    """As many are deleted as leave at least the limit."""
    size = len(batch(0, 1, size=620))
    log = filled(harness, replace(SMALL, retention_bytes=2 * size + 1))
    assert log.delete_old_segments() == 2
    assert bases(log) == [2, 3, 4]
    log.update_config(replace(SMALL, retention_bytes=2 * size))
    assert log.delete_old_segments() == 1
    log.close()


def test_segments_below_the_log_start_are_deleted_under_any_policy(harness: LogHarness) -> None:
    """This also holds for compacted topics without retention."""
    log = filled(harness, replace(SMALL, compact=True, delete=False, retention_ms=0, retention_bytes=0))
    log.delete_records(2)
    assert log.delete_old_segments() == 2
    assert bases(log) == [2, 3, 4]
    log.close()


def test_segments_above_the_high_watermark_are_not_deleted(harness: LogHarness) -> None:
    """A segment that ends above it stays, even if it is old."""
    log = filled(harness, replace(SMALL, retention_ms=0))
    log.update_high_watermark(3)
    harness.clock.advance(3600)
    assert log.delete_old_segments() == 3
    assert (bases(log), log.log_start_offset) == ([3, 4], 3)
    log.close()


def test_minus_one_disables_a_limit(harness: LogHarness) -> None:
    """Nothing is deleted."""
    log = filled(harness, replace(SMALL, retention_ms=-1, retention_bytes=-1))
    harness.clock.advance(10**9)
    assert log.delete_old_segments() == 0
    log.close()


def test_a_future_timestamp_retains_its_segment_and_later_ones(harness: LogHarness) -> None:
    """Segments are deleted from the oldest on, so later ones stay, too."""
    log = harness.open(replace(SMALL, retention_ms=MINUTE))
    future = harness.clock.now_ms() + 50 * MINUTE
    for timestamp in (0, future, 0, 0):
        log.append_as_leader(batch(0, 1, size=620, timestamp=timestamp), 0)
    log.update_high_watermark(4)
    harness.clock.advance(600)
    assert log.delete_old_segments() == 1
    assert bases(log) == [1, 2, 3]
    log.close()


def test_deleted_files_are_unlinked_after_the_delay(harness: LogHarness) -> None:
    """Until then they exist under another name and cannot be read."""
    log = filled(harness, replace(SMALL, retention_ms=4 * MINUTE, file_delete_delay_ms=30_000))
    assert log.delete_old_segments() == 1
    assert {name for name in harness.names() if name.endswith(".deleted")} == {
        ".log.deleted",
        ".index.deleted",
        ".timeindex.deleted",
    }
    harness.scheduler.advance(29_999)
    assert [name for name in harness.names() if name.endswith(".deleted")]
    harness.scheduler.advance(1)
    assert not [name for name in harness.names() if name.endswith(".deleted")]
    log.close()


def test_a_record_may_outlive_its_retention_by_known_delays(harness: LogHarness) -> None:
    """The record is gone after 25 minutes.

    These are 9 minutes to fill the segment, 10 of retention, 5 to the next check, and 1 until the deletion.
    """
    assert 16_384 // len(batch(0, 1, size=79)) == 109
    log = harness.open(LogConfig(segment_bytes=16_384, retention_ms=10 * MINUTE, segment_index_bytes=1200))
    started = harness.clock.now_ms()
    files = [harness.directory / f"{0:020}.log", harness.directory / f"{0:020}.log.deleted"]
    unreadable = unlinked = 0
    while not unlinked:
        log.append_as_leader(batch(0, 1, size=79, timestamp=harness.clock.now_ms()), 0)
        log.update_high_watermark(log.log_end_offset)
        harness.scheduler.advance(5_000)
        elapsed = harness.clock.now_ms() - started
        if elapsed % (5 * MINUTE) == 4 * MINUTE:
            log.delete_old_segments()
        if log.log_start_offset and not unreadable:
            unreadable = elapsed
        if not any(path.exists() for path in files):
            unlinked = elapsed
    assert (log.log_start_offset, unreadable, unlinked) == (109, 24 * MINUTE, 25 * MINUTE)
    log.close()
