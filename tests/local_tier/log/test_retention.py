"""What of a log expires, and when."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from local_tier.config import LogConfig
from tests.local_tier.batches import batch
from tests.local_tier.logs import SMALL, Place

if TYPE_CHECKING:
    from pathlib import Path

    from local_tier.log.unified_log import UnifiedLog

MINUTE = 60_000


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def filled(place: Place, config: LogConfig) -> UnifiedLog:
    """Five segments of one batch of 689 bytes each, a minute apart, all below the high watermark."""
    log = place.open(config)
    for _ in range(5):
        log.append_as_leader(batch(0, 1, size=620, timestamp=place.clock.now_ms()), 0)
        place.clock.advance(60)
    log.update_high_watermark(5)
    return log


def bases(log: UnifiedLog) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def test_the_oldest_segments_go_by_age(place: Place) -> None:
    """A segment goes once its newest record is older than the limit; all of them may, and a log is left."""
    log = filled(place, replace(SMALL, retention_ms=4 * MINUTE))
    assert log.delete_old_segments() == 1
    assert (bases(log), log.log_start_offset) == ([1, 2, 3, 4], 1)
    place.clock.advance(60 * 60)
    assert log.delete_old_segments() == 4
    assert (bases(log), log.log_start_offset, log.log_end_offset) == ([5], 5, 5)
    assert log.delete_old_segments() == 0
    assert log.append_as_leader(batch(0), 0).first_offset == 5
    log.close()


def test_the_oldest_segments_go_by_size(place: Place) -> None:
    """As many as leave at least the limit."""
    size = len(batch(0, 1, size=620))
    log = filled(place, replace(SMALL, retention_bytes=2 * size + 1))
    assert log.delete_old_segments() == 2
    assert bases(log) == [2, 3, 4]
    log.update_config(replace(SMALL, retention_bytes=2 * size))
    assert log.delete_old_segments() == 1
    log.close()


def test_segments_below_the_log_start_go_whatever_the_policy(place: Place) -> None:
    """Deleted records take their segments with them, on compacted topics too, where nothing else expires."""
    log = filled(place, replace(SMALL, compact=True, delete=False, retention_ms=0, retention_bytes=0))
    log.delete_records(2)
    assert log.delete_old_segments() == 2
    assert bases(log) == [2, 3, 4]
    log.close()


def test_nothing_goes_at_or_behind_the_high_watermark(place: Place) -> None:
    """A segment that ends above it stays, however old."""
    log = filled(place, replace(SMALL, retention_ms=0))
    log.update_high_watermark(3)
    place.clock.advance(3600)
    assert log.delete_old_segments() == 3
    assert (bases(log), log.log_start_offset) == ([3, 4], 3)
    log.close()


def test_limits_of_minus_one_are_none(place: Place) -> None:
    """Nothing ever expires."""
    log = filled(place, replace(SMALL, retention_ms=-1, retention_bytes=-1))
    place.clock.advance(10**9)
    assert log.delete_old_segments() == 0
    log.close()


def test_a_timestamp_in_the_future_holds_its_segment_and_those_behind_it(place: Place) -> None:
    """It is never old enough: oldest first means that nothing behind it goes either."""
    log = place.open(replace(SMALL, retention_ms=MINUTE))
    future = place.clock.now_ms() + 50 * MINUTE
    for timestamp in (0, future, 0, 0):
        log.append_as_leader(batch(0, 1, size=620, timestamp=timestamp), 0)
    log.update_high_watermark(4)
    place.clock.advance(600)
    assert log.delete_old_segments() == 1
    assert bases(log) == [1, 2, 3]
    log.close()


def test_files_are_unlinked_after_their_delay(place: Place) -> None:
    """Until then they are there under another name, and can no longer be read."""
    log = filled(place, replace(SMALL, retention_ms=4 * MINUTE, file_delete_delay_ms=30_000))
    assert log.delete_old_segments() == 1
    assert {name for name in place.names() if name.endswith(".deleted")} == {
        ".log.deleted",
        ".index.deleted",
        ".timeindex.deleted",
    }
    place.scheduler.advance(29_999)
    assert [name for name in place.names() if name.endswith(".deleted")]
    place.scheduler.advance(1)
    assert not [name for name in place.names() if name.endswith(".deleted")]
    log.close()


def test_a_record_under_ten_minutes_of_retention_may_live_for_twenty_five(place: Place) -> None:
    """Nine minutes until its segment is full, ten more, a check each five, one until the files go."""
    assert 16_384 // len(batch(0, 1, size=79)) == 109
    log = place.open(LogConfig(segment_bytes=16_384, retention_ms=10 * MINUTE, segment_index_bytes=1200))
    started = place.clock.now_ms()
    files = [place.directory / f"{0:020}.log", place.directory / f"{0:020}.log.deleted"]
    unreadable = unlinked = 0
    while not unlinked:
        log.append_as_leader(batch(0, 1, size=79, timestamp=place.clock.now_ms()), 0)
        log.update_high_watermark(log.log_end_offset)
        place.scheduler.advance(5_000)
        elapsed = place.clock.now_ms() - started
        if elapsed % (5 * MINUTE) == 4 * MINUTE:
            log.delete_old_segments()
        if log.log_start_offset and not unreadable:
            unreadable = elapsed
        if not any(path.exists() for path in files):
            unlinked = elapsed
    assert (log.log_start_offset, unreadable, unlinked) == (109, 24 * MINUTE, 25 * MINUTE)
    log.close()
