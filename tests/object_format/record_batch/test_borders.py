"""Kernels that parse headers and records, at the borders of their rules, compared with plain rules."""

from __future__ import annotations

import struct
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from object_format.buffers import readable
from object_format.errors import Fault
from object_format.kernels.batches.headers import check_header, find_overlap
from object_format.kernels.batches.layout import BATCH_ROW
from object_format.kernels.batches.offsets import record_offsets
from object_format.kernels.batches.record_parser import parse_any_record, parse_head, parse_record
from object_format.kernels.batches.records import split_headers, validate_records, validate_single_batch
from object_format.record_batch.records import Record
from tests.object_format import model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from object_format.kernels.runtime.signatures import ByteArray

_NO_BATCH = model.Batch()


def header(size: int, magic: int, codec: int, count: int, last_delta: int) -> bytes:
    return struct.pack(
        ">qiiBIHiqqqhii", 0, size - 12, 0, magic, 0, codec, last_delta, 0, 0, -1, -1, -1, count
    )


def fault_of(left: int, size: int, magic: int, codec: int, count: int, last_delta: int) -> Fault:
    """Return the first rule that a header breaks."""
    rules = (
        (left < 61, Fault.TRUNCATED),
        (size < 61, Fault.BATCH_LENGTH),
        (magic != 2, Fault.MAGIC),
        (size > left, Fault.TRUNCATED),
        (codec > 4, Fault.CODEC),
        (count < 0 or (codec == 0 and 61 + 7 * count > size), Fault.RECORD_COUNT),
        (last_delta < max(count - 1, 0), Fault.LAST_OFFSET_DELTA),
    )
    return next((fault for is_broken, fault in rules if is_broken), Fault.NONE)


@pytest.mark.parametrize("size", [-1, 0, 12, 60, 61, 62, 67, 68, 75])
def test_a_header_breaks_the_first_of_its_rules(size: int) -> None:
    for more, magic, codec, count in product((-1, 0, 1), (1, 2, 3), range(8), (-1, 0, 1, 2, 3)):
        for last_delta in {-1, 0, count - 2, count - 1, count}:
            fields = header(size, magic, codec, count, last_delta)
            data = (b"xx" + fields + bytes(40))[: 2 + max(size, 61) + more]
            expected = fault_of(len(data) - 2, size, magic, codec, count, last_delta)
            fault, found = check_header(readable(data), 2)
            assert (fault, found) == (expected, size if len(data) >= 63 else 0)


_LENGTHS = st.sampled_from([0, 0, 1, 2, 5, 63, 64, 65, 200])
_ERRORS = st.integers(0, 19).map({0: -1, 1: 1, 2: -2, 3: 2, 4: 70}.get)
_PART = st.one_of(st.sampled_from([-1, -1, -2, -70]), _LENGTHS)


@st.composite
def encoded_records(draw: st.DrawFn, offset: int | None = None) -> bytes:
    """Return a record whose lengths are right, or wrong by a few bytes; `offset` is usually its offset."""
    errors = _ERRORS if offset is None else st.integers(0, 60).map({0: -1, 1: 1}.get)

    def part(lowest: int) -> bytes:
        length = draw(_PART) if lowest < 0 else draw(_LENGTHS)
        wrong = draw(errors) or 0
        return model.write_varint(length + wrong) + bytes([7]) * max(length, 0)

    deltas = draw(st.tuples(*[st.sampled_from([0, 1, 63, 64, -64, -65, 8191, 8192, 2**31 - 1])] * 2))
    if offset is not None:
        deltas = deltas[0], offset + draw(st.sampled_from([0] * 15 + [1]))
    headers = draw(st.sampled_from([0, 0, 0, 1, 2, 64]))
    body = bytes([draw(st.sampled_from([0, 255]))]) + b"".join(map(model.write_varint, deltas))
    body += part(-1) + part(-1)
    body += model.write_varint(headers + (draw(errors) or 0))
    body += b"".join(part(draw(st.sampled_from([0, 0, 0, -1]))) + part(-1) for _ in range(min(headers, 2)))
    body += bytes(2 * max(headers - 2, 0))
    return model.write_varint(len(body) + (draw(errors) or 0)) + body


def decoded(data: bytes) -> tuple[Record, int] | None:
    """Return the model's record and its size."""
    reader = model.Reader(data)
    try:
        return model.decode_record(reader, _NO_BATCH), len(data) - len(reader.data)
    except model.ModelError:
        return None


def part_of(data: ByteArray, start: int, length: int) -> bytes | None:
    assert length >= -1
    return data[start : start + length].tobytes() if length >= 0 else None


