"""Kernels of a log on batch headers, compared with plain loops over rows of few and rare values."""

from __future__ import annotations

import struct
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from object_format.buffers import readable
from object_format.kernels.batches import append, log_window
from object_format.kernels.batches.layout import BATCH_ROW, PRODUCER_ATTRIBUTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

_TOP = 2**31
_NEVER = -(2**63)


def rows_of(columns: Sequence[dict[str, int]]) -> npt.NDArray[np.void]:
    rows = np.zeros(len(columns), BATCH_ROW)
    for row, values in zip(rows, columns, strict=True):
        for name, value in values.items():
            row[name] = value
    return rows


def rows(
    least: int = 0, most: int = 6, **fields: st.SearchStrategy[int]
) -> st.SearchStrategy[list[dict[str, int]]]:
    return st.lists(st.fixed_dictionaries(fields), min_size=least, max_size=most)


def usually(value: int, *others: int) -> st.SearchStrategy[int]:
    return st.sampled_from([value] * 12 + list(others))


def test_headers_of_producers_are_checked_one_by_one() -> None:
    """The second of three batches has all combinations of what is accepted, and of what is not."""
    fine = {"producer_id": 5, "base_sequence": 7, "record_count": 1}
    bits = [1 << bit for bit in range(16)]
    for producer, sequence, count, delta, attributes in product(
        [-1, 0, 5], [-2, -1, 0, 7], [-1, 0, 1, 2], [-2, -1, 0, 1], [0, *bits, 9, 24, -128]
    ):
        changed = {
            "producer_id": producer,
            "base_sequence": sequence,
            "record_count": count,
            "last_offset_delta": delta,
            "attributes": attributes,
        }
        is_accepted = (
            (producer < 0 or sequence >= 0)
            and attributes & ~PRODUCER_ATTRIBUTES == 0
            and count == delta + 1 >= 1
        )

        accepted, compressed = append.check_producer_headers(rows_of([fine, changed, fine]))

        assert bool(accepted) == is_accepted
        assert bool(compressed) == (is_accepted and attributes & 7 != 0)


def test_no_headers_are_accepted() -> None:
    assert tuple(map(bool, append.check_producer_headers(rows_of([])))) == (True, False)


_TIMES = st.integers(-3, 5)


@given(
    rows(
        fault=st.sampled_from([0, 0, 0, 3]),
        keyless=st.integers(0, 3),
        size=st.integers(61, 70),
        lowest_timestamp=_TIMES,
        highest_timestamp=_TIMES,
        max_timestamp=_TIMES,
    )
)
def test_rows_are_summed_up(columns: list[dict[str, int]]) -> None:
    assert tuple(append.summarize_rows(rows_of(columns))) == (
        sum(each["fault"] != 0 for each in columns),
        sum(each["keyless"] for each in columns),
        max((each["size"] for each in columns), default=0),
        min((each["lowest_timestamp"] for each in columns), default=2**63 - 1),
        max((each["highest_timestamp"] for each in columns), default=-(2**63) + 1),
        sum(each["max_timestamp"] != each["highest_timestamp"] for each in columns),
    )


@given(rows(1, base_offset=st.integers(0, 9), last_offset_delta=st.integers(0, 3), max_timestamp=_TIMES))
def test_bounds_are_those_of_the_first_and_last_row(columns: list[dict[str, int]]) -> None:
    assert tuple(append.offset_bounds(rows_of(columns))) == (
        columns[0]["base_offset"],
        columns[-1]["base_offset"] + columns[-1]["last_offset_delta"],
        max(each["max_timestamp"] for each in columns),
    )


class Header(NamedTuple):
    """The fields of a batch's header that a search in a log reads."""

    base: int
    delta: int
    timestamp: int
    size: int = 61
    epoch: int = 0

    def encoded(self) -> bytes:
        head = struct.pack(
            ">qiiBIHiqqqhii",
            self.base,
            self.size - 12,
            self.epoch,
            2,
            0,
            0,
            self.delta,
            0,
            self.timestamp,
            -1,
            -1,
            -1,
            1,
        )
        return head + bytes(max(self.size - 61, 0))


_HEADERS = st.lists(
    st.builds(
        Header,
        base=st.integers(0, 12),
        delta=usually(0, 1, 2, 3, -1),
        timestamp=_TIMES,
        size=usually(61, 62, 70, 90, 60, 12, -1),
        epoch=st.integers(0, 2),
    ),
    max_size=6,
)


