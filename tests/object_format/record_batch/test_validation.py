"""Validation of batches from producers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from object_format.buffers import readable
from object_format.codecs.codec import MAX_DECOMPRESSED_BATCH_BYTES, Codec
from object_format.errors import Fault, MalformedBatchError
from object_format.kernels.batches.layout import CONTROL, TRANSACTIONAL
from object_format.record_batch.headers import BatchHeader, iter_headers, write_checksum
from object_format.record_batch.records import Record, encode_batch
from object_format.record_batch.validation import (
    MAX_RECORDS_REPORTED,
    BatchSummary,
    fast_validate_batches,
    validate_batches,
)
from tests.object_format import model
from tests.object_format.strategies import batches, logs

ONE = model.batch_of([Record(0, 5, b"k", b"v")])


def faults(*made: model.Batch | bytes, require_keys: bool = False) -> list[tuple[int, Fault]]:
    data = b"".join(each if isinstance(each, bytes) else model.encode(each) for each in made)
    return [
        (problem.batch, problem.fault)
        for problem in validate_batches(data, require_keys=require_keys).problems
    ]


@given(logs(gaps=False))
def test_valid_batches_are_summarized(log: list[model.Batch]) -> None:
    encoded = [model.encode(batch) for batch in log]
    found = validate_batches(b"".join(encoded), require_keys=False)
    assert found.problems == ()
    assert found.record_count == sum(len(batch.records) for batch in log)
    position = 0
    for summary, batch, data in zip(found.batches, log, encoded, strict=True):
        timestamps = [record.timestamp for record in batch.records]
        assert summary == BatchSummary(
            position=position,
            size=len(data),
            last_offset_delta=batch.last_offset_delta,
            record_count=len(batch.records),
            min_timestamp=min(timestamps),
            max_timestamp=max(timestamps),
            header_max_timestamp=batch.max_timestamp,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
            attributes=batch.attributes,
        )
        position += len(data)


@given(batches(gaps=False), st.data())
def test_a_single_batch_is_validated_like_one_of_many(batch: model.Batch, data: st.DataObject) -> None:
    """A single batch takes a fast path with the same result, for any wrong byte."""
    encoded = bytearray(model.encode(batch))
    if data.draw(st.booleans(), label="spoilt"):
        where = data.draw(st.integers(0, len(encoded) - 1), label="where")
        encoded[where] ^= data.draw(st.integers(1, 255), label="by")
        if data.draw(st.booleans(), label="with its checksum"):
            encoded[17:21] = crc32c.crc32c(bytes(encoded[21:])).to_bytes(4, "big")
    require_keys = data.draw(st.booleans(), label="keys are required")
    single = validate_batches(encoded, require_keys=require_keys)
    first = model.encode(ONE)
    several = validate_batches(first + encoded, require_keys=require_keys)
    assert single.batches == tuple(
        each._replace(position=each.position - len(first)) for each in several.batches[1:]
    )
    assert [(each.fault, each.batch, each.record_indexes) for each in single.problems] == [
        (each.fault, each.batch - 1, each.record_indexes) for each in several.problems
    ]


@given(logs(gaps=False), st.data())
def test_fast_validation_equals_full_validation(log: list[model.Batch], data: st.DataObject) -> None:
    """It returns None if any batch has a problem, and the same rows otherwise."""
    encoded = bytearray(b"".join(map(model.encode, log)))
    if encoded and data.draw(st.booleans(), label="spoilt"):
        where = data.draw(st.integers(0, len(encoded) - 1), label="where")
        encoded[where] ^= data.draw(st.integers(1, 255), label="by")
        for position, header in _valid_headers(encoded):
            if data.draw(st.booleans(), label="with its checksum"):
                write_checksum(memoryview(encoded), position, position + header.size)
    require_keys = data.draw(st.booleans(), label="keys are required")
    one_by_one = validate_batches(encoded, require_keys=require_keys)
    fast = fast_validate_batches(readable(encoded), require_keys=require_keys)
    if one_by_one.problems or not encoded:
        assert fast is None
        return
    assert fast is not None
    each = one_by_one.batches
    for name in ("position", "size", "record_count", "producer_id", "base_sequence", "attributes"):
        assert fast.rows[name].tolist() == [getattr(batch, name) for batch in each]
    assert fast.max_batch_size == max(batch.size for batch in each)
    assert fast.min_timestamp == min(batch.min_timestamp for batch in each)
    assert fast.max_timestamp == max(batch.max_timestamp for batch in each)
    assert fast.max_timestamps_match == all(
        batch.header_max_timestamp == batch.max_timestamp for batch in each
    )


def _valid_headers(data: bytearray) -> list[tuple[int, BatchHeader]]:
    found: list[tuple[int, BatchHeader]] = []
    with suppress(MalformedBatchError):
        found.extend(iter_headers(data))
    return found


@given(batches(gaps=False))
def test_keyless_records_are_reported_if_keys_are_required(batch: model.Batch) -> None:
    expected = tuple(i for i, record in enumerate(batch.records) if record.key is None)
    first = model.encode(ONE)
    found = validate_batches(first + model.encode(batch), require_keys=True)
    if not expected:
        assert found.problems == ()
        return
    [problem] = found.problems
    assert (problem.batch, problem.fault, problem.position) == (1, Fault.KEYLESS_RECORDS, len(first))
    assert (problem.record_indexes, problem.keyless_count) == (expected, len(expected))
    assert "key" in problem.message


def test_the_number_of_reported_keyless_records_is_limited() -> None:
    count = MAX_RECORDS_REPORTED + 5
    data = encode_batch([1] * count, [None] * count, [b"v"] * count, codec=Codec.LZ4)
    [problem] = validate_batches(data, require_keys=True).problems
    assert problem.record_indexes == tuple(range(MAX_RECORDS_REPORTED))
    assert problem.keyless_count == count


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"attributes": 0x20}, Fault.CONTROL_BATCH),
        ({"attributes": 0x08}, Fault.TIMESTAMP_TYPE),
        *[({"attributes": bit}, Fault.BROKER_ATTRIBUTES) for bit in (0x40, 0x80, 0x100, 0x4000, -0x8000)],
        ({"producer_id": 4}, Fault.SEQUENCE),
        ({"producer_id": 0}, Fault.SEQUENCE),
        ({"last_offset_delta": 1}, Fault.OFFSETS_NOT_CONSECUTIVE),
        ({"last_offset_delta": 2}, Fault.OFFSETS_NOT_CONSECUTIVE),
        ({"records": ()}, Fault.OFFSETS_NOT_CONSECUTIVE),
        ({"records": (Record(0, 1, b"", b""), Record(2, 1, b"", b"")), "last_offset_delta": 1}, None),
        ({"records": (Record(1, 1, b"", b""),)}, Fault.OFFSETS_NOT_CONSECUTIVE),
    ],
)
def test_batches_that_producers_may_not_send_are_rejected(
    codec: Codec, change: dict[str, object], fault: Fault | None
) -> None:
    changed = replace(ONE, **change)  # type: ignore[arg-type]  # each case names fields with their types
    changed = replace(changed, attributes=changed.attributes | codec)
    expected = Fault.OFFSETS_NOT_CONSECUTIVE if fault is None else fault
    assert faults(ONE, changed, ONE) == [(1, expected)]
    assert faults(changed) == [(0, expected)]


@pytest.mark.parametrize("producer_id", [-1, 7])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("bit", [0x20, 0x40, 0x80, 0x100, 0x4000, -0x8000])
def test_no_producer_may_set_an_attribute_of_a_broker(bit: int, codec: Codec, producer_id: int) -> None:
    """The rule is the same for one batch, for one of many and for all together, and in a transaction."""
    sequence = -1 if producer_id < 0 else 5
    for attributes in (codec, codec | TRANSACTIONAL):
        batch = replace(ONE, attributes=attributes, producer_id=producer_id, base_sequence=sequence)
        marked = replace(batch, attributes=attributes | bit)
        data, forged = model.encode(batch), model.encode(marked)
        assert faults(batch) == faults(ONE, batch) == []
        assert fast_validate_batches(readable(data), require_keys=True) is not None

        fault = Fault.CONTROL_BATCH if bit == CONTROL else Fault.BROKER_ATTRIBUTES
        assert faults(marked) == [(0, fault)]
        assert faults(ONE, marked) == [(1, fault)]
        assert fast_validate_batches(readable(forged), require_keys=True) is None


@pytest.mark.parametrize("codec", Codec)
def test_damaged_records_affect_only_their_batch(codec: Codec) -> None:
    batch = replace(ONE, attributes=int(codec))
    record = model.encode_record(batch.records[0], batch)
    assert faults(ONE, model.encode_with_records(batch, record + b"\0"), ONE) == [(1, Fault.TRAILING_BYTES)]
    assert faults(ONE, model.encode_with_records(batch, record[:-1] + b"\x02"), ONE) == [
        (1, Fault.RECORD_FIELD)
    ]
    assert faults(ONE, model.encode_with_records(batch, b"\x7e" + record[1:]), ONE) == [
        (1, Fault.RECORD_LENGTH)
    ]


def test_a_wrong_checksum_takes_precedence() -> None:
    damaged = bytearray(model.encode(replace(ONE, attributes=0x20)))
    damaged[-1] ^= 1
    assert faults(ONE, bytes(damaged), ONE) == [(1, Fault.CHECKSUM)]


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_records_that_cannot_be_decompressed_are_rejected(codec: Codec) -> None:
    plain = model.encode_with_records(model.Batch(), b"not compressed at all", count=1)
    data = bytearray(plain)
    data[22] = codec
    data[17:21] = model.crc32c(bytes(data[21:])).to_bytes(4, "big")
    assert faults(ONE, bytes(data)) == [(1, Fault.COMPRESSED_BYTES)]


def test_a_decompression_bomb_is_rejected() -> None:
    values = [bytes(MAX_DECOMPRESSED_BATCH_BYTES // 8)] * 8
    data = encode_batch([1] * 8, [b"k"] * 8, values, codec=Codec.ZSTD)
    assert faults(ONE, data) == [(1, Fault.DECOMPRESSED_TOO_LARGE)]


def test_batches_after_a_malformed_header_are_not_reported() -> None:
    sound = model.encode(ONE)
    found = validate_batches(sound + sound[:-1], require_keys=True)
    assert len(found.batches) == 1
    [problem] = found.problems
    assert (problem.batch, problem.fault, problem.position) == (1, Fault.TRUNCATED, len(sound))


def test_no_batches_are_valid() -> None:
    found = validate_batches(b"", require_keys=True)
    assert (found.batches, found.problems, found.record_count) == ((), (), 0)


def test_a_wrong_max_timestamp_is_reported() -> None:
    [summary] = validate_batches(model.encode(replace(ONE, max_timestamp=77)), require_keys=True).batches
    assert (summary.header_max_timestamp, summary.max_timestamp) == (77, 5)