@given(encoded_records(), st.integers(0, 5), st.sampled_from([0, 0, 0, -1, -2, 1, 9]), st.integers(0, 80))
def test_a_record_is_parsed_or_rejected_as_by_the_model(
    record: bytes, at: int, more: int, following: int
) -> None:
    data = readable(b"\xff" * at + record + bytes(following))
    limit = max(min(at + len(record) + more, data.size), at)
    expected = decoded(data[at:limit].tobytes())

    for parse in (parse_record, parse_any_record):
        fault, end, body, delta, delta_at, offset_delta, key, key_length, value, value_length, headers = (
            parse(data, at, limit)
        )
        assert (fault == Fault.NONE) == (expected is not None)
        if expected is None:
            continue
        found, size = expected
        assert (end, delta, offset_delta) == (at + size, found.timestamp, found.offset)
        assert data[
            delta_at : delta_at + len(model.write_varint(offset_delta))
        ].tobytes() == model.write_varint(offset_delta)
        assert body == at + len(model.write_varint(end - body))
        assert part_of(data, key, key_length) == found.key
        assert part_of(data, value, value_length) == found.value
        parts = np.empty((len(found.headers), 4), np.int64)
        split_headers(data[:end], headers, parts)
        for row, (name, blob) in zip(parts.tolist(), found.headers, strict=True):
            assert data[row[0] : row[0] + row[1]].tobytes().decode(errors="replace") == name
            assert part_of(data, row[2], row[3]) == blob
        assert parse_head(data, at, limit)[:6] == (fault, end, body, delta, delta_at, offset_delta)
        assert parse_head(data, at, limit)[6] == delta_at + len(model.write_varint(offset_delta))


@pytest.mark.parametrize("headers", [b"", b"\x00", b"\x01", b"\x02\x02h\x02v", b"\x02\x00\x01"])
@pytest.mark.parametrize("key", [b"\x01", b"\x03", b"\x00", b"\x02\x00", b"\x80\x01" + b"k" * 64])
@pytest.mark.parametrize("value", [b"\x01", b"\x03", b"\x00", b"\x02\x00", b"\x80\x01" + b"v" * 64])
def test_a_record_ends_where_it_says(key: bytes, value: bytes, headers: bytes) -> None:
    """Neither the bytes after a record nor those after the limit may stand for missing ones."""
    for deltas, following, wrong in product(
        (b"\x00\x00", b"\x80\x01\x02"), (b"\x00", b"\x01", b"\x80"), range(-3, 4)
    ):
        body = b"\x00" + deltas + key + value + headers
        record = model.write_varint(len(body) + wrong) + body
        data = readable(record + following * 12)
        for limit in range(max(len(record) - 4, 0), len(record) + 5):
            expected = decoded(data[:limit].tobytes())
            for parse in (parse_record, parse_any_record):
                found = parse(data, 0, limit)
                assert (found[0] == Fault.NONE) == (expected is not None)
                if expected is not None:
                    assert found[1] == expected[1]
                    assert part_of(data, *found[6:8]) == expected[0].key
                    assert part_of(data, *found[8:10]) == expected[0].value


