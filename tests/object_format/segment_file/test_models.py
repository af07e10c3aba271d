"""Parts of readers and writers, compared with plain models of their rules at the borders of these rules."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import InvalidInputError
from object_format.segment_file import CorruptSegmentError
from object_format.segment_file.block_checker import BlockChecker
from object_format.segment_file.block_payloads import SectionEntry, SectionFooter, SectionHeader, Trailer
from object_format.segment_file.block_splitter import (
    BATCHES,
    FIRST_OFFSET,
    LAST_OFFSET,
    PENDING_BYTES,
    RECORDS,
    BlockSplitter,
)
from object_format.segment_file.layout import MAX_PAYLOAD
from object_format.segment_file.random_access import SectionIndex
from object_format.segment_file.stream_buffer import StreamBuffer
from tests.object_format.segment_file.samples import FILE_ID, TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MAX = 2**63 - 1
_FIXED = {1: 48, 2: 24, 6: 64, 8: 48}
"""Lengths of payloads that have no other length, by type of block."""


@pytest.mark.parametrize("kind", range(11))
def test_a_block_is_read_if_its_header_is_allowed(kind: int) -> None:
    checker = BlockChecker(file="a.seg", seed=0)
    for flags in range(256):
        for reserved in (0, 1, 256):
            for length in {0, 1, *(each + step for each in _FIXED.values() for step in (-1, 0, 1))}:
                optional = flags & 1 == 1
                known = 1 <= kind <= 8
                allowed = (
                    flags & 0x0E == 0
                    and reserved == 0
                    and (optional == (kind == 4) if known else optional)
                    and length == _FIXED.get(kind, length)
                )
                data = memoryview(struct.pack(">BBHII", kind, flags, reserved, length, 7))
                if allowed:
                    assert checker.header(data, 100, None) == (kind, flags, reserved, length, 7)
                else:
                    with pytest.raises(CorruptSegmentError) as caught:
                        checker.header(data, 100, None)
                    assert (caught.value.remedy is not None) == ("unknown" in caught.value.message)


@pytest.mark.parametrize("length", [0, 30, MAX_PAYLOAD, MAX_PAYLOAD + 1])
@pytest.mark.parametrize("beyond", [-1, 0, 1])
def test_a_block_ends_at_its_limit(length: int, beyond: int) -> None:
    checker = BlockChecker(file="a.seg", seed=0)
    data = memoryview(struct.pack(">BBHII", 3, 0, 0, length, 0))
    limit = 100 + 12 + length - beyond

    if length > MAX_PAYLOAD:
        with pytest.raises(CorruptSegmentError, match="above the limit"):
            checker.header(data, 100, limit)
    elif beyond > 0:
        with pytest.raises(CorruptSegmentError, match=f"ends beyond byte {limit}"):
            checker.header(data, 100, limit)
    else:
        assert checker.header(data, 100, limit).size == 12 + length


def test_sections_have_partitions_from_0_on() -> None:
    for partition in (0, 2**31 - 1):
        header = SectionHeader(topic_id=TOPIC, partition=partition, position=9)
        assert SectionHeader.unpack(header.pack(), 9) == header
    with pytest.raises(ValueError, match="negative"):
        SectionHeader.unpack(struct.pack(">16siI", TOPIC.bytes, -1, 0), 9)
    with pytest.raises(ValueError, match="reserved"):
        SectionHeader.unpack(struct.pack(">16siI", TOPIC.bytes, 0, 1), 9)


def usually(value: int, *others: int) -> st.SearchStrategy[int]:
    """Return a strategy that mostly returns the first value."""
    return st.sampled_from([value] * 12 + list(others))


def are_offsets(base: int, last: int, records: int, data_length: int) -> bool:
    return 0 <= base <= last and 0 <= records <= last - base + 1 and (records == 0 or data_length > 0)


def offsets_and_counts() -> Iterator[tuple[int, int, int]]:
    """Yield base offsets, last offsets and numbers of records around the borders of what is allowed."""
    for base in (-1, 0, 1, 3):
        for last in (base - 1, base, base + 1, _MAX):
            span = last - base + 1
            for records in {-1, 0, 1, span, span + 1} - {_MAX + 1, _MAX + 2, _MAX + 3}:
                yield base, last, records


@pytest.mark.parametrize(
    ("flags", "reserved"),
    [(0, 0), (1, 0), (2, 0), (1 << 15, 0), (1 << 16, 0), (1 << 31, 0), (1 << 16 | 1, 0), (0, 1)],
)
@pytest.mark.parametrize("data_length", [0, 1])
@pytest.mark.parametrize("batches", [-1, 0, 1])
def test_a_footer_is_read_if_its_fields_agree(
    batches: int, data_length: int, flags: int, reserved: int
) -> None:
    for base, last, records in offsets_and_counts():
        check_footer(base, last, records, batches, data_length, flags, reserved)


def check_footer(
    base: int, last: int, records: int, batches: int, data_length: int, flags: int, reserved: int
) -> None:
    payload = struct.pack(">qqqqQqqII", base, last, records, batches, data_length, 3, -4, flags, reserved)
    allowed = (
        are_offsets(base, last, records, data_length)
        and batches >= 0
        and (batches > 0) == (data_length > 0)
        and flags & ~0xFFFF_0001 == 0
        and reserved == 0
    )
    if not allowed:
        with pytest.raises(ValueError, match=r"reserved|offsets|records|batches"):
            SectionFooter.unpack(payload)
        return
    footer = SectionFooter.unpack(payload)
    assert footer.pack() == payload
    assert footer == SectionFooter(
        base_offset=base,
        last_offset=last,
        record_count=records,
        batch_count=batches,
        data_length=data_length,
        min_timestamp=3,
        max_timestamp=-4,
        unique_keys=flags & 1 == 1,
        ignored_flags=flags & 0xFFFF_0000,
    )


_PARTS = st.one_of(
    st.just((0, 0)),
    st.just((101, 9)),
    st.tuples(st.integers(99, 112), st.integers(0, 12)),
    st.just((2**63, 2**63)),
)


@settings(max_examples=300)
@given(
    partition=usually(0, -1, 2**31 - 1),
    flags=usually(0, 1, 2, 1 << 15, 1 << 16, 1 << 31),
    parts=st.tuples(_PARTS, _PARTS, _PARTS),
    offsets=st.sampled_from(list(offsets_and_counts())),
)
def test_a_directory_entry_is_read_if_its_fields_agree(
    partition: int,
    flags: int,
    parts: tuple[tuple[int, int], ...],
    offsets: tuple[int, int, int],
) -> None:
    """Parts are behind the first byte of their section, and do not end behind it."""
    base, last, records = offsets
    fields = [value for part in parts for value in part]
    payload = struct.pack(
        ">16siI8Qqqqqq", TOPIC.bytes, partition, flags, 100, 10, *fields, base, last, records, 3, -4
    )
    allowed = (
        partition >= 0
        and flags & ~0xFFFF_0001 == 0
        and are_offsets(base, last, records, parts[0][1])
        and all((at > 100 and at + length <= 110) if length else at == 0 for at, length in parts)
    )
    if not allowed:
        with pytest.raises(ValueError, match=r"reserved|negative|offsets|records|inside"):
            SectionEntry.unpack(payload)
        return
    entry = SectionEntry.unpack(payload)
    assert entry.pack() == payload
    assert entry.unique_keys == (flags & 1 == 1)
    assert entry.ignored_flags == flags & 0xFFFF_0000
    assert (entry.key, entry.position, entry.length) == ((TOPIC, partition), 100, 10)
    assert (entry.data_position, entry.data_length) == parts[0]
    assert (entry.index_position, entry.index_length) == parts[1]
    assert (entry.holes_position, entry.holes_length) == parts[2]


@given(st.integers(0, 3), st.integers(-1, 1), st.integers(-1, 1), st.integers(0, 100))
def test_a_trailer_is_read_if_its_fields_agree(count: int, more: int, beyond: int, position: int) -> None:
    length = 12 + 128 * count + more
    size = position + length + 60 + beyond
    payload = struct.pack(
        ">16sQIIQ8s", FILE_ID.bytes, position, length, count, size, bytes.fromhex("1a0a0d544c495389")
    )
    if more or beyond:
        with pytest.raises(ValueError, match="a directory"):
            Trailer.unpack(payload)
    else:
        trailer = Trailer.unpack(payload)
        assert trailer.pack() == payload
        assert (trailer.section_count, trailer.size) == (count, size)
    with pytest.raises(ValueError, match="does not end like"):
        Trailer.unpack(payload[:-1] + b"\x88")


class Entry(NamedTuple):
    """A block of an index: its size, the step to its base offset, and its newest timestamp."""

    size: int
    step: int
    newest: int


_ENTRIES = st.lists(
    st.builds(Entry, st.integers(1, 4), st.integers(1, 3), st.integers(-1, 5)), min_size=1, max_size=6
)


@given(
    entries=_ENTRIES,
    offset=st.integers(-1, 20),
    timestamp=st.integers(-2, 6),
    max_bytes=st.integers(0, 30),
    position=st.integers(0, 26),
)
def test_an_index_finds_what_a_search_of_all_blocks_finds(
    entries: Sequence[Entry], offset: int, timestamp: int, max_bytes: int, position: int
) -> None:
    bases = np.cumsum([each.step for each in entries]).tolist()
    ends = np.cumsum([each.size for each in entries]).tolist()
    starts = [0, *ends[:-1]]
    newest = [each.newest for each in entries]
    index = SectionIndex(
        np.array(bases, np.int64), np.array(newest, np.int64), np.array([0, *ends], np.int64)
    )

    def blocks(first: int) -> tuple[int, int]:
        fitting = [end for end in ends[first + 1 :] if end - starts[first] <= max_bytes]
        return starts[first], (fitting[-1] if fitting else ends[first]) - starts[first]

    containing = max((n for n, base in enumerate(bases) if base <= offset), default=0)
    assert index.range_for_offset(offset, max_bytes) == blocks(containing)
    start, length = blocks(containing)
    inside = [base for base, end in zip(bases, ends, strict=True) if end <= start + length]
    assert index.last_base_offset(start, length) == inside[-1]
    late = [n for n in range(len(entries)) if starts[n] >= position]
    assert index.block_from(position) == ((starts[late[0]], bases[late[0]]) if late else None)
    assert index.max_timestamp(position) == max((newest[n] for n in late), default=-1)
    found = [n for n in late if newest[n] >= timestamp]
    expected = blocks(found[0]) if found else None
    assert index.range_for_timestamp(timestamp, max_bytes, from_position=position) == expected
    assert (len(index), index.data_length) == (len(entries), ends[-1])


class Source:
    """A source of bytes in reads of given sizes, which must ask for at least one byte each time."""

    def __init__(self, data: bytes, sizes: Sequence[int]) -> None:
        self._data = data
        self._sizes = sizes
        self._reads = 0
        self.passed = 0

    def readinto(self, target: memoryview, /) -> int:
        assert len(target) > 0
        size = min(self._sizes[self._reads % len(self._sizes)], len(target), len(self._data) - self.passed)
        self._reads += 1
        target[:size] = self._data[self.passed : self.passed + size]
        self.passed += size
        return size


@given(
    length=st.integers(0, 120),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    read_size=st.integers(0, 20),
    calls=st.lists(
        st.tuples(st.sampled_from(["ensure", "available", "shrink"]), st.integers(0, 60), st.integers(0, 60)),
        max_size=12,
    ),
)
def test_a_stream_buffer_returns_the_bytes_in_order(
    length: int, sizes: Sequence[int], read_size: int, calls: Sequence[tuple[str, int, int]]
) -> None:
    """It grows for a longer view only, to at most twice what has arrived of it, and then shrinks again."""
    data = bytes(range(length))
    source = Source(data, sizes)
    buffer = StreamBuffer(source, read_size)
    read_size, at = max(read_size, 1), 0
    for call, wanted, consumed in calls:
        received, before = source.passed, buffer.capacity
        match call:
            case "ensure":
                available = buffer.ensure(wanted)
                assert available == min(wanted, length - at)
                assert buffer.peek(available) == data[at : at + available]
                if source.passed > received:
                    most = max(before, read_size, min(wanted, 2 * (source.passed - at)))
                    assert read_size <= buffer.capacity <= most
                    if wanted <= read_size:
                        assert buffer.capacity == read_size
            case "available":
                view = buffer.read_available(wanted)
                available = len(view)
                assert view == data[at : at + available]
                assert available == min(wanted, source.passed - at)
                assert source.passed > at or at == length
                assert received in {source.passed, at}
            case _:
                available = 0
                buffer.shrink()
                left = source.passed - at
                assert buffer.capacity == (left if left <= read_size < before else before)
                assert buffer.peek(left) == data[at : at + left]
        step = min(consumed, available)
        buffer.advance(step)
        at += step
        assert buffer.position == at


class Batch(NamedTuple):
    """Fields of a batch's header that the splitter looks at, and the bytes after the header."""

    base: int
    delta: int
    records: int
    newest: int
    magic: int
    body: int
    size: int | None

    def encoded(self) -> bytes:
        size = 61 + self.body if self.size is None else self.size
        head = struct.pack(
            ">qiiBIHiqqqhii",
            self.base,
            size - 12,
            0,
            self.magic,
            0,
            0,
            self.delta,
            0,
            self.newest,
            -1,
            -1,
            -1,
            self.records,
        )
        return head + bytes(self.body)


