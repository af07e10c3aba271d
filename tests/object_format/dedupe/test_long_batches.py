"""Filtering a batch with very many records in chunks writes the same bytes as filtering it at once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from object_format.codecs.codec import Codec
from object_format.dedupe import filter as filtering
from object_format.dedupe import filter_batches, long_batches
from object_format.errors import Fault, MalformedBatchError
from object_format.offset_set import OffsetSet
from object_format.record_batch.records import Record, decode_batch, encode_batch
from tests.object_format import model
from tests.object_format.dedupe.test_dedupe import NOW, find, sections

if TYPE_CHECKING:
    from object_format.dedupe import FilteredBatches, Survivors
    from tests.object_format.model_log import Section

HORIZON = NOW + 1000


def filtered(
    data: bytes, survivors: Survivors, *, shift: int = 0, horizon: int | None = None
) -> FilteredBatches:
    return filter_batches(
        data, survivors, offset_shift=shift, leader_epoch=3, delete_horizon_ms=horizon, merge=False
    )


@given(sections(), st.integers(1, 5), st.integers(2, 9), st.sampled_from([None, HORIZON]))
def test_chunks_do_not_change_the_result(
    log: list[Section], max_records: int, chunk_offsets: int, horizon: int | None
) -> None:
    """This holds for any number of records and offsets per chunk."""
    survivors = find(log)
    for section in log:
        data = b"".join(section.stored())
        expected = filtered(data, survivors, shift=section.shift, horizon=horizon)
        with (
            patch.object(filtering, "MAX_RECORDS", max_records),
            patch.object(long_batches, "CHUNK_OFFSETS", chunk_offsets),
        ):
            found = filtered(data, survivors, shift=section.shift, horizon=horizon)
        assert b"".join(found.buffers) == b"".join(expected.buffers)
        assert found._replace(buffers=(), buffer_bytes=0) == expected._replace(buffers=(), buffer_bytes=0)


def survivors_at(offsets: set[int], tombstones: set[int]) -> Survivors:
    return replace(
        find([]), offsets=OffsetSet.of(BitMap64(offsets)), tombstones=OffsetSet.of(BitMap64(tombstones))
    )


def tombstones(codec: Codec, count: int = 50) -> bytes:
    """Return a batch of tombstones."""
    keys = [b"%03d" % each for each in range(count)]
    return encode_batch(np.full(count, NOW), keys, [None] * count, codec=codec)


@pytest.mark.parametrize("max_records", [5, 1000])
@pytest.mark.parametrize("codec", Codec)
def test_a_batch_gets_no_delete_horizon_if_it_would_become_too_large(codec: Codec, max_records: int) -> None:
    """Timestamp deltas grow, and a compressed batch must not exceed the limit when it is decompressed."""
    everything, every_second = set(range(50)), set(range(0, 50, 2))
    data = tombstones(codec)
    records_size = len(tombstones(Codec.NONE)) - 61
    for limit, offsets in (
        (records_size, everything),
        (records_size, every_second),
        (2 * records_size, everything),
    ):
        with (
            patch.object(filtering, "MAX_RECORDS", max_records),
            patch.object(filtering, "MAX_DECOMPRESSED_BATCH_BYTES", limit),
            patch.object(long_batches, "MAX_DECOMPRESSED_BATCH_BYTES", limit),
        ):
            found = filtered(data, survivors_at(offsets, offsets), horizon=NOW + 10**9)
        stamped = codec is Codec.NONE or offsets is every_second or limit > records_size
        batch = b"".join(found.buffers)
        opened = decode_batch(batch)
        assert opened.offsets.tolist() == sorted(offsets)
        assert set(opened.timestamps.tolist()) == {NOW}
        assert (int.from_bytes(batch[21:23], "big") & 64 != 0) is stamped
        assert stamped or len(offsets) < 50 or batch[61:] == data[61:]


@pytest.mark.parametrize("max_records", [5, 1000])
def test_a_batch_with_a_delete_horizon_may_have_the_maximum_size(max_records: int) -> None:
    offsets, horizon = set(range(50)), NOW + 10**9
    survivors = survivors_at(offsets, offsets)
    uncompressed = filtered(tombstones(Codec.NONE), survivors, horizon=horizon)
    size = uncompressed.size - 61
    for limit, attributes in ((size, 64), (size - 1, 0)):
        with (
            patch.object(filtering, "MAX_RECORDS", max_records),
            patch.object(filtering, "MAX_DECOMPRESSED_BATCH_BYTES", limit),
            patch.object(long_batches, "MAX_DECOMPRESSED_BATCH_BYTES", limit),
        ):
            found = filtered(tombstones(Codec.ZSTD), survivors, horizon=horizon)
        assert b"".join(found.buffers)[22] & 64 == attributes


@pytest.mark.parametrize("max_records", [9, 1000])
def test_each_of_several_batches_may_become_too_large(max_records: int) -> None:
    """Tombstones may be copied, lose one of them, or fit. Batches with values are copied or lose a record."""
    horizon = NOW + 10**9
    sources = [
        model.batch_of(
            [Record(100 * number + each, NOW, b"%03d" % each, value) for each in range(count)],
            codec=Codec.ZSTD,
        )
        for number, (count, value) in enumerate(
            [(50, None), (50, None), (49, None), (2, None), (50, b""), (50, b"")]
        )
    ]
    stored = [model.encode(each) for each in sources]
    records = [record for each in sources for record in each.records]
    kept = {record.offset for record in records} - {100, 549}
    survivors = survivors_at(kept, {each.offset for each in records if each.value is None} & kept)
    limit = len(filtered(tombstones(Codec.NONE, 49), survivors_at(set(range(49)), set())).buffers[0]) - 61
    with (
        patch.object(filtering, "MAX_RECORDS", max_records),
        patch.object(filtering, "MAX_DECOMPRESSED_BATCH_BYTES", limit),
        patch.object(long_batches, "MAX_DECOMPRESSED_BATCH_BYTES", limit),
    ):
        found = filtered(b"".join(stored), survivors, horizon=horizon)
    copied = [replace(each, leader_epoch=3) for each in sources]
    assert b"".join(found.buffers) == b"".join(
        [
            model.encode(copied[0]),
            *filtered(stored[1], survivors).buffers,
            model.encode(copied[2]),
            *filtered(stored[3], survivors, horizon=horizon).buffers,
            model.encode(copied[4]),
            *filtered(stored[5], survivors).buffers,
        ]
    )


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_bytes_that_differ_from_pass_1_are_rejected(codec: Codec) -> None:
    data = encode_batch([NOW] * 3, [b"a", b"b", b"c"], [b""] * 3, offset_deltas=[0, 1, 5], codec=codec)
    for offsets in ({0, 4}, {0, 1, 4, 5}):
        with (
            patch.object(filtering, "MAX_RECORDS", 1),
            patch.object(long_batches, "CHUNK_OFFSETS", 2),
            pytest.raises(MalformedBatchError) as caught,
        ):
            filtered(data, survivors_at(offsets, set()))
        assert caught.value.fault is Fault.SURVIVORS


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize(
    ("count", "fault"), [(2, Fault.TRAILING_BYTES), (4, Fault.RECORD_LENGTH)], ids=["fewer", "more"]
)
def test_a_wrong_record_count_is_rejected(codec: Codec, count: int, fault: Fault) -> None:
    first = encode_batch([NOW], [b"a"], [b"value"], codec=codec)
    keys, values = [b"a", b"b", b"c"], [b"value"] * 3
    data = bytearray(encode_batch([NOW] * 3, keys, values, base_offset=1, last_offset_delta=9, codec=codec))
    data[57:61] = count.to_bytes(4, "big")
    with (
        patch.object(filtering, "MAX_RECORDS", 1),
        pytest.raises(MalformedBatchError) as caught,
    ):
        filtered(first + data, survivors_at({2}, set()))
    assert caught.value.fault is fault
    records_size = (len(data) - 61) * min(count, 3) // 3
    assert caught.value.position == len(first) + (0 if codec else 61 + records_size)
