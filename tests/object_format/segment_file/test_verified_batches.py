"""Files from batches with known headers equal files from their bytes."""

from __future__ import annotations

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidInputError
from object_format.kernels.hashing.checksums import extend_by_number, extend_by_part
from object_format.record_batch.headers import stored_checksums, write_checksum
from object_format.segment_file import SegmentFileWriter, SegmentKind, VerifiedBatches
from tests.object_format.segment_file.samples import (
    CREATED_MS,
    TOPIC,
    make_batch,
    make_writer,
    read_file,
)

_LENGTHS = st.integers(0, 70_000) | st.sampled_from([255, 256, 257, 65_535, 65_536, 2**17, 2**24 + 3])


@given(st.binary(max_size=50), _LENGTHS, st.integers(0, 255))
def test_a_checksum_is_extended_by_the_checksum_of_a_part(first: bytes, length: int, byte: int) -> None:
    part = bytes([byte]) * length
    sum_of_both = extend_by_part(crc32c.crc32c(first), crc32c.crc32c(part), length)
    assert sum_of_both == crc32c.crc32c(first + part)


@given(st.binary(max_size=50), st.integers(1, 8), st.data())
def test_a_checksum_is_extended_by_a_number(first: bytes, width: int, data: st.DataObject) -> None:
    """The number is big-endian."""
    number = data.draw(st.integers(0, min(2 ** (8 * width), 2**63) - 1))
    expected = crc32c.crc32c(first + number.to_bytes(width, "big"))
    assert extend_by_number(crc32c.crc32c(first), number, width) == expected


def _batches(sizes: list[int]) -> list[memoryview]:
    """Return batches of two offsets each with these sizes and correct checksums."""
    found = []
    for number, size in enumerate(sizes):
        body = bytes([number % 251]) * (size - 61)
        batch = bytearray(make_batch(2 * number, 2, body=body, timestamp=CREATED_MS + number * 7 % 5))
        write_checksum(memoryview(batch), 0, size)
        found.append(memoryview(batch))
    return found


def _verified(batches: list[memoryview]) -> VerifiedBatches:
    count = len(batches)
    return VerifiedBatches(
        views=batches,
        base_offsets=range(0, 2 * count, 2),
        checksums=stored_checksums(batches),
        max_timestamps=[CREATED_MS + number * 7 % 5 for number in range(count)],
        last_offset=2 * count - 1,
        record_count=2 * count,
    )


def _finish(writer: SegmentFileWriter, count: int) -> None:
    writer.end_section(
        base_offset=0, last_offset=2 * count - 1, record_count=2 * count, min_timestamp=1, max_timestamp=2
    )
    writer.finish()


@given(
    sizes=st.lists(st.integers(61, 900), min_size=1, max_size=30),
    target=st.integers(1, 2500),
    kind=st.sampled_from(SegmentKind),
)
def test_the_file_equals_that_of_appended_bytes(sizes: list[int], target: int, kind: SegmentKind) -> None:
    """This includes blocks, their checksums, index and footer."""
    batches = _batches(sizes)
    files = []
    for is_verified in (True, False):
        data = bytearray()
        writer = make_writer(data.extend, kind=kind, block_target=target)
        writer.begin_section(TOPIC, 0)
        if is_verified:
            writer.append_verified(_verified(batches))
        else:
            writer.append(bytearray(b"".join(batches)), stable=True)
        _finish(writer, len(sizes))
        files.append(bytes(data))
    assert files[0] == files[1]
    (section,) = read_file(files[0]).sections
    assert section.data == b"".join(batches)


def test_verified_batches_can_be_appended_repeatedly() -> None:
    """Each call ends its last block, and offsets must continue to ascend."""
    batches = _batches([100] * 6)
    whole, data = _verified(batches), bytearray()
    writer = make_writer(data.extend, kind=SegmentKind.INGESTION)
    writer.begin_section(TOPIC, 0)
    for start, end in ((0, 2), (2, 6)):
        part = VerifiedBatches(
            views=whole.views[start:end],
            base_offsets=whole.base_offsets[start:end],
            checksums=whole.checksums[start:end],
            max_timestamps=whole.max_timestamps[start:end],
            last_offset=2 * end - 1,
            record_count=2 * (end - start),
        )
        writer.append_verified(part)
    with pytest.raises(InvalidInputError, match="do not follow"):
        writer.append_verified(whole)
    _finish(writer, 6)
    (section,) = read_file(bytes(data)).sections
    assert section.data == b"".join(batches)


def test_a_block_with_changed_bytes_is_rejected() -> None:
    """The block's checksum is that of the producer's bytes, so later damage is detected."""
    batches = _batches([100, 200])
    verified, data = _verified(batches), bytearray()
    batches[1][150] ^= 1
    writer = make_writer(data.extend, kind=SegmentKind.INGESTION)
    writer.begin_section(TOPIC, 0)
    writer.append_verified(verified)
    _finish(writer, 2)
    with pytest.raises(Exception, match="checksum"):
        read_file(bytes(data))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"base_offsets": [0, 0]}, "does not follow the previous one"),
        ({"base_offsets": [-2, 0]}, "do not follow"),
        ({"last_offset": -1}, "does not agree"),
        ({"views": [memoryview(bytes(61)), memoryview(bytes(60))]}, "a batch of 60 bytes"),
        ({"base_offsets": [0, 100]}, "does not agree with the last offset 3"),
        ({"base_offsets": [2, 0]}, "does not follow the previous one"),
        ({"base_offsets": []}, "same length"),
        ({"base_offsets": [0]}, "same length"),
        ({"checksums": [1, 2, 3]}, "same length"),
        ({"max_timestamps": [1]}, "same length"),
        ({"views": [memoryview(bytes(61))]}, "same length"),
        ({"checksums": [-1, 5]}, "checksum"),
        ({"checksums": [5, 2**32]}, "checksum"),
        ({"record_count": -5}, "-5 records"),
    ],
)
def test_invalid_columns_are_rejected_and_change_nothing(change: dict[str, object], why: str) -> None:
    """The section accepts valid batches afterwards."""
    batches = _batches([100, 100])
    data = bytearray()
    writer = make_writer(data.extend, kind=SegmentKind.INGESTION)
    writer.begin_section(TOPIC, 0)
    begun = len(data)
    with pytest.raises(InvalidInputError, match=why):
        writer.append_verified(_verified(batches)._replace(**change))  # type: ignore[arg-type]
    assert len(data) == begun
    writer.append_verified(_verified(batches))
    _finish(writer, 2)
    assert len(read_file(bytes(data)).sections) == 1


def test_verified_batches_are_rejected_after_an_open_block() -> None:
    """Only `append` can continue a block that it has started."""
    batches = _batches([100, 100])
    writer = make_writer(len, kind=SegmentKind.INGESTION)
    writer.begin_section(TOPIC, 0)
    writer.append(batches[0], stable=True)
    with pytest.raises(InvalidInputError, match="is still open"):
        writer.append_verified(_verified(batches)._replace(base_offsets=[2, 4], last_offset=5))
