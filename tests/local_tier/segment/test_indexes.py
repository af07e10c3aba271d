"""The indexes of a segment, compared with lists."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_tier.errors import CorruptIndexError, IndexOverflowError, LogClosedError
from local_tier.files.file_system import RealFileSystem
from local_tier.segment.offset_index import OffsetIndex, OffsetPosition
from local_tier.segment.time_index import TimeIndex, TimestampOffset
from local_tier.segment.transaction_index import AbortedTxn, TransactionIndex

if TYPE_CHECKING:
    from pathlib import Path

FS = RealFileSystem()
BASE = 1000


def offset_index(path: Path, max_bytes: int = 8 * 100) -> OffsetIndex:
    return OffsetIndex(FS, path, BASE, max_bytes, create=not path.exists())


def time_index(path: Path, max_bytes: int = 12 * 100) -> TimeIndex:
    return TimeIndex(FS, path, BASE, max_bytes, create=not path.exists())


@given(
    steps=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 50)), max_size=3000),
    probes=st.lists(st.integers(-10, 16_000), min_size=1, max_size=30),
)
def test_offset_lookups_agree_with_a_list(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]], probes: list[int]
) -> None:
    """A lookup returns the last entry at or before an offset, within and outside of the warm section."""
    index = offset_index(tmp_path_factory.mktemp("index") / "0.index", 8 * 3000 + 7)
    model = []
    offset, position = BASE - 1, 0
    for gap, size in steps:
        offset, position = offset + gap, position + size
        index.append(offset, position)
        model.append(OffsetPosition(offset, position))
    for probe in [*probes, *(entry.offset - BASE for entry in model[:: len(model) // 5 + 1])]:
        below = [entry for entry in model if entry.offset <= BASE + probe]
        assert index.lookup(BASE + probe) == (below[-1] if below else (BASE, 0))
    index.close()


@given(
    entries=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), max_size=60),
    cut=st.integers(-2, 200),
    probe=st.integers(-1, 600),
)
def test_time_lookups_and_truncation_agree_with_a_list(
    tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[int, int]], cut: int, probe: int
) -> None:
    """Truncation removes all entries at or above an offset. Lookups see the rest."""
    index = time_index(tmp_path_factory.mktemp("index") / "0.timeindex")
    model = []
    timestamp, offset = 0, BASE
    for gap, step in entries:
        timestamp, offset = timestamp + gap, offset + step
        index.maybe_append(timestamp, offset)
        model.append(TimestampOffset(timestamp, offset))
    index.truncate_to(BASE + cut)
    model = [entry for entry in model if entry.offset < BASE + cut]
    below = [entry for entry in model if entry.timestamp <= probe]
    assert index.lookup(probe) == (below[-1] if below else (-1, BASE))
    assert index.last_entry == (model[-1] if model else (-1, BASE))
    index.close()


@pytest.mark.parametrize("cut", [0, BASE, BASE + 5, BASE + 7, BASE + 9, BASE + 100])
def test_an_offset_index_is_truncated_at_and_above_an_offset(tmp_path: Path, cut: int) -> None:
    """The rest is below the offset, and the index can be appended to."""
    index = offset_index(tmp_path / "0.index")
    for offset in (5, 7, 9):
        index.append(BASE + offset, offset)
    index.truncate_to(cut)
    kept = [offset for offset in (5, 7, 9) if BASE + offset < cut]
    assert [index.entry(slot).position for slot in range(index.entries)] == kept
    assert index.last_offset == BASE + (kept[-1] if kept else 0)
    index.append(BASE + 200, 200)
    assert index.lookup(BASE + 300) == (BASE + 200, 200)
    index.close()


def test_index_files_are_preallocated_trimmed_and_have_kafkas_format(tmp_path: Path) -> None:
    """A new index has its full size. A closed one has only its big-endian entries."""
    offsets, times = offset_index(tmp_path / "0.index", 1001), time_index(tmp_path / "0.timeindex", 1001)
    sizes = [(tmp_path / name).stat().st_size for name in ("0.index", "0.timeindex")]
    assert sizes == [1000, 996]
    offsets.append(BASE + 28, 4169)
    times.maybe_append(1638100314372, BASE + 28)
    offsets.close()
    times.close()
    assert (tmp_path / "0.index").read_bytes() == struct.pack(">ii", 28, 4169)
    assert (tmp_path / "0.timeindex").read_bytes() == struct.pack(">qi", 1638100314372, 28)
    assert offset_index(tmp_path / "0.index").lookup(BASE + 50) == (BASE + 28, 4169)
    assert time_index(tmp_path / "0.timeindex").last_entry == (1638100314372, BASE + 28)


def test_a_trimmed_index_can_be_resized_and_appended_to(tmp_path: Path) -> None:
    """The index of a segment that becomes active again takes more entries."""
    index = offset_index(tmp_path / "0.index")
    index.append(BASE + 1, 10)
    index.trim()
    assert index.is_full
    index.resize(800)
    index.append(BASE + 2, 20)
    index.sync()
    assert [index.entry(0), index.entry(1)] == [(BASE + 1, 10), (BASE + 2, 20)]
    index.close()


def test_the_last_slot_of_a_time_index_is_for_the_largest_timestamp(tmp_path: Path) -> None:
    """It counts as full with one free slot, which only a roll may use."""
    index = time_index(tmp_path / "0.timeindex", 24)
    index.maybe_append(10, BASE)
    assert index.is_full
    with pytest.raises(IndexOverflowError, match="is full"):
        index.maybe_append(11, BASE + 1)
    index.maybe_append(12, BASE + 1, may_use_last_slot=True)
    assert index.last_entry == (12, BASE + 1)
    index.close()


def test_entries_out_of_order_or_range_are_rejected(tmp_path: Path) -> None:
    """Offsets increase, timestamps do not decrease, and offsets are within 2^31 of the base offset."""
    offsets, times = offset_index(tmp_path / "0.index", 16), time_index(tmp_path / "0.timeindex")
    offsets.append(BASE + 5, 0)
    for offset in (BASE + 5, BASE + 4):
        with pytest.raises(IndexOverflowError, match="not above"):
            offsets.append(offset, 1)
    for offset in (BASE + 2**31, BASE - 1):
        assert not offsets.can_append_offset(offset)
    with pytest.raises(IndexOverflowError, match="too far"):
        offsets.append(BASE + 2**31, 1)
    offsets.append(BASE + 2**31 - 1, 1)
    with pytest.raises(IndexOverflowError, match="full"):
        offsets.append(BASE + 7, 2)
    times.maybe_append(10, BASE + 5)
    times.maybe_append(10, BASE + 6)
    assert times.entries == 1
    for timestamp, offset in ((11, BASE + 4), (9, BASE + 7)):
        with pytest.raises(IndexOverflowError, match="out of order after"):
            times.maybe_append(timestamp, offset)
    offsets.close()
    times.close()


def test_a_corrupt_index_is_detected(tmp_path: Path) -> None:
    """Corruptions are partial entries, and the zeros after the entries of an active segment."""
    for content in (b"\0" * 7, struct.pack(">ii", 5, 5) + bytes(8)):
        (tmp_path / "0.index").write_bytes(content)
        index = offset_index(tmp_path / "0.index")
        with pytest.raises(CorruptIndexError):
            index.sanity_check()
        index.close_without_trimming()


def test_a_closed_index_rejects_lookups(tmp_path: Path) -> None:
    """A lookup raises an error instead of returning a wrong entry."""
    index = offset_index(tmp_path / "0.index")
    index.append(BASE + 1, 1)
    index.close()
    with pytest.raises(LogClosedError):
        index.lookup(BASE + 1)


def test_transaction_index_entries_have_kafkas_format(tmp_path: Path) -> None:
    """An entry has 34 bytes. The file is created with the first one."""
    path = tmp_path / "0.txnindex"
    index = TransactionIndex(FS, path, 0)
    assert not path.exists()
    assert index.all() == []
    first, second = AbortedTxn(7, 0, 10, 11), AbortedTxn(8, 5, 20, 12)
    index.append(first)
    index.append(second)
    index.sync()
    index.close()
    assert path.read_bytes() == struct.pack(">hqqqqhqqqq", 0, 7, 0, 10, 11, 0, 8, 5, 20, 12)
    assert TransactionIndex(FS, path, 0).all() == [first, second]


def test_aborted_transactions_that_overlap_a_read_are_collected(tmp_path: Path) -> None:
    """The search ends at an entry whose last stable offset is beyond the read."""
    index = TransactionIndex(FS, tmp_path / "0.txnindex", 0)
    early, late = AbortedTxn(1, 0, 10, 11), AbortedTxn(2, 5, 20, 21)
    index.append(early)
    index.append(late)
    assert index.collect(0, 4) == ([early], False)
    assert index.collect(11, 30) == ([late], True)
    assert index.collect(21, 30) == ([], True)
    index.truncate_to(15)
    assert index.all() == [early]
    with pytest.raises(IndexOverflowError):
        index.append(AbortedTxn(3, 0, 10, 11))
    index.append(late)
    index.reset()
    assert index.all() == []
    index.close()


def test_a_corrupt_transaction_index_is_detected(tmp_path: Path) -> None:
    """Corruptions are a torn entry, one that ends before its segment, and one of an unknown version."""
    path = tmp_path / "0.txnindex"
    entry = struct.pack(">hqqqq", 0, 7, 0, 10, 11)
    for content, base in ((entry[:-1], 0), (entry, 11), (b"\0\1" + entry[2:], 0)):
        path.write_bytes(content)
        index = TransactionIndex(FS, path, base)
        with pytest.raises(CorruptIndexError):
            index.sanity_check()
        index.close()
