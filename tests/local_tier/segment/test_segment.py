"""Appends, reads, truncation and recovery of one segment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.clock import ManualClock
from local_tier.config import LogConfig
from local_tier.errors import CorruptLogError, LogClosedError, SegmentOffsetOverflowError
from local_tier.files.file_names import DELETED
from local_tier.files.file_system import RealFileSystem
from local_tier.log.leader_epoch_file_cache import LeaderEpochFileCache
from local_tier.log.recovery import cut_segment, recover_segment
from local_tier.producers.producer_state_manager import ProducerStateManager
from local_tier.segment.log_segment import LogSegment, RollParams
from local_tier.segment.log_segments import LogSegments
from tests.local_tier.batches import batch, marker, offsets_of, rows_of
from tests.local_tier.manual_scheduler import ManualScheduler

if TYPE_CHECKING:
    from pathlib import Path

FS = RealFileSystem()
CLOCK = ManualClock(10_000)
DENSE = LogConfig(index_interval_bytes=0, segment_index_bytes=12 * 500)
SPARSE = LogConfig(index_interval_bytes=500, segment_index_bytes=12 * 500)


def opened(
    directory: Path, base_offset: int = 0, config: LogConfig = SPARSE, *, jitter: int = 0
) -> LogSegment:
    return LogSegment(FS, directory, base_offset, config, clock=CLOCK, roll_jitter_ms=jitter)


def append(segment: LogSegment, *batches: bytes) -> None:
    data = b"".join(batches)
    rows = rows_of(data)
    last = int(rows["base_offset"][-1]) + int(rows["last_offset_delta"][-1])
    segment.append(last, memoryview(data), rows)


def recovered(segment: LogSegment, directory: Path) -> tuple[int, ProducerStateManager, LeaderEpochFileCache]:
    states = ProducerStateManager(FS, directory, log_name="orders-0")
    epochs = LeaderEpochFileCache(FS, directory, ManualScheduler(CLOCK))
    size = segment.size
    end = recover_segment(segment, states, epochs)
    cut_segment(segment, end)
    return size - end, states, epochs


def roll_params(**changes: int) -> RollParams:
    return RollParams(
        max_segment_ms=1_000, max_segment_bytes=1_000, max_timestamp=0, max_offset=6, size=10, now_ms=0
    )._replace(**changes)


@given(
    sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 900), st.integers(0, 3)), max_size=40),
    offset=st.integers(0, 180),
    max_bytes=st.integers(1, 3000),
    end=st.integers(0, 180),
    config=st.sampled_from([DENSE, SPARSE]),
)
def test_reads_agree_with_a_list_of_batches(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[tuple[int, int, int]],
    offset: int,
    max_bytes: int,
    end: int,
    config: LogConfig,
) -> None:
    """A read returns whole batches from the one that contains or follows the offset, below the end.

    Gaps between batches are skipped.
    """
    segment = opened(tmp_path_factory.mktemp("segment"), config=config)
    model: list[tuple[int, bytes]] = []
    next_offset = 0
    for count, size, gap in sizes:
        data = batch(next_offset, count, size=size)
        append(segment, data)
        model.append((next_offset + count - 1, data))
        next_offset += count + gap
    reaching = [entry for entry in model if entry[0] >= offset]
    expected: list[bytes] = []
    for last, data in reaching:
        if last >= end or (expected and len(b"".join(expected)) + len(data) > max_bytes):
            break
        expected.append(data)
    found = segment.read(offset, max_bytes, end_offset=end)
    if reaching:
        assert found is not None
        assert bytes(found.data) == b"".join(expected)
        assert found.next_offset == (reaching[len(expected) - 1][0] + 1 if expected else offset)
    else:
        assert found is None
    assert segment.next_offset() == (model[-1][0] + 1 if model else 0)
    segment.close()


def test_a_first_batch_above_max_bytes_is_returned_only_with_at_least_one(tmp_path: Path) -> None:
    """The batch may be larger than the window of a read."""
    segment = opened(tmp_path)
    large = batch(0, 1, size=100_000)
    append(segment, large, batch(1))
    cut = segment.read(0, 10, at_least_one=False)
    assert cut is not None
    assert (bytes(cut.data), cut.next_offset) == (b"", 0)
    whole = segment.read(0, 10)
    assert whole is not None
    assert bytes(whole.data) == large
    assert segment.next_offset() == 2
    segment.close()


def test_index_entries_are_sparse_and_point_to_their_batches(tmp_path: Path) -> None:
    """The first batch after more than the interval of bytes gets an entry, also within one append."""
    segment = opened(tmp_path)
    data = [batch(i, 1, timestamp=1_000 - i if i % 2 else 1_000 + i, size=200) for i in range(10)]
    append(segment, *data)
    size = len(data[0])
    step = 500 // size + 1
    index = segment.offset_index
    assert [index.entry(slot) for slot in range(index.entries)] == [
        (i, sum(map(len, data[:i]))) for i in range(step, 10, step)
    ]
    times = segment.time_index
    assert [times.entry(slot) for slot in range(times.entries)] == [
        (1_000 + i - i % 2, i - i % 2) for i in range(step, 10, step)
    ]
    segment.close()


def test_index_entries_that_do_not_fit_are_left_out(tmp_path: Path) -> None:
    """A large append fills the index, and the segment must roll. All batches are still found by scanning."""
    segment = opened(tmp_path, config=LogConfig(index_interval_bytes=0, segment_index_bytes=36))
    append(segment, *(batch(i) for i in range(20)))
    assert segment.offset_index.is_full
    assert segment.should_roll(roll_params(max_segment_bytes=10**6))
    found = segment.read(17, 1)
    assert found is not None
    assert offsets_of(found.data) == [17]
    segment.become_inactive()
    assert segment.time_index.last_entry == (1_000, 0)
    segment.close()


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (roll_params(), False),
        (roll_params(size=900), True),
        (roll_params(max_timestamp=2_950), False),
        (roll_params(max_timestamp=2_951), True),
        (roll_params(max_timestamp=1_000, now_ms=10**9), False),
        (roll_params(max_offset=2**31 + 5), False),
        (roll_params(max_offset=2**31 + 6), True),
    ],
)
def test_a_segment_rolls_by_size_age_and_offset_span(
    tmp_path: Path, params: RollParams, *, expected: bool
) -> None:
    """The age counts from the first batch's timestamp, minus the jitter. Relative offsets have 31 bits."""
    segment = opened(tmp_path, base_offset=6, jitter=50)
    append(segment, batch(6, 1, timestamp=2_000, size=40))
    assert segment.should_roll(params) == expected
    segment.close()