def positions(headers: Sequence[Header], start: int = 0) -> list[int]:
    return [start + sum(max(each.size, 61) for each in headers[:n]) for n in range(len(headers))]


def is_malformed(header: Header) -> bool:
    return header.size < 61 or header.delta < 0


def window(headers: Sequence[Header], cut: int, before: int = 0) -> npt.NDArray[np.uint8]:
    data = bytes(before) + b"".join(each.encoded() for each in headers)
    return readable(data[: max(len(data) - cut, before)])


_CUTS = st.sampled_from([0, 0, 0, 1, 9, 60, 61, 62])


def few_headers() -> Iterator[list[Header]]:
    """Yield all of a few values: alone, before a valid batch, and behind one."""
    valid = Header(base=1, delta=1, timestamp=2)
    yield []
    for delta, timestamp, size in product([-2, -1, 0, 2], [-1, 0, 2, 4], [-1, 12, 60, 61, 62, 63]):
        header = Header(3, delta, timestamp, size)
        yield from ([header], [header, valid], [valid, header])


def check_find_batch(headers: list[Header], cut: int, offset: int, timestamp: int) -> None:
    data = window(headers, cut)
    expected = None
    at = 0
    for header in headers:
        if data.size - at < 61:
            break
        if is_malformed(header):
            expected = log_window.MALFORMED, at, 0
            break
        if header.base + header.delta >= offset and header.timestamp >= timestamp:
            expected = log_window.FOUND, at, header.size
            break
        at += header.size

    assert tuple(log_window.find_batch(data, offset, timestamp)) == (expected or (log_window.MORE, at, 0))


@given(_HEADERS, _CUTS, st.integers(-1, 14), st.sampled_from([_NEVER, _NEVER, -3, 0, 2, 4]))
def test_a_batch_is_found_in_a_window(headers: list[Header], cut: int, offset: int, timestamp: int) -> None:
    check_find_batch(headers, cut, offset, timestamp)


def test_a_batch_is_found_among_few() -> None:
    for headers, cut, offset, timestamp in product(few_headers(), [0, 1, 2], [-1, 3, 4, 6], [_NEVER, 0, 3]):
        check_find_batch(headers, cut, offset, timestamp)


def check_max_timestamp(headers: list[Header], cut: int, timestamp: int, offset: int) -> None:
    data = window(headers, cut)
    status, at = log_window.MORE, 0
    best = timestamp, offset
    for header in headers:
        if data.size - at < 61:
            break
        if is_malformed(header):
            status = log_window.MALFORMED
            break
        if header.timestamp > best[0]:
            best = header.timestamp, header.base + header.delta
        at += header.size

    assert tuple(log_window.find_max_timestamp(data, timestamp, offset)) == (status, at, *best)


@given(_HEADERS, _CUTS, _TIMES, st.integers(-1, 9))
def test_the_largest_timestamp_of_a_window_is_found(
    headers: list[Header], cut: int, timestamp: int, offset: int
) -> None:
    check_max_timestamp(headers, cut, timestamp, offset)


def test_the_largest_timestamp_of_few_batches_is_found() -> None:
    for headers, cut, timestamp in product(few_headers(), [0, 1, 2], [-1, 0, 3]):
        check_max_timestamp(headers, cut, timestamp, 7)


def check_whole_batches(headers: list[Header], cut: int, start: int, end_offset: int, max_bytes: int) -> None:
    data = window(headers, cut, start)
    at, following = start, -1
    for header in headers:
        last = header.base + header.delta
        if header.size < 61 or header.size > data.size - at or last >= end_offset:
            break
        if at > start and at + header.size - start > max_bytes:
            break
        at, following = at + header.size, last + 1

    assert tuple(log_window.end_of_whole_batches(data, start, end_offset, max_bytes)) == (at, following)


@given(
    _HEADERS,
    _CUTS,
    st.sampled_from([0, 0, 5]),
    st.integers(-1, 16),
    st.sampled_from([0, 61, 121, 122, 123, 200, 999]),
)
def test_whole_batches_end_at_the_first_limit(
    headers: list[Header], cut: int, start: int, end_offset: int, max_bytes: int
) -> None:
    check_whole_batches(headers, cut, start, end_offset, max_bytes)