_BATCHES = st.lists(
    st.builds(
        Batch,
        base=usually(0, -1, _MAX, _MAX - 1),
        delta=st.one_of(st.integers(0, 3), usually(0, -1, 2**31 - 1)),
        records=st.one_of(st.integers(0, 3), usually(0, -1, 2**31 - 1)),
        newest=st.integers(-2, 5),
        magic=usually(2, 1, 3),
        body=st.integers(0, 40),
        size=st.integers(0, 29).map({0: 60, 1: MAX_PAYLOAD + 1, 2: -2}.get),
    ),
    max_size=7,
)


@given(
    batches=_BATCHES,
    steps=st.lists(usually(1, 0, 2, 3), min_size=7, max_size=7),
    target=st.integers(1, 300),
    cut=usually(0, 1, 30, 61, 62),
    per_call=st.integers(1, 7),
)
def test_batches_are_split_as_one_after_the_other(
    batches: Sequence[Batch], steps: Sequence[int], target: int, cut: int, per_call: int
) -> None:
    """An error changes nothing. Base offset 0 stands for that of the last batch and a step."""
    splitter = BlockSplitter(target)
    last, count, records, first = -1, 0, 0, None
    pending: list[Batch] = []
    for begin in range(0, len(batches), per_call):
        chosen: list[Batch] = []
        following = last
        for each, step in zip(batches[begin : begin + per_call], steps[begin:], strict=False):
            one = each._replace(base=min(following + step, _MAX)) if each.base == 0 else each
            chosen.append(one)
            following = max(one.base + one.delta, -1)
        data = b"".join(each.encoded() for each in chosen)
        data = data[: len(data) - cut] if cut < len(data) else data
        state = list(splitter._state)

        fault, before, left = False, last, len(data)
        for number, each in enumerate(chosen):
            if not left:
                chosen = chosen[:number]
                break
            size = 61 + each.body if each.size is None else each.size
            fault = fault or (
                left < 61
                or each.magic != 2
                or not 61 <= size <= min(MAX_PAYLOAD, left)
                or min(each.base, each.delta, each.records) < 0
                or each.base + each.delta > _MAX
                or each.base <= before
            )
            before = each.base + each.delta
            left -= size
        if fault:
            with pytest.raises(InvalidInputError):
                splitter.split(memoryview(data))
            assert splitter._state == state
            continue

        blocks: list[list[int]] = []
        at = 0
        for each in chosen:
            if pending and sum(61 + one.body for one in pending) + 61 + each.body > target:
                blocks.append([at, pending[0].base, max(one.newest for one in pending)])
                pending = []
            pending.append(each)
            at += 61 + each.body
            first = each.base if first is None else first
            last = each.base + each.delta
            count += 1
            records += each.records
        assert splitter.split(memoryview(data)) == blocks
        assert splitter.get(PENDING_BYTES) == sum(61 + one.body for one in pending)
        assert (splitter.get(LAST_OFFSET), splitter.get(BATCHES)) == (last, count)
        assert splitter.get(RECORDS) == records
        assert splitter.get(FIRST_OFFSET) == (0 if first is None else first)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=4),
    st.integers(-1, 9),
    st.integers(-1, 9),
)
def test_batches_follow_those_before_them(added: Sequence[tuple[int, int]], base: int, last: int) -> None:
    splitter = BlockSplitter(100)
    previous = -1
    bases: list[int] = []
    for gap, delta in added:
        bases.append(previous + 1 + gap)
        previous = bases[-1] + delta
        splitter.count([bases[-1]], previous, 1)

    if previous < base <= last:
        splitter.check_order(base, last)
    else:
        with pytest.raises(InvalidInputError, match="do not follow"):
            splitter.check_order(base, last)
    assert splitter.get(FIRST_OFFSET) == (bases[0] if bases else 0)
    assert (splitter.get(BATCHES), splitter.get(RECORDS)) == (len(bases), len(bases))
    assert splitter.get(LAST_OFFSET) == previous
    splitter.check_order(_MAX, _MAX)
