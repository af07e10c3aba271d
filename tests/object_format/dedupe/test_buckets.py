"""Pass 1 in buckets finds the same survivors as pass 1 with one table."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import CorruptDataError, FatalError, InvalidInputError
from object_format.codecs.codec import Codec
from object_format.dedupe import KeyTable, Survivors
from object_format.dedupe.buckets import (
    BLOB_RECORDS,
    Blob,
    BucketSplitter,
    BucketSurvivorFinder,
    read_blob,
)
from object_format.errors import MalformedBatchError
from object_format.kernels.dedupe.buckets import bucket_of
from object_format.kernels.dedupe.fingerprints import CONTROL_RECORD, KEYLESS
from object_format.record_batch.records import encode_batch
from tests.object_format import model_log
from tests.object_format.dedupe.test_dedupe import NOW, SEED, sections

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.object_format.model_log import Section

TABLE = KeyTable(1 << 16)


def split(log: Iterable[Section], *, bits: int, chunk_records: int = 64) -> list[Blob]:
    """Return the blobs of a range of the log."""
    splitter = BucketSplitter(SEED, bits=bits, now_ms=NOW, chunk_records=chunk_records)
    blobs: list[Blob] = []
    for section in log:
        for stored in section.stored():
            blobs += splitter.feed(stored, offset_shift=section.shift)
    return [*blobs, *splitter.flush()]


def find_survivors(
    blobs: Iterable[Blob], *, reaches_log_start: bool, table: KeyTable = TABLE
) -> list[Survivors]:
    """Return the survivors of each bucket."""
    found = []
    ordered = sorted(blobs, key=lambda blob: (blob.bucket, -blob.first_offset))
    for bucket in sorted({blob.bucket for blob in ordered}):
        finder = BucketSurvivorFinder(table, reaches_log_start=reaches_log_start)
        for blob in ordered:
            if blob.bucket == bucket:
                finder.feed(blob.data)
        found.append(finder.finish())
    return found


def uncompressed_batch(count: int, *, first: int = 0) -> bytes:
    keys = [b"%d" % (first + index) for index in range(count)]
    return encode_batch([0] * count, keys, keys, [()] * count)


@given(
    log=sections(),
    bits=st.integers(0, 3),
    chunk_records=st.integers(1, 20),
    reaches_log_start=st.booleans(),
    cuts=st.sets(st.integers(0, 4)),
)
def test_survivors_equal_the_dictionary_model(
    *, log: Sequence[Section], bits: int, chunk_records: int, reaches_log_start: bool, cuts: set[int]
) -> None:
    """The log is split in several ranges and chunks."""
    edges = sorted({0, len(log), *(edge for edge in cuts if edge < len(log))})
    blobs = [
        blob
        for first, end in pairwise(edges)
        for blob in split(log[first:end], bits=bits, chunk_records=chunk_records)
    ]

    found = find_survivors(blobs, reaches_log_start=reaches_log_start)

    expected = model_log.survivors(log, reaches_log_start=reaches_log_start, now_ms=NOW)
    assert {offset for each in found for offset in each.offsets} == expected
    assert all(each.exact for each in found)
    assert sum(each.records_in for each in found) == sum(
        len(batch.records) for section in log for batch in section.batches
    )
    tombstones = {
        record.offset
        for section in log
        for batch in section.batches
        if not model_log.is_control(batch)
        for record in batch.records
        if record.value is None and record.offset in expected
    }
    assert {offset for each in found for offset in each.tombstones} == tombstones


def test_keys_are_distributed_to_all_buckets() -> None:
    splitter = BucketSplitter(SEED, bits=4, now_ms=NOW)
    blobs = [*splitter.feed(uncompressed_batch(2000), offset_shift=0), *splitter.flush()]

    sizes = [len(read_blob(blob.data)[1]) for blob in blobs]

    assert [blob.bucket for blob in blobs] == list(range(16))
    assert sizes == [blob.records for blob in blobs]
    assert sum(sizes) == splitter.records == 2000
    assert min(sizes) > 60


def test_records_without_a_key_belong_to_the_first_bucket() -> None:
    highest = 2**32 - 1
    assert [bucket_of(highest, flag, 4) for flag in (0, KEYLESS, CONTROL_RECORD)] == [15, 0, 0]
    assert bucket_of(highest, 0, 0) == 0


def test_keys_of_one_bucket_are_distributed_over_the_table() -> None:
    """The slot in the table depends on the first word, the bucket on the second."""
    splitter = BucketSplitter(SEED, bits=4, now_ms=NOW)
    blobs = [*splitter.feed(uncompressed_batch(2000), offset_shift=0), *splitter.flush()]

    for blob in blobs:
        first_words = read_blob(blob.data)[0][::3]
        assert {int(word) >> 29 for word in first_words} == set(range(8))


def test_large_buckets_are_split_into_bounded_blobs() -> None:
    count = BLOB_RECORDS + 10
    splitter = BucketSplitter(SEED, bits=0, now_ms=NOW)

    blobs = [*splitter.feed(uncompressed_batch(count), offset_shift=5), *splitter.flush()]

    assert [blob.first_offset for blob in blobs] == [5, 5 + BLOB_RECORDS]
    (found,) = find_survivors(blobs, reaches_log_start=True, table=KeyTable(1 << 21))
    assert len(found.offsets) == count


def test_distant_offsets_are_split_into_separate_blobs() -> None:
    """A packed offset is at most 2^28 above the base of its blob."""
    splitter = BucketSplitter(SEED, bits=0, now_ms=NOW)
    blobs = [*splitter.feed(uncompressed_batch(1), offset_shift=0)]
    blobs += splitter.feed(uncompressed_batch(2), offset_shift=2**28 - 1)
    blobs += splitter.feed(uncompressed_batch(1), offset_shift=2**40)

    blobs += splitter.flush()

    assert [read_blob(blob.data)[1].tolist() for blob in blobs] == [[0, 2**28 - 1], [2**28], [2**40]]
    (found,) = find_survivors(blobs, reaches_log_start=True)
    assert set(found.offsets) == {2**28, 2**40}


def test_a_full_table_keeps_records_of_unknown_keys() -> None:
    table = KeyTable(1024)
    blobs: list[Blob] = []
    splitter = BucketSplitter(SEED, bits=0, now_ms=NOW, chunk_records=100)
    for shift in (0, 200):
        blobs += splitter.feed(uncompressed_batch(200), offset_shift=shift)
    blobs += splitter.flush()

    (found,) = find_survivors(blobs, reaches_log_start=True, table=table)

    assert not found.exact
    assert found.keys == table.capacity
    assert set(range(200, 400)) <= set(found.offsets)
    assert len(found.offsets) == 400 - table.capacity


@pytest.mark.parametrize("reaches_log_start", [True, False])
def test_an_expired_tombstone_is_dropped_only_from_the_log_start_on(*, reaches_log_start: bool) -> None:
    """Otherwise older records of its key, which the job does not see, would become visible again."""
    tombstone = encode_batch([NOW], [b"k"], [None], delete_horizon_ms=NOW - 1)
    splitter = BucketSplitter(SEED, bits=0, now_ms=NOW)
    blobs = [*splitter.feed(tombstone, offset_shift=0), *splitter.flush()]
    (found,) = find_survivors(blobs, reaches_log_start=reaches_log_start)
    assert (found.records_out, found.tombstones_dropped) == ((0, 1) if reaches_log_start else (1, 0))


def test_blobs_out_of_order_raise_a_fatal_error() -> None:
    splitter = BucketSplitter(SEED, bits=0, now_ms=NOW, chunk_records=10)
    blobs = [*splitter.feed(uncompressed_batch(20), offset_shift=0), *splitter.flush()]
    finder = BucketSurvivorFinder(TABLE, reaches_log_start=True)
    finder.feed(blobs[0].data)

    with pytest.raises(FatalError, match="was processed before"):
        finder.feed(blobs[1].data)


def test_a_blob_that_reaches_an_offset_that_was_processed_is_rejected() -> None:
    """It is rejected even if it begins below that offset."""
    finder = BucketSurvivorFinder(TABLE, reaches_log_start=True)

    def blob(first: int, count: int) -> bytes:
        splitter = BucketSplitter(SEED, bits=0, now_ms=NOW, chunk_records=20)
        (found,) = [*splitter.feed(uncompressed_batch(count), offset_shift=first), *splitter.flush()]
        return found.data

    assert finder.feed(blob(10, 5)) == 5
    with pytest.raises(FatalError, match="a blob reaches offset 10, but offset 10 was"):
        finder.feed(blob(0, 11))
    assert finder.feed(blob(0, 10)) == 10
    found = finder.finish()
    assert (set(found.offsets), found.max_buffer_bytes) == ({*range(5, 15)}, 1 << 20)


@given(
    st.integers(0, 2**62),
    st.lists(
        st.tuples(st.tuples(*[st.integers(0, 2**32 - 1)] * 3), st.integers(0, 2**28 - 1), st.integers(0, 15)),
        min_size=1,
        max_size=5,
    ),
)
def test_a_blob_is_read_as_it_is_documented(
    base: int, records: list[tuple[tuple[int, int, int], int, int]]
) -> None:
    fingerprints = [word for words, _, _ in records for word in words]
    packed = [distance << 4 | flags for _, distance, flags in records]
    words, offsets, flags = read_blob(struct.pack(f"<q{4 * len(records)}I", base, *fingerprints, *packed))
    assert words.tolist() == fingerprints
    assert offsets.tolist() == [base + distance for _, distance, _ in records]
    assert flags.tolist() == [flag for _, _, flag in records]


def test_a_splitter_reports_its_memory() -> None:
    """A record takes 21 bytes before a split and 16 after it, and the end of a bucket 8.

    Batches are opened as far as they are compressed.
    """
    splitter = BucketSplitter(SEED, bits=3, now_ms=NOW, chunk_records=20)
    assert splitter.nbytes == 20 * (21 + 16) + 2**3 * 8
    list(splitter.feed(uncompressed_batch(5), offset_shift=0))
    assert splitter.max_opened_bytes == 0
    large, small = ([b"%d" % each for each in range(count)] for count in (40, 30))
    for shift, keys in ((100, large), (200, small)):
        batch = encode_batch([NOW] * len(keys), keys, keys, codec=Codec.ZSTD)
        list(splitter.feed(batch, offset_shift=shift))
        uncompressed = encode_batch([NOW] * len(large), large, large)
        assert splitter.max_opened_bytes == len(uncompressed) - 61


@pytest.mark.parametrize("data", [b"", bytes(8), bytes(23), bytes(25)])
def test_bytes_that_are_not_a_blob_are_rejected(data: bytes) -> None:
    with pytest.raises(CorruptDataError, match="not a blob"):
        read_blob(data)


def test_malformed_batches_are_rejected() -> None:
    data = bytearray(uncompressed_batch(2))
    data[61] = 0xFF
    splitter = BucketSplitter(SEED, bits=2, now_ms=NOW)

    with pytest.raises(MalformedBatchError):
        list(splitter.feed(data, offset_shift=0))


def test_invalid_seeds_and_bits_are_rejected() -> None:
    with pytest.raises(InvalidInputError, match="16 bytes"):
        BucketSplitter(b"short", bits=1, now_ms=NOW)
    for bits in (-1, 17):
        with pytest.raises(InvalidInputError, match=f"{bits} leading bits"):
            BucketSplitter(SEED, bits=bits, now_ms=NOW)
    BucketSplitter(SEED, bits=16, now_ms=NOW, chunk_records=1)