def test_few_whole_batches_end_at_the_first_limit() -> None:
    for headers, cut, start, end_offset, max_bytes in product(
        few_headers(), [0, 1, 2], [0, 1], [3, 4, 9], [0, 122, 123, 999]
    ):
        check_whole_batches(headers, cut, start, end_offset, max_bytes)


@given(
    rows(
        base_offset=st.integers(0, 9),
        last_offset_delta=st.integers(0, 3),
        max_timestamp=_TIMES,
        size=st.integers(1, 4),
    ),
    st.integers(0, 6),
    st.tuples(st.integers(0, 6), st.integers(0, 9), _TIMES, st.integers(0, 9)),
)
def test_index_entries_are_chosen_after_each_interval(
    columns: list[dict[str, int]], interval: int, begun: tuple[int, int, int, int]
) -> None:
    since, position, timestamp, offset = begun
    expected = []
    for each in columns:
        last = each["base_offset"] + each["last_offset_delta"]
        if each["max_timestamp"] > timestamp:
            timestamp, offset = each["max_timestamp"], last
        if since > interval:
            expected.append([last, position, timestamp, offset])
            since = 0
        since += each["size"]
        position += each["size"]

    state, entries = np.array(begun, np.int64), np.full((len(columns), 4), -9, np.int64)
    count = log_window.choose_index_entries(rows_of(columns), interval, state, entries)

    assert entries[:count].tolist() == expected
    assert (entries[count:] == -9).all()
    assert state.tolist() == [since, position, timestamp, offset]


@given(_HEADERS, st.integers(0, 2**40), st.integers(0, _TOP - 1))
def test_offsets_are_assigned_in_data_and_rows(headers: list[Header], first: int, epoch: int) -> None:
    headers = [each._replace(size=max(each.size, 61), delta=max(each.delta, 0)) for each in headers]
    columns = [
        {"position": 3 + at, "last_offset_delta": each.delta}
        for at, each in zip(positions(headers), headers, strict=True)
    ]
    filled = rows_of(columns)
    data = np.frombuffer(bytearray(b"xyz" + b"".join(each.encoded() for each in headers)), np.uint8)
    expected = []
    following = first
    for each in headers:
        expected.append(each._replace(base=following, epoch=epoch))
        following += each.delta + 1

    append.assign_row_offsets(data, filled, first, epoch)

    assert data.tobytes() == b"xyz" + b"".join(each.encoded() for each in expected)
    assert filled["base_offset"].tolist() == [each.base for each in expected]


@given(_HEADERS)
def test_epochs_begin_where_they_change(headers: list[Header]) -> None:
    """The memory of the entries need not be initialized."""
    headers = [each._replace(size=max(each.size, 61)) for each in headers]
    columns = [
        {"position": 2 + at, "base_offset": each.base}
        for at, each in zip(positions(headers), headers, strict=True)
    ]
    before = headers[0].epoch if headers else 0
    entries = np.full((len(headers), 2), before, np.int64)
    data = readable(b"xy" + b"".join(each.encoded() for each in headers))

    count = append.find_epochs(data, rows_of(columns), entries)

    expected = [
        [each.epoch, each.base]
        for n, each in enumerate(headers)
        if n == 0 or each.epoch != headers[n - 1].epoch
    ]
    assert entries[:count].tolist() == expected
    assert (entries[count:] == before).all()


def run_of(producer: int, start: int, deltas: Sequence[int]) -> list[dict[str, int]]:
    """Return rows of consecutive batches of one producer, whose sequence numbers may wrap around."""
    run = []
    for delta in deltas:
        run.append(
            {
                "producer_id": producer,
                "producer_epoch": 0,
                "base_sequence": start,
                "attributes": 0,
                "last_offset_delta": delta,
            }
        )
        start = (start + delta + 1) % _TOP
    return run