def test_the_age_without_timestamps_counts_from_the_creation_of_the_segment(tmp_path: Path) -> None:
    """An empty segment never rolls by age."""
    segment = opened(tmp_path)
    late = roll_params(now_ms=11_001)
    assert not segment.should_roll(late)
    append(segment, batch(0, 1, timestamp=-1))
    assert segment.should_roll(late)
    assert not segment.should_roll(late._replace(now_ms=11_000))
    assert segment.largest_timestamp == int((tmp_path / f"{0:020}.log").stat().st_mtime_ns / 10**6)
    segment.close()


def test_offsets_too_far_from_the_base_are_rejected_before_a_write(tmp_path: Path) -> None:
    """The segment must roll or be split."""
    segment = opened(tmp_path)
    with pytest.raises(SegmentOffsetOverflowError):
        append(segment, batch(2**31))
    assert segment.size == 0
    segment.close()


@pytest.mark.parametrize("config", [DENSE, SPARSE])
@pytest.mark.parametrize(("timestamp", "first", "expected"), [
    (0, 0, (100, 0)),
    (101, 0, (101, 1)),
    (103, 0, (150, 4)),
    (0, 3, (90, 3)),
    (151, 0, (200, 8)),
    (201, 0, (201, 9)),
    (202, 0, None),
])  # fmt: skip
def test_timestamp_lookups_return_the_exact_record(
    tmp_path: Path, config: LogConfig, timestamp: int, first: int, expected: tuple[int, int] | None
) -> None:
    """It is the first record at or after an offset with at least the timestamp, in any order."""
    segment = opened(tmp_path, config=config)
    append(segment, batch(0, 3, timestamp=100), batch(3, 1, timestamp=90, size=600))
    append(segment, batch(4, 1, timestamp=150), batch(5, 1, timestamp=120), batch(8, 2, timestamp=200))
    assert segment.find_offset_by_timestamp(timestamp, first) == expected
    segment.close()


