"""Headers of batches: parsing, checksums, and changes in place."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidInputError
from object_format.buffers import readable
from object_format.codecs.codec import Codec
from object_format.errors import Fault, MalformedBatchError
from object_format.record_batch.headers import (
    TimestampType,
    assign_offsets,
    has_transactional_batches,
    is_marked_compressed,
    iter_headers,
    offset_range,
    patch_offsets,
    peek_attributes,
    peek_producer,
    read_header,
    record_error,
    scan_batches,
    scan_ordered_batches,
    set_append_time,
    set_base_offsets,
    set_max_timestamp,
    stored_checksums,
    trim_batches,
    verify_checksum,
)
from object_format.record_batch.records import (
    Record,
    decode_batch,
    decode_batches,
    encode_batch,
    encode_records,
)
from tests.object_format import model
from tests.object_format.strategies import batches, logs


@given(batches(), st.binary(max_size=9))
def test_a_parsed_header_has_the_fields_of_the_model(batch: model.Batch, before: bytes) -> None:
    data = model.encode(batch)
    header = read_header(before + data, len(before))
    assert header.size == len(data)
    assert (header.base_offset, header.next_offset, header.last_offset) == (
        batch.base_offset,
        batch.next_offset,
        batch.next_offset - 1,
    )
    assert (header.record_count, header.max_timestamp) == (len(batch.records), batch.max_timestamp)
    assert header.codec == batch.attributes & 7
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
    )
    verify_checksum(before + data, header, len(before))


@pytest.mark.parametrize(
    ("bit", "name"), [(0x10, "is_transactional"), (0x20, "is_control"), (0x08, "timestamp_type")]
)
def test_attribute_bits_set_their_properties(bit: int, name: str) -> None:
    unmarked = read_header(model.encode(model.Batch()))
    marked = read_header(model.encode(model.Batch(attributes=bit)))
    assert (bool(getattr(unmarked, name)), bool(getattr(marked, name))) == (False, True)


def test_the_delete_horizon_replaces_the_base_timestamp() -> None:
    assert read_header(model.encode(model.Batch(base_timestamp=5))).delete_horizon_ms is None
    assert read_header(model.encode(model.Batch(base_timestamp=5, attributes=0x40))).delete_horizon_ms == 5


@pytest.mark.parametrize("position", [-1, 1, 70, 10**9])
def test_a_position_outside_of_the_data_is_rejected(position: int) -> None:
    with pytest.raises(MalformedBatchError):
        read_header(encode_batch([1], [b"k"], [b"v"])[:69], position)


@pytest.mark.parametrize(
    ("record_count", "last_offset_delta", "is_valid"),
    [(0, 0, True), (0, 5, True), (0, -1, False), (1, 0, True), (1, -1, False), (3, 2, True), (3, 1, False)],
)
def test_a_last_offset_delta_below_the_number_of_records_is_rejected(
    record_count: int, last_offset_delta: int, *, is_valid: bool
) -> None:
    """Every offset of a batch has at most one record; compaction may leave fewer."""
    records = encode_batch([1] * 3, [b"k"] * 3, [b"v"] * 3)[61:]
    batch = model.Batch(last_offset_delta=last_offset_delta)
    data = model.encode_with_records(batch, records, count=record_count)
    if is_valid:
        assert read_header(data).last_offset_delta == last_offset_delta
        return
    for read in (read_header, lambda data: list(iter_headers(data))):
        with pytest.raises(MalformedBatchError) as caught:
            read(data)
        assert caught.value.fault is Fault.LAST_OFFSET_DELTA


def test_a_record_count_above_what_fits_into_the_batch_is_rejected() -> None:
    """The smallest record takes seven bytes."""
    batch = model.Batch(last_offset_delta=99)
    for count, is_valid in ((3, True), (4, False)):
        data = model.encode_with_records(batch, bytes(3 * 7 + 6), count=count)
        if is_valid:
            assert read_header(data).record_count == count
            continue
        with pytest.raises(MalformedBatchError) as caught:
            read_header(data)
        assert caught.value.fault is Fault.RECORD_COUNT


def test_iter_headers_yields_the_position_of_each_batch() -> None:
    one, two = encode_batch([1], [b"k"], [b"v"]), encode_batch([1], [b"key"], [b"v"])
    assert [position for position, _ in iter_headers(one + two + one)] == [0, len(one), len(one + two)]
    with pytest.raises(MalformedBatchError) as caught:
        list(iter_headers(one + two[:-1]))
    assert (caught.value.position, caught.value.fault) == (len(one), Fault.TRUNCATED)


@given(logs(), st.integers(-(2**40), 2**40), st.integers(0, 2**31 - 1))
def test_patching_changes_only_offsets_and_epochs(log: list[model.Batch], shift: int, epoch: int) -> None:
    data = bytearray(b"".join(map(model.encode, log)))
    patch_offsets(data, shift, epoch)
    assert model.decode_all(bytes(data)) == [shifted(batch, shift, epoch) for batch in log]


@given(logs(), st.integers(0, 2**40), st.integers(0, 2**31 - 1))
def test_assigned_offsets_are_consecutive(log: list[model.Batch], first: int, epoch: int) -> None:
    data = bytearray(b"".join(map(model.encode, log)))
    end = assign_offsets(data, first, epoch)
    expected = []
    for batch in log:
        expected.append(shifted(batch, first - batch.base_offset, epoch))
        first = expected[-1].next_offset
    assert model.decode_all(bytes(data)) == expected
    assert end == first


@pytest.mark.parametrize("attributes", [0, 7, 0x10, 0x14, 0x24])
@pytest.mark.parametrize("length", [49, 50, -1, -(2**31), 2**31 - 1])
def test_fields_of_an_invalid_batch_are_peeked_at(attributes: int, length: int) -> None:
    """Only the magic number and the length of a header must be right."""
    data = bytearray(model.encode(model.Batch(producer_id=2**40, producer_epoch=9)))
    data[8:12] = length.to_bytes(4, "big", signed=True)
    data[22] = attributes
    whole = memoryview(data)[:61]
    codec = attributes & 7

    assert peek_attributes(whole) == (codec, attributes & 0x10 != 0, length + 12)
    assert peek_producer(whole) == (2**40, 9)
    assert is_marked_compressed(whole) == (codec != 0)

    assert peek_attributes(whole[:60]) is None
    assert peek_producer(whole[:60]) == (-1, -1)
    assert not is_marked_compressed(whole[:60])
    whole[16] = 1
    assert peek_attributes(whole) is None
    assert peek_producer(whole) == (-1, -1)


@given(logs(), st.integers(-(2**40), 2**40))
def test_the_offset_range_is_that_of_the_first_and_the_last_batch(log: list[model.Batch], shift: int) -> None:
    rows = scan_batches(readable(b"".join(map(model.encode, log))))
    assert offset_range(rows, shift) == (log[0].base_offset + shift, log[-1].next_offset - 1 + shift)


@given(logs(), st.integers(0, 2**40))
def test_ordered_batches_are_summed_up(log: list[model.Batch], shift: int) -> None:
    encoded = [model.encode(batch) for batch in log]
    data = readable(b"".join(encoded))
    first, end = log[0].base_offset + shift, log[-1].next_offset + shift

    found = scan_ordered_batches(data, shift, first)

    assert found.rows["size"].tolist() == list(map(len, encoded))
    assert (found.first_offset, found.next_offset) == (first, end)
    assert found.compressed == sum(batch.attributes & 7 != 0 for batch in log)
    assert found.record_count == sum(len(batch.records) for batch in log)
    for unordered, lowest, position in ((data, first + 1, 0), (readable(bytes(data) * 2), 0, data.size)):
        with pytest.raises(MalformedBatchError) as caught:
            scan_ordered_batches(unordered, shift, lowest)
        assert (caught.value.fault, caught.value.position) == (Fault.OFFSET_RANGE, position)


def test_offsets_end_before_2_to_the_62() -> None:
    data = readable(encode_batch([1, 1], [b"k"] * 2, [b"v"] * 2, base_offset=5))
    for first, is_valid in ((2**62 - 1, True), (2**62, False), (-1, False)):
        if is_valid:
            assert scan_ordered_batches(data, first - 5, 0).next_offset == first + 2
            continue
        with pytest.raises(MalformedBatchError) as caught:
            scan_ordered_batches(data, first - 5, 0)
        assert caught.value.fault is Fault.OFFSET_RANGE


def test_no_batches_are_ordered() -> None:
    assert scan_ordered_batches(readable(b""), 3, 7)[1:] == (7, 7, 0, 0)


def test_any_transactional_batch_is_found() -> None:
    plain, transactional = (
        encode_batch([1], [b"k"], [b"v"], producer=(5, 0, 0), is_transactional=each) for each in (False, True)
    )
    assert [has_transactional_batches(data) for data in (plain * 2, plain + transactional)] == [False, True]


@pytest.mark.parametrize("codec", Codec)
def test_a_fault_in_a_compressed_record_has_the_position_of_its_batch(codec: Codec) -> None:
    first, second = (encode_batch([1], [b"k"], [b"v"], codec=each) for each in (Codec.NONE, codec))
    row = scan_batches(readable(first + second))[1]
    assert record_error(Fault.RECORD_LENGTH, row, 7).position == (len(first) if codec else 7)


@given(batches(), st.integers(0, 2**40), st.integers(0, 2**31 - 1))
def test_set_base_offsets_equals_assign_offsets(batch: model.Batch, first: int, epoch: int) -> None:
    """`set_base_offsets` works on separate buffers. `stored_checksums` reads the CRC."""
    changed, assigned = bytearray(model.encode(batch)), bytearray(model.encode(batch))
    set_base_offsets([memoryview(changed)], [first], epoch)
    assert stored_checksums([memoryview(changed)]) == [read_header(changed).crc]
    assign_offsets(assigned, first, epoch)
    assert changed == assigned


def test_assign_offsets_starts_a_section_by_default() -> None:
    data = bytearray(encode_batch([1], [b"k"], [b"v"], base_offset=77, leader_epoch=3))
    assert assign_offsets(data) == 1
    header = read_header(data)
    assert (header.base_offset, header.partition_leader_epoch) == (0, 0)


def test_read_only_buffers_are_rejected() -> None:
    with pytest.raises(InvalidInputError, match="read-only"):
        patch_offsets(encode_batch([1], [b"k"], [b"v"]), 1, 1)


def shifted(batch: model.Batch, shift: int, epoch: int) -> model.Batch:
    return replace(
        batch,
        base_offset=batch.base_offset + shift,
        leader_epoch=epoch,
        records=tuple(replace(record, offset=record.offset + shift) for record in batch.records),
    )


@given(logs(), st.integers(-100, 100), st.data())
def test_trimming_keeps_the_overlapping_batches(
    log: list[model.Batch], shift: int, draw: st.DataObject
) -> None:
    encoded = [model.encode(batch) for batch in log]
    lowest, highest = log[0].base_offset + shift - 5, log[-1].next_offset + shift + 5
    first = draw.draw(st.integers(lowest, highest))
    last = draw.draw(st.integers(first, highest))
    expected = [
        data
        for data, batch in zip(encoded, log, strict=True)
        if batch.next_offset + shift > first and batch.base_offset + shift <= last
    ]
    data = b"".join(encoded)
    trimmed = trim_batches(data, first_offset=first, last_offset=last, offset_shift=shift)
    assert bytes(trimmed) == b"".join(expected)
    limit = draw.draw(st.integers(0, len(data) + 10))
    limited = trim_batches(data, first_offset=first, last_offset=last, offset_shift=shift, max_bytes=limit)
    within = [end for end in range(len(expected) + 1) if end <= 1 or len(b"".join(expected[:end])) <= limit]
    assert bytes(limited) == b"".join(expected[: within[-1]])


@pytest.mark.parametrize("codec", Codec)
def test_log_append_time_applies_to_all_records(codec: Codec) -> None:
    first, second = (encode_batch([5, 6], [b"a", b"b"], [b"c", b"d"], codec=codec) for _ in range(2))
    data = bytearray(first + second)
    set_append_time(data, 99, len(first))
    before, after = model.decode_all(bytes(data))
    assert [record.timestamp for record in before.records] == [5, 6]
    assert [record.timestamp for record in after.records] == [99, 99]
    assert read_header(data, len(first)).timestamp_type is TimestampType.LOG_APPEND_TIME


def test_set_max_timestamp_corrects_the_header() -> None:
    batch = model.batch_of([Record(0, 5, b"k", b"v")], max_timestamp=77)
    data = bytearray(model.encode(batch))
    set_max_timestamp(data, 5)
    assert model.decode(bytes(data)) == replace(batch, max_timestamp=5)


def test_positions_offsets_and_epochs_are_0_by_default() -> None:
    """A second batch behind the first shows whether a function works on the first one."""
    data = encode_batch([5, 7], [b"a", None], [None, b"b"])
    records = model.decode(data).records
    assert model.decode(data) == model.Batch(
        records=records, last_offset_delta=1, base_timestamp=5, max_timestamp=7, leader_epoch=0, base_offset=0
    )
    assert records == (Record(0, 5, b"a", None), Record(1, 7, None, b"b"))
    assert encode_records(list(records)) == data
    both = data + encode_batch([9], [b"c"], [None], base_offset=2)

    assert read_header(both) == read_header(data)
    verify_checksum(both, read_header(both))
    assert decode_batch(both).records() == list(records)
    assert [each.offset for columns in decode_batches(both) for each in columns.records()] == [0, 1, 2]
    moved = bytearray(encode_batch([5, 7], [b"a", None], [None, b"b"], base_offset=8, leader_epoch=9))
    assert assign_offsets(moved) == 2
    assert moved == data
    assert trim_batches(both, first_offset=2, max_bytes=999) == both[len(data) :]
    for change, kind in (
        (set_append_time, TimestampType.LOG_APPEND_TIME),
        (set_max_timestamp, TimestampType.CREATE_TIME),
    ):
        changed = bytearray(both)
        change(changed, 8)
        assert (read_header(changed).max_timestamp, read_header(changed).timestamp_type) == (8, kind)
        assert changed[len(data) :] == both[len(data) :]


def test_checksums_are_verified_by_default_where_a_single_batch_is_decoded() -> None:
    data = bytearray(encode_batch([5], [b"a"], [b"b"], is_control=True))
    data[18] ^= 1

    with pytest.raises(MalformedBatchError):
        decode_batch(data)
    assert [len(columns) for columns in decode_batches(data)] == [0]  # control batches are left out
