"""Decoding and encoding of records, compared with the model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from object_format.buffers import readable
from object_format.codecs.codec import Codec
from object_format.codecs.native import SCRATCH_BYTES
from object_format.errors import Fault, MalformedBatchError, UnsupportedBatchError
from object_format.kernels.batches.record_parser import parse_head, parse_record
from object_format.record_batch.headers import TimestampType, read_header
from object_format.record_batch.records import (
    Record,
    RecordColumns,
    decode_batch,
    decode_batches,
    encode_batch,
    encode_records,
)
from tests.object_format import model
from tests.object_format.strategies import batches, logs, record_lists


@given(batches())
def test_the_model_decodes_what_it_encodes(batch: model.Batch) -> None:
    assert model.decode(model.encode(batch)) == batch


@given(batches(), st.integers(-5, 1000), st.binary(max_size=70))
def test_a_batch_of_the_model_is_decoded(batch: model.Batch, shift: int, before: bytes) -> None:
    columns = decode_batch(before + model.encode(batch), len(before), offset_shift=shift)
    expected = [replace(record, offset=record.offset + shift) for record in batch.records]
    assert columns.records() == expected
    assert [columns.record(i) for i in range(len(columns))] == expected
    assert columns.next_offset == batch.next_offset + shift


@given(batches(), st.integers(0, 40))
def test_the_head_of_a_record_is_that_of_the_whole_record(batch: model.Batch, more: int) -> None:
    """More bytes may follow. The head ends before the length of the key."""
    encoded = [model.encode_record(record, batch) for record in batch.records]
    data = readable(b"".join(encoded) + bytes(more))
    at = 0
    for record, one in zip(batch.records, encoded, strict=True):
        for limit in (at + len(one), data.size):
            head, whole = parse_head(data, at, limit), parse_record(data, at, limit)
            assert (*head[:2], head[5]) == (0, at + len(one), record.offset - batch.base_offset)
            assert head[:6] == whole[:6]
            assert head[6] == head[4] + len(model.write_varint(head[5]))
        at += len(one)


@given(record_lists(), st.sampled_from(Codec))
def test_the_model_decodes_encoded_records(records: list[Record], codec: Codec) -> None:
    """Before compression, the records have the same bytes."""
    data = encode_records(records, codec=codec, leader_epoch=4)
    batch = model.decode(data)
    assert batch == model.batch_of(records, codec=codec, leader_epoch=4)
    assert model.decompress(codec, data[61:]) == b"".join(
        model.encode_record(record, batch) for record in records
    )


@given(logs(), st.integers(0, 50))
def test_many_batches_are_decoded_in_order(log: list[model.Batch], shift: int) -> None:
    data = b"".join(map(model.encode, log))
    decoded = list(decode_batches(data, offset_shift=shift, verify=True))
    assert [record for columns in decoded for record in columns.records()] == [
        replace(record, offset=record.offset + shift) for record in model.records_of(log)
    ]
    assert decoded[-1].next_offset == log[-1].next_offset + shift


def test_no_batches_give_no_columns() -> None:
    assert list(decode_batches(b"")) == []


def test_uncompressed_batches_share_columns() -> None:
    one = encode_batch([1], [b"k"], [b"v"])
    assert [len(columns) for columns in decode_batches(one * 3)] == [3]


def test_large_compressed_batches_have_separate_columns() -> None:
    large = encode_batch([1], [b"k"], [bytes(700_000)], codec=Codec.ZSTD)
    larger = encode_batch([1], [b"k"], [bytes(SCRATCH_BYTES)], codec=Codec.ZSTD)
    small = encode_batch([1], [b"k"], [b"v"], codec=Codec.ZSTD)
    decoded = list(decode_batches(small * 2 + large * 2 + larger + small))
    assert sum(len(columns) for columns in decoded) == 6
    assert len(decoded[0]) == 3
    assert [len(columns) for columns in decoded if columns.data.size > SCRATCH_BYTES] == [1]


def test_control_batches_yield_no_records_but_advance_the_offset() -> None:
    data = encode_batch([1], [b"k"], [b"v"]) + encode_batch(
        [1], [b"\0\0\0\1"], [b""], base_offset=1, is_control=True
    )
    [columns] = decode_batches(data)
    assert (len(columns), columns.next_offset) == (1, 2)
    [columns] = decode_batches(data, control=True)
    assert len(columns) == 2


def test_an_empty_batch_has_no_records_and_keeps_its_offsets() -> None:
    data = model.encode(model.Batch(base_offset=5, last_offset_delta=3))
    columns = decode_batch(data)
    assert (columns.records(), columns.next_offset) == ([], 9)


def test_log_append_time_applies_to_every_record() -> None:
    data = encode_batch([5, 9, 7], [b"a"] * 3, [b"b"] * 3, timestamp_type=TimestampType.LOG_APPEND_TIME)
    assert decode_batch(data).timestamps.tolist() == [9, 9, 9]
    assert read_header(data).timestamp_type is TimestampType.LOG_APPEND_TIME


def test_every_field_of_the_header_is_written() -> None:
    data = encode_batch(
        [3, 2],
        [b"a", None],
        [None, b"b"],
        codec=Codec.LZ4,
        base_offset=10,
        offset_deltas=[1, 4],
        last_offset_delta=6,
        leader_epoch=8,
        producer=(11, 12, 13),
        is_transactional=True,
        delete_horizon_ms=99,
    )
    batch = model.decode(data)
    assert batch == model.Batch(
        records=(Record(11, 3, b"a", None), Record(14, 2, None, b"b")),
        base_offset=10,
        last_offset_delta=6,
        leader_epoch=8,
        attributes=Codec.LZ4 | 0x10 | 0x40,
        base_timestamp=99,
        max_timestamp=3,
        producer_id=11,
        producer_epoch=12,
        base_sequence=13,
    )
    assert read_header(data).delete_horizon_ms == 99


def test_columns_can_be_arrays() -> None:
    columns = decode_batch(encode_batch(np.array([7, 8]), [b"a", b"b"], [b"c", b"d"]))
    assert columns.records() == [Record(0, 7, b"a", b"c"), Record(1, 8, b"b", b"d")]


@pytest.mark.parametrize(
    ("timestamps", "deltas", "last_delta"),
    [
        ([1], None, None),
        ([1, 2], [0], None),
        ([1, 2], [1, 1], None),
        ([1, 2], [2, 1], None),
        ([1, 2], [-1, 1], None),
        ([1, 2], [0, 2**31], None),
        ([1, 2], [0, 5], 4),
    ],
)
def test_records_that_do_not_fit_a_batch_are_rejected(
    timestamps: list[int], deltas: list[int] | None, last_delta: int | None
) -> None:
    with pytest.raises(UnsupportedBatchError):
        encode_batch(
            timestamps, [b"a", b"b"], [b"c", b"d"], offset_deltas=deltas, last_offset_delta=last_delta
        )


def test_an_empty_batch_has_at_least_one_offset() -> None:
    """No reader accepts a batch that covers none."""
    with pytest.raises(UnsupportedBatchError):
        encode_batch((), (), (), last_offset_delta=-1)
    assert decode_batch(encode_batch((), (), (), base_offset=5, last_offset_delta=0)).next_offset == 6


def test_a_wrong_checksum_is_detected_if_requested() -> None:
    sound = encode_batch([1], [b"key"], [b"value"])
    damaged = sound.replace(b"value", b"values"[1:])
    for read in (decode_batch, lambda data: list(decode_batches(data, verify=True))):
        with pytest.raises(MalformedBatchError) as caught:
            read(damaged)
        assert caught.value.fault is Fault.CHECKSUM
    assert decode_batch(damaged, verify=False).record(0).value == b"alues"


def test_header_names_that_are_not_utf8_are_replaced() -> None:
    data = encode_batch([1], [b"k"], [b"v"], [[("name", b"x")]]).replace(b"name", b"n\xffme")
    assert decode_batch(data, verify=False).record(0).headers == (("n\ufffdme", b"x"),)


def test_many_headers_are_decoded() -> None:
    headers = [(str(i), None) for i in range(100)]
    columns: RecordColumns = decode_batch(encode_batch([1], [b"k"], [b"v"], [headers]))
    assert columns.record(0).headers == tuple(headers)


def test_errors_contain_the_position() -> None:
    good = encode_batch([1], [b"k"], [b"v"])
    bad = bytearray(encode_batch([1], [b"k"], [b"v"]))
    bad[61] = 0x70
    with pytest.raises(MalformedBatchError, match="byte") as caught:
        list(decode_batches(good + bad))
    assert caught.value.position == len(good) + 61
    with pytest.raises(MalformedBatchError) as caught:
        decode_batch(good + bad, len(good), verify=False)
    assert caught.value.position == len(good) + 61