@pytest.mark.parametrize("config", [DENSE, SPARSE])
@pytest.mark.parametrize("cut", range(8))
def test_a_segment_is_truncated_at_a_batch(tmp_path: Path, config: LogConfig, cut: int) -> None:
    """Batches that contain or follow the offset are dropped. The largest timestamp is that of the rest."""
    segment = opened(tmp_path, config=config)
    data = [batch(i, 1, timestamp=2_000 - i, size=300) for i in range(3)]
    data += [batch(3, 2, timestamp=3_000), batch(5, 1)]
    append(segment, *data)
    removed = segment.truncate_to(cut)
    ends = [1, 2, 3, 5, 6]
    kept = [d for d, end in zip(data, ends, strict=True) if end <= cut]
    assert removed == sum(map(len, data)) - sum(map(len, kept))
    assert segment.size == sum(map(len, kept))
    assert segment.max_timestamp_and_offset == (
        (-1, 0) if not kept else (3_001, 4) if cut >= 5 else (2_000, 0)
    )
    append(segment, batch(10))
    found = segment.read(0, 10**6)
    assert found is not None
    assert bytes(found.data) == b"".join([*kept, batch(10)])
    segment.close()


def test_a_closed_segment_opens_with_trimmed_indexes_and_its_largest_timestamp(tmp_path: Path) -> None:
    """The time index ends with the largest timestamp after a roll and after a close."""
    segment = opened(tmp_path)
    append(segment, batch(0, 2, timestamp=500), batch(2, 1, timestamp=100))
    segment.sync()
    segment.close()
    assert (tmp_path / f"{0:020}.index").stat().st_size == 0
    assert (tmp_path / f"{0:020}.timeindex").stat().st_size == 12
    again = opened(tmp_path)
    assert again.max_timestamp_and_offset == (501, 1)
    assert again.first_batch_timestamp == 501
    again.resize_indexes()
    append(again, batch(3, 1, timestamp=700))
    assert again.largest_timestamp == 700
    again.close()


def test_renamed_files_can_be_read_and_deleted(tmp_path: Path) -> None:
    """A read that began before continues. An index that was not open is found under its new name."""
    segment = opened(tmp_path)
    append(segment, batch(0), batch(1))
    segment.close()
    segment = opened(tmp_path)
    segment.change_suffix(DELETED)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".deleted"] * 3
    found = segment.read(1, 100)
    assert found is not None
    assert offsets_of(found.data) == [1]
    segment.delete()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(LogClosedError):
        segment.read(0, 100)


def test_preallocated_space_is_removed_when_the_segment_rolls(tmp_path: Path) -> None:
    """The file is as long as its batches."""
    segment = LogSegment(FS, tmp_path, 0, SPARSE, clock=CLOCK, preallocate=10_000)
    append(segment, batch(0))
    assert segment.path.stat().st_size == 10_000
    segment.become_inactive()
    assert segment.path.stat().st_size == segment.size == len(batch(0))
    segment.close()


