"""Damaged and malicious batches are rejected or read correctly, within bounded memory."""

from __future__ import annotations

import struct
import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from object_format.codecs.codec import Codec
from object_format.errors import Fault, MalformedBatchError
from object_format.record_batch.headers import (
    assign_offsets,
    iter_headers,
    patch_offsets,
    read_header,
    trim_batches,
)
from object_format.record_batch.records import Record, decode_batch, decode_batches, encode_batch
from object_format.record_batch.validation import validate_batches
from tests.object_format import model
from tests.object_format.strategies import batches, logs

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypothesis.strategies import DrawFn


@st.composite
def damages(draw: DrawFn) -> Callable[[bytes], bytes]:
    """Return functions that flip, cut, insert or overwrite bytes at any position."""
    kind = draw(st.sampled_from(["flip", "cut", "insert", "overwrite"]))
    fraction = draw(st.floats(0, 1, exclude_max=True))
    count = draw(st.integers(1, 9))
    blob = draw(st.binary(min_size=count, max_size=count))
    bit = 1 << draw(st.integers(0, 7))

    def damage(data: bytes) -> bytes:
        at = int(fraction * len(data))
        match kind:
            case "flip":
                return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :] if data else data
            case "cut":
                return data[:at] + data[at + count :]
            case "insert":
                return data[:at] + blob + data[at:]
            case _:
                return data[:at] + blob + data[at + count :]

    return damage


def check(error: MalformedBatchError, data: bytes) -> None:
    """The error contains a fault and a valid position."""
    assert 0 <= error.position <= len(data)
    assert error.fault is not Fault.NONE


def decoded(data: bytes, *, verify: bool) -> list[Record] | None:
    try:
        return [
            record
            for columns in decode_batches(data, verify=verify, control=True)
            for record in columns.records()
        ]
    except MalformedBatchError as error:
        check(error, data)
        return None


@given(logs(max_count=3), st.lists(damages(), min_size=1, max_size=3))
def test_damage_is_detected_or_affects_only_offsets(
    log: list[model.Batch], several: list[Callable[[bytes], bytes]]
) -> None:
    """The CRC covers all but base offset, leader epoch and length, so only offsets can differ."""
    data = b"".join(map(model.encode, log))
    for damage in several:
        data = damage(data)
    found = decoded(data, verify=True)
    if found is None:
        return
    truth = [replace(record, offset=0) for record in model.records_of(log)]
    for record in found:
        assert replace(record, offset=0) in truth


@given(logs(max_count=3), st.lists(damages(), min_size=1, max_size=3))
def test_damaged_bytes_raise_only_the_documented_error(
    log: list[model.Batch], several: list[Callable[[bytes], bytes]]
) -> None:
    data = b"".join(map(model.encode, log))
    for damage in several:
        data = damage(data)
    decoded(data, verify=False)
    for use in (
        lambda: list(iter_headers(data)),
        lambda: patch_offsets(bytearray(data), 7, 1),
        lambda: assign_offsets(bytearray(data)),
        lambda: trim_batches(data, first_offset=2**30, max_bytes=100),
    ):
        try:
            use()
        except MalformedBatchError as error:
            check(error, data)
    validate_batches(data, require_keys=True)


@given(batches(), st.lists(damages(), min_size=1, max_size=2))
def test_kernels_and_model_agree_on_damaged_records(
    batch: model.Batch, several: list[Callable[[bytes], bytes]]
) -> None:
    """Records are damaged before compression and checksum, so only their validation can detect it."""
    records = b"".join(model.encode_record(record, batch) for record in batch.records)
    for damage in several:
        records = damage(records)
    data = model.encode_with_records(batch, records)
    try:
        expected = list(model.decode(data).records)
    except model.ModelError:
        expected = None
    assert decoded(data, verify=True) == expected


@given(batches(), st.integers(8, 60), st.binary(min_size=1, max_size=4))
def test_kernels_and_model_agree_on_damaged_headers(batch: model.Batch, at: int, blob: bytes) -> None:
    valid = model.encode(batch)
    data = (valid[:at] + blob + valid[at + len(blob) :])[: len(valid)]
    data = data[:17] + struct.pack(">I", crc32c.crc32c(data[21:])) + data[21:]
    try:
        expected = model.records_of(model.decode_all(data, verify=False))
    except model.ModelError:
        expected = None
    assert decoded(data, verify=False) == expected


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_rejected(noise: bytes) -> None:
    assert decoded(noise, verify=True) is None or not noise


@pytest.mark.parametrize("codec", Codec)
def test_a_false_record_count_does_not_allocate_memory(codec: Codec) -> None:
    batch = model.batch_of([Record(0, 1, b"k", b"v")], codec=codec, last_offset_delta=2**31 - 1)
    data = model.encode_with_records(batch, model.encode_record(batch.records[0], batch), count=2**31 - 1)
    valid = encode_batch([1], [b"k"], [b"v"], codec=codec)
    decode_batch(valid)  # compiles the kernels before memory is counted
    assert not validate_batches(valid, require_keys=True).problems
    tracemalloc.start()
    try:
        with pytest.raises(MalformedBatchError) as caught:
            decode_batch(data)
        assert validate_batches(data, require_keys=True).problems
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    assert caught.value.fault is Fault.RECORD_COUNT


@pytest.mark.parametrize(
    ("length", "fault"),
    [
        (2**31 - 1, Fault.TRUNCATED),
        (48, Fault.BATCH_LENGTH),
        (-1, Fault.BATCH_LENGTH),
        (-(2**31), Fault.BATCH_LENGTH),
    ],
)
def test_a_false_batch_length_is_rejected(length: int, fault: Fault) -> None:
    data = bytearray(encode_batch([1], [b"k"], [b"v"]))
    struct.pack_into(">i", data, 8, length)
    with pytest.raises(MalformedBatchError) as caught:
        read_header(data)
    assert (caught.value.fault, caught.value.position) == (fault, 0)


@pytest.mark.parametrize("field", range(6))
def test_a_false_length_inside_a_record_is_rejected(field: int) -> None:
    """Each varint of a record in turn has its maximum value."""
    huge = model.write_varint(2**31 - 1)
    parts = [b"\0", b"\0", b"\0", b"\x02k", b"\x02v", b"\x02", b"\x02h", b"\x02x"]
    body = b"".join(huge if i == field + 2 else part for i, part in enumerate(parts))
    record = model.write_varint(len(body)) + body
    data = model.encode_with_records(model.Batch(), record, count=1)
    with pytest.raises(MalformedBatchError) as caught:
        decode_batch(data)
    assert caught.value.fault in {Fault.RECORD_FIELD, Fault.RECORD_OFFSET}


@pytest.mark.parametrize("magic", [0, 1, 3, 255])
def test_other_format_versions_are_rejected(magic: int) -> None:
    data = bytearray(encode_batch([1], [b"k"], [b"v"]))
    data[16] = magic
    with pytest.raises(MalformedBatchError, match="format version 2"):
        read_header(data)