def check_classification(columns: list[dict[str, int]]) -> None:
    due = columns[0]["base_sequence"] if columns else 0
    in_sequence = True
    for each in columns:
        in_sequence = in_sequence and each["base_sequence"] == due >= 0
        due = (each["base_sequence"] + each["last_offset_delta"] + 1) % _TOP
    total = sum(each["last_offset_delta"] + 1 for each in columns)
    alone = len({(each["producer_id"], each["producer_epoch"]) for each in columns}) == 1 and not any(
        each["attributes"] & 0x30 for each in columns
    )

    idempotent, single, consecutive = append.classify_producers(rows_of(columns))

    assert bool(idempotent) == any(each["producer_id"] >= 0 for each in columns)
    assert bool(single) == (bool(idempotent) and alone)
    assert bool(consecutive) == (bool(single) and in_sequence and total < 2**30)


def test_producers_are_classified() -> None:
    """A run of up to three batches, in which one value is changed."""
    check_classification([])
    changes = [
        *({"producer_id": each} for each in (-1, 0, 5, 6)),
        {"producer_epoch": 1},
        *({"base_sequence": each} for each in (-2, -1, 0, 1, 8, _TOP - 1)),
        *({"attributes": 1 << bit} for bit in range(7)),
        *({"last_offset_delta": each} for each in (0, 1, 2)),
    ]
    for producer, start, length in product([-1, 0, 5], [-1, 0, 7, _TOP - 2, _TOP - 1], [1, 2, 3]):
        run = run_of(producer, start, [0, 2, 1][:length])
        check_classification(run)
        for index, change in product(range(length), changes):
            check_classification([*run[:index], run[index] | change, *run[index + 1 :]])


@pytest.mark.parametrize("start", [0, _TOP - 2**29, _TOP - 1])
def test_a_long_run_of_a_producer_is_not_checked_at_once(start: int) -> None:
    for deltas in ([2**30 - 2], [2**30 - 1], [2**29 - 1] * 2, [2**29 - 2, 2**29 - 1], [2**30] * 3):
        check_classification(run_of(5, start, deltas))


_RELATIVE = st.one_of(st.integers(-1, 6), st.sampled_from([_TOP - 1, _TOP]))


@given(
    st.lists(st.tuples(_RELATIVE, st.integers(0, 9)), max_size=6),
    st.sampled_from([0, 50]),
    st.integers(-4, 4),
)
@example([(-2, 5)], 50, -3)
@example([(-1, 5)], 50, -2)
@example([(0, 5)], 50, -1)
@example([(_TOP - 1, 5), (_TOP, 9)], 50, -1)
def test_positions_are_packed_while_offsets_ascend(
    drawn: list[tuple[int, int]], base: int, last: int
) -> None:
    entries = np.array([(base + relative, position) for relative, position in drawn], np.int64).reshape(-1, 2)
    before = base + last
    expected = b""
    for relative, position in drawn:
        if base + relative <= before or not 0 <= relative < _TOP:
            break
        before = base + relative
        expected += struct.pack(">ii", relative, position)

    packed = np.full(8 * len(drawn) + 8, 0xEE, np.uint8)
    count = append.pack_positions(entries, base, base + last, packed)

    assert packed[: 8 * count].tobytes() == expected
    assert (packed[8 * count :] == 0xEE).all()


@given(
    st.lists(st.tuples(_TIMES, _RELATIVE), max_size=6), st.sampled_from([0, 50]), _TIMES, st.integers(-4, 4)
)
@example([(1, -1)], 50, 0, -2)
@example([(1, 0), (2, 1), (3, 1), (4, 2)], 50, 0, -1)
def test_times_are_packed_while_they_fit(
    drawn: list[tuple[int, int]], base: int, timestamp: int, last: int
) -> None:
    """Entries with earlier timestamps are left out. A wrong offset ends the work, also behind the room."""
    entries = np.array([(time, base + relative) for time, relative in drawn], np.int64).reshape(-1, 2)
    for room in range(12 * len(drawn) + 2):
        offset, expected, wrong, now = base + last, b"", len(drawn), timestamp
        for index, (time, relative) in enumerate(drawn):
            if time <= now:
                continue
            if base + relative < offset or not 0 <= relative < _TOP:
                wrong = index
                break
            if len(expected) + 12 <= room:
                now, offset = time, base + relative
                expected += struct.pack(">qi", time, relative)

        memory = np.full(room + 24, 0xEE, np.uint8)
        found = append.pack_times(entries, base, timestamp, base + last, memory[:room])

        assert tuple(found) == (len(expected) // 12, now, offset, wrong)
        assert memory.tobytes() == expected + b"\xee" * (len(memory) - len(expected))