@given(
    st.integers(0, 4).flatmap(lambda count: st.tuples(*map(encoded_records, range(count)))),
    st.sampled_from([0, 0, 0, 0, -1, 1]),
    st.sampled_from([0, 0, 0, -1, 1]),
    st.integers(0, 9),
)
def test_records_are_validated_until_the_first_fault(
    encoded: Sequence[bytes], others: int, more: int, base: int
) -> None:
    """They must have consecutive offsets, and fill the batch."""
    data = readable(b"x" * 3 + b"".join(encoded) + b"x")
    stop = data.size - 1 + (more if encoded else 0)
    at, timestamps, keyless, fault = 3, [], 0, False
    count = max(len(encoded) + others, 0)
    for index in range(count):
        expected = decoded(data[at:stop].tobytes())
        if expected is None or expected[0].offset != index:
            fault = True
            break
        timestamps.append(base + expected[0].timestamp)
        keyless += expected[0].key is None
        at += expected[1]

    found = validate_records(data, 3, stop, count, base)

    assert (found[0] == Fault.NONE) == (not fault and at == stop)
    assert found[1] == at
    assert found[4] == keyless
    if timestamps:
        assert (found[2], found[3]) == (min(timestamps), max(timestamps))


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.sampled_from([61, 62, 70])), max_size=5),
    st.integers(-1, 16),
    st.integers(0, 16),
    st.sampled_from([0, 7]),
    st.sampled_from([0, 61, 122, 123, 131, 132, 133, 999]),
)
def test_an_overlap_ends_at_the_first_limit(
    log: Sequence[tuple[int, int, int]], first: int, last: int, shift: int, max_bytes: int
) -> None:
    data, start, end, at, base = b"", -1, 0, 0, 0
    is_over = False
    for gap, delta, size in log:
        base += gap
        batch = bytearray(header(size, 2, 0, 0, delta) + bytes(size - 61))
        batch[:8] = base.to_bytes(8, "big")
        data += batch
        overlaps = first <= base + delta + shift and base + shift <= last
        is_over = is_over or base + shift > last or (start >= 0 and at + size - start > max_bytes)
        if not is_over:
            start = at if overlaps and start < 0 else start
            end = at + size
        at += size
        base += delta + 1

    found = find_overlap(readable(data), first, last, shift, max_bytes)

    assert tuple(found) == (Fault.NONE, start if start >= 0 else end, end)


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from([0, 1, 1, 1, 2, -1]), max_size=4),
            st.integers(-1, 2),
            st.sampled_from([0, 0, 0, 1]),
        ),
        max_size=4,
    ),
    st.integers(1, 5),
    st.integers(0, 3),
)
def test_offsets_of_records_ascend_within_their_batch(
    batches: Sequence[tuple[list[int], int, int]], capacity: int, more: int
) -> None:
    """The first offset delta is a step from -1, as each other one is a step from the one before it."""
    data, rows = b"?" * more, []
    expected: list[int] = []
    fault = Fault.NONE
    for number, (steps, beyond, trailing) in enumerate(batches):
        deltas = np.cumsum([-1, *steps])[1:].tolist()
        start, last = len(data), max([*deltas, 0]) + beyond
        for index, delta in enumerate(deltas):
            data += model.encode_record(Record(delta, 0, None, b"v", ()), _NO_BATCH)
            if fault == Fault.NONE and (delta < 0 or steps[index] < 1 or delta > last):
                fault = Fault.RECORD_OFFSET
            if fault == Fault.NONE:
                expected.append(100 * number + 5 + delta)
        data += bytes(trailing)
        if fault == Fault.NONE and trailing:
            fault = Fault.TRAILING_BYTES
        rows.append((100 * number, start, len(data), len(deltas), last))
    filled = np.zeros(len(rows), BATCH_ROW)
    for row, values in zip(filled, rows, strict=True):
        for name, value in zip(
            ("base_offset", "records_start", "records_end", "record_count", "last_offset_delta"),
            values,
            strict=True,
        ):
            row[name] = value

    cursor, offsets, found = np.zeros(4, np.int64), np.empty(capacity, np.int64), list[int]()
    ended = Fault.NONE
    while cursor[0] < len(rows):
        ended, _position, count = record_offsets(
            readable(data), filled, np.arange(len(rows)), cursor, 5, offsets, 0
        )
        found += offsets[:count].tolist()
        if ended != Fault.NONE:
            break

    assert (ended, found) == (fault, expected)


@pytest.mark.parametrize("attributes", [0, 1, 4, 8, 0x10, 0x14, 0x20, 0x40, 0x80, -(2**15)])
@pytest.mark.parametrize("magic", [1, 2, 3])
def test_a_single_batch_is_valid_if_each_rule_holds(attributes: int, magic: int) -> None:
    """Valid batches must pass here, too, and not only in the slower validation."""
    records = b"".join(
        model.encode_record(Record(at, at, key, b"v", ()), _NO_BATCH) for at, key in enumerate([None, b"k"])
    )
    for count, last_delta, producer_id, sequence, trailing, missing in product(
        (0, 1, 2, 3), (0, 1, 2), (-1, 0, 5), (-1, 0, 7), (0, 1), (0, 1)
    ):
        data = struct.pack(
            ">qiiBIHiqqqhii",
            0,
            61 + len(records) - 12,
            0,
            magic,
            9,
            attributes & 0xFFFF,
            last_delta,
            10,
            11,
            producer_id,
            3,
            sequence,
            count,
        )
        data += records + bytes(trailing)
        data = data[: len(data) - missing]
        found = validate_single_batch(readable(data))

        is_valid = (
            (magic, count, last_delta) == (2, 2, 1)
            and attributes in {0, 0x10}
            and (producer_id < 0 or sequence >= 0)
            and trailing == missing
        )
        assert found[0] == is_valid
        if is_valid:
            assert found[1:] == (2, 10, 11, 1, 9, 11, producer_id, 3, sequence, attributes)
