"""Offsets of records that are collected in bulk equal those of decoded records."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from object_format.codecs.codec import Codec
from object_format.errors import Fault, MalformedBatchError
from object_format.record_batch import record_offsets
from object_format.record_batch.record_offsets import RecordOffsets
from object_format.record_batch.records import decode_batches, encode_batch

BATCHES = st.lists(
    st.tuples(st.sets(st.integers(0, 30), max_size=20), st.integers(0, 3), st.sampled_from(Codec)),
    max_size=12,
)


def stored(batches: list[tuple[set[int], int, Codec]]) -> list[bytes]:
    """Return consecutive batches with records at some offset deltas, and missing offsets at their end."""
    made = []
    base = 7
    for deltas, more, codec in batches:
        last = max(deltas, default=0) + more
        times, nothing = [0] * len(deltas), [None] * len(deltas)
        made.append(
            encode_batch(
                times,
                nothing,
                nothing,
                base_offset=base,
                codec=codec,
                offset_deltas=sorted(deltas),
                last_offset_delta=last,
            )
        )
        base += last + 1
    return made


@given(BATCHES, st.integers(1, 40), st.integers(1, 12), st.integers(1, 5), st.sampled_from([0, 2**40]))
def test_offsets_equal_those_of_decoded_records(
    batches: list[tuple[set[int], int, Codec]], capacity: int, pieces: int, ranges: int, shift: int
) -> None:
    """This holds for any buffer size, and any division of the batches."""
    made = stored(batches)
    with (
        patch.object(record_offsets, "_PENDING_OFFSETS", capacity),
        patch.object(record_offsets, "_LONG_RANGE", 9),
        patch.object(record_offsets, "_RANGES", ranges),
    ):
        found = RecordOffsets()
        for _ in range(2):
            for first in range(0, len(made), pieces):
                found.add(b"".join(made[first : first + pieces]), offset_shift=shift)
            expected = [
                offset
                for columns in decode_batches(b"".join(made), offset_shift=shift, control=True)
                for offset in columns.offsets.tolist()
            ]
            assert list(found.take()) == expected


@pytest.mark.parametrize("long_range", [4, 1000])
@pytest.mark.parametrize("ranges", [1, 2, 3])
@pytest.mark.parametrize("capacity", range(1, 9))
def test_ranges_of_adjacent_batches_are_collected_within_any_memory(
    capacity: int, ranges: int, long_range: int
) -> None:
    """The batches are in three ranges, between batches with gaps. Two ranges have several batches."""
    full = [(set(range(size)), 0, Codec.NONE) for size in (3, 4, 1, 20)]
    gapped = ({0, 2, 5}, 1, Codec.NONE)
    made = stored([*full[:3], gapped, full[3], gapped, *full[1:3]])
    expected = [offset for columns in decode_batches(b"".join(made)) for offset in columns.offsets.tolist()]
    with (
        patch.object(record_offsets, "_PENDING_OFFSETS", capacity),
        patch.object(record_offsets, "_LONG_RANGE", long_range),
        patch.object(record_offsets, "_RANGES", ranges),
    ):
        found = RecordOffsets()
        found.add(b"".join(made), offset_shift=0)
        assert list(found.take()) == expected


def test_bytes_after_the_records_of_a_batch_with_gaps_are_rejected() -> None:
    whole = encode_batch([0] * 3, [b"k"] * 3, [b"v"] * 3)
    gapped = encode_batch([0] * 2, [b"k"] * 2, [b"v"] * 2, base_offset=3, offset_deltas=[0, 2])
    longer = bytearray(gapped + b"\0")
    longer[8:12] = (len(longer) - 12).to_bytes(4, "big")

    with pytest.raises(MalformedBatchError) as caught:
        RecordOffsets().add(whole + longer, offset_shift=0)

    end = len(whole) + len(gapped)
    assert (caught.value.fault, caught.value.position) == (Fault.TRAILING_BYTES, end)


def test_batches_without_gaps_are_not_decompressed() -> None:
    """Their records may even be damaged. A batch with gaps must be readable."""
    whole = encode_batch([0] * 3, [b"k"] * 3, [b"v"] * 3, codec=Codec.LZ4)
    damaged = whole[:61] + bytes(len(whole) - 61)
    gapped = encode_batch(
        [0] * 2, [b"k"] * 2, [b"v"] * 2, base_offset=3, offset_deltas=[0, 2], codec=Codec.LZ4
    )
    plain = encode_batch([0] * 2, [b"k"] * 2, [b"v"] * 2, offset_deltas=[0, 2])
    found = RecordOffsets()
    assert found.max_opened_bytes == 0

    found.add(damaged + gapped, offset_shift=0)

    assert found.max_opened_bytes == len(plain) - 61
    assert list(found.take()) == [0, 1, 2, 3, 5]
    with pytest.raises(MalformedBatchError) as caught:
        found.add(whole + gapped[:61] + bytes(len(gapped) - 61), offset_shift=0)
    assert (caught.value.fault, caught.value.position) == (Fault.COMPRESSED_BYTES, len(whole))


def test_records_that_do_not_ascend_are_rejected() -> None:
    valid = encode_batch([0] * 3, [b"k"] * 3, [b"v"] * 3, offset_deltas=[0, 5, 9])
    swapped = bytearray(valid)
    second, third = (61 + each * (len(valid) - 61) // 3 for each in (1, 2))
    swapped[second + 3], swapped[third + 3] = valid[third + 3], valid[second + 3]

    with pytest.raises(MalformedBatchError) as caught:
        RecordOffsets().add(swapped, offset_shift=0)

    assert (caught.value.fault, caught.value.position) == (Fault.RECORD_OFFSET, third)


def test_overlapping_batches_are_rejected() -> None:
    whole = encode_batch([0] * 3, [b"k"] * 3, [b"v"] * 3)
    found = RecordOffsets()
    found.add(whole, offset_shift=0)

    for batches, shift, position in ((whole, 2, 0), (whole * 2, 3, len(whole)), (whole, 2**62, 0)):
        with pytest.raises(MalformedBatchError) as caught:
            found.add(batches, offset_shift=shift)
        assert (caught.value.fault, caught.value.position) == (Fault.OFFSET_RANGE, position)


def test_a_batch_with_many_offsets_uses_bounded_memory() -> None:
    """The buffer is flushed several times."""
    count = record_offsets._PENDING_OFFSETS * 2 + 5
    deltas = np.arange(count, dtype=np.int64)
    deltas[-1] += 1
    nothing = [None] * count
    found = RecordOffsets()

    found.add(encode_batch(np.zeros(count, np.int64), nothing, nothing, offset_deltas=deltas), offset_shift=0)

    offsets = found.take()
    assert (len(offsets), offsets.max()) == (count, count)