TAILS = {
    "nothing": b"",
    "a torn header": batch(7)[:40],
    "a torn batch": batch(7, 1, size=100)[:-1],
    "zeros": bytes(500),
    "a wrong checksum": batch(7)[:-1] + b"x",
    "offsets that fall": batch(3),
    "a size of nonsense": batch(7)[:8] + b"\x7f\xff\xff\xff" + batch(7)[12:],
}


@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS.keys())
def test_recovery_keeps_valid_batches_and_truncates_the_tail(tmp_path: Path, tail: bytes) -> None:
    """Indexes, producers and epochs equal those of a segment that did not crash."""
    data = [
        batch(0, 2, producer=(7, 0, 0), timestamp=900, size=300, epoch=1),
        batch(2, 1, producer=(8, 0, 0), transactional=True, size=300, epoch=1),
        marker(3, producer=(8, 0), abort=True, epoch=2),
        batch(4, 1, size=400, epoch=2),
        batch(5, 2, producer=(7, 0, 2), epoch=4),
    ]
    segment = opened(tmp_path)
    append(segment, *data)
    segment.become_inactive()
    entries = [segment.offset_index.entry(slot) for slot in range(segment.offset_index.entries)]
    assert entries
    times = [segment.time_index.entry(slot) for slot in range(segment.time_index.entries)]
    segment.close_handles()
    with segment.path.open("ab") as file:
        file.write(tail)
    (tmp_path / f"{0:020}.index").write_bytes(b"garbage")
    (tmp_path / f"{0:020}.timeindex").unlink()
    again = opened(tmp_path)
    removed, states, epochs = recovered(again, tmp_path)
    assert removed == len(tail)
    assert again.size == again.path.stat().st_size == sum(map(len, data))
    assert [again.offset_index.entry(slot) for slot in range(again.offset_index.entries)] == entries
    assert [again.time_index.entry(slot) for slot in range(again.time_index.entries)] == times
    assert states.producers[7].last_sequence == 3
    assert states.map_end_offset == 7
    assert again.transaction_index.all() == [(8, 2, 3, 4)]
    assert epochs.entries == ((1, 0), (2, 3), (4, 5))
    again.close()


def test_a_batch_larger_than_a_window_is_recovered(tmp_path: Path) -> None:
    """It is read alone."""
    segment = opened(tmp_path)
    append(segment, batch(0), batch(1, 1, size=5 * 2**20), batch(2))
    assert recovered(segment, tmp_path)[0] == 0
    assert segment.next_offset() == 3
    segment.close()


def test_reading_garbage_within_a_segment_raises_an_error(tmp_path: Path) -> None:
    """A reader never loops on bytes that are not a batch."""
    segment = opened(tmp_path)
    append(segment, batch(0))
    segment.log.append(bytes(100))
    with pytest.raises(CorruptLogError):
        segment.read(5, 100)
    segment.close()


def test_segments_are_found_by_offset(tmp_path: Path) -> None:
    """This covers floor, higher, and ranges. A list that was read before does not change."""
    segments = LogSegments()
    made = {base: opened(tmp_path, base) for base in (0, 10, 20)}
    for segment in reversed(made.values()):
        segments.add(segment)
    before = segments.all
    assert [segments.floor(offset) for offset in (-1, 0, 9, 10, 99)] == [
        None, made[0], made[0], made[10], made[20],
    ]  # fmt: skip
    assert (segments.higher(10), segments.higher(20)) == (made[20], None)
    assert segments.values(5, 20) == (made[0], made[10])
    assert segments.values(10, 21) == (made[10], made[20])
    assert segments.inactive_from(10) == (made[10],)
    assert segments.active is made[20]
    assert segments.get(10) is made[10]
    assert segments.get(11) is None
    segments.remove(10)
    assert segments.base_offsets == (0, 20)
    assert len(before) == 3
    replaced = opened(tmp_path, 20)
    assert segments.add(replaced) is made[20]
    segments.close()
    segments.clear()
    with pytest.raises(CorruptLogError):
        _ = segments.active
    made[10].close()
    made[20].close_handles()
